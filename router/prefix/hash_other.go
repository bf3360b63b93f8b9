//go:build !amd64

package prefix

// hashText computes as many digests as digests has room for, from the blocks at the start of text.
// The first one follows parent.
func hashText(digests []words, parent *words, text []byte) {
	hashTextGeneric(digests, parent, text)
}

// hashTokens is hashText for token ids.
func hashTokens(digests []words, parent *words, tokens []uint32) {
	hashTokensGeneric(digests, parent, tokens)
}
