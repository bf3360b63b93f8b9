package jsonscan

// Valid returns an *Error if doc is not exactly one acceptable document, or else nil.
func Valid(doc []byte) error {
	c := New(doc)
	c.Skip()
	c.End()
	return c.Err()
}
