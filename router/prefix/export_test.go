package prefix

// Caching is false while a node reports no cached token for prompts that it has
// seen before: its engine has prefix caching switched off.
func (x *Index) Caching(ref Ref) bool {
	n := x.node(ref)
	return n != nil && !n.silent.Load()
}
