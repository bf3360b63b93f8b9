package prefix

// Caching returns false while a node reports no cached token for repeated prompts. The node's
// engine has prefix caching switched off.
func (x *Index) Caching(ref Ref) bool {
	n := x.node(ref)
	return n != nil && !n.silent.Load()
}

// Digests hashes a whole prompt, given as text or as token ids.
func Digests(seed Digest, text []byte, tokens []uint32) (all []Digest) {
	c := new(Chain)
	c.Reset(seed, text, tokens)
	for i := range c.Blocks() {
		c.HashTo(i + 1)
		d, _ := c.Digest(i)
		all = append(all, d)
	}
	return all
}
