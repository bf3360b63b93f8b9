//go:build !amd64

package jsonscan

// unescape appends to dst the decoded text of a string in c.buf[i:limit], as far as that goes fast,
// and returns where it stopped. It stops before what is not acceptable.
func (c *Cursor) unescape(dst []byte, i, _ int) ([]byte, int) { return dst, i }
