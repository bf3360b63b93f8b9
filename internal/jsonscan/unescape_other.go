//go:build !amd64

package jsonscan

// unescape does nothing: there is no fast decoder for this architecture.
func (c *Cursor) unescape(dst []byte, i, _ int) ([]byte, int) { return dst, i }
