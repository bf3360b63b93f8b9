//go:build !amd64

package prefix

// hashText sets digests to those of as many blocks at the start of text, the first after parent.
func hashText(digests []words, parent *words, text []byte) {
	hashTextGeneric(digests, parent, text)
}

// hashTokens is hashText for token ids.
func hashTokens(digests []words, parent *words, tokens []uint32) {
	hashTokensGeneric(digests, parent, tokens)
}
