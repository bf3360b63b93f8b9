package jsonscan

// Valid reports whether doc is one acceptable document: an *Error or nil.
func Valid(doc []byte) error {
	c := New(doc)
	c.Skip()
	c.End()
	return c.Err()
}
