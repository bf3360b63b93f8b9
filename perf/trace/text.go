package trace

import "math/rand/v2"

// TokenBytes is the text length of one token, as the default tokenizer and the simulated engines
// count.
const TokenBytes = 4

// Text expands requests to prompts. The text of a hash id is the same in every request and every
// process. The text consists of words of lower-case letters, which need no escape in JSON.
type Text struct {
	// Salt selects the text of all hash ids. Texts with different salts have no block in common.
	Salt uint64
	// Spread makes the text of each request's first block depend on the second id too. In the
	// public conversation trace every request begins with the same id. With Spread, requests that
	// have only this id in common share no text.
	Spread bool
}

// Prompt appends the request's prompt to dst, with InputLength x TokenBytes bytes. Prompt returns
// the prompt and the length of its system prompt in bytes. The system prompt has SystemBlocks
// blocks. If the trace does not give SystemBlocks, the system prompt is the first block, and a
// prompt of one block has none.
func (t Text) Prompt(dst []byte, q *Request) (prompt []byte, systemBytes int) {
	start := len(dst)
	left := q.InputLength * TokenBytes
	for i, id := range q.HashIDs {
		n := min(left, BlockTokens*TokenBytes)
		dst = appendWords(dst, n, uint64(id)^t.mask(), t.branch(q, i))
		left -= n
	}
	system := q.SystemBlocks
	if system == 0 && len(q.HashIDs) > 1 {
		system = 1
	}
	return dst, min(system*BlockTokens*TokenBytes, len(dst)-start)
}

// mask returns the bits that the salt changes in an id. The mask of no salt is 0.
func (t Text) mask() uint64 {
	if t.Salt == 0 {
		return 0
	}
	return Spread(t.Salt)
}

// branch returns the second input, beside the id, for the text of block i.
func (t Text) branch(q *Request, i int) uint64 {
	if !t.Spread || i > 0 || len(q.HashIDs) < 2 {
		return 0
	}
	return uint64(q.HashIDs[1]) + 1
}

// appendWords appends n bytes of words, which follow from the two seeds.
func appendWords(dst []byte, n int, id, branch uint64) []byte {
	r := rand.NewPCG(id, branch)
	end := len(dst) + n
	for len(dst) < end {
		v := r.Uint64()
		letters := 3 + int(v%6)
		for range letters {
			v /= 26
			dst = append(dst, 'a'+byte(v%26))
		}
		dst = append(dst, ' ')
	}
	return dst[:end]
}

// Spread distributes the bits of v. Different values stay different (splitmix64).
func Spread(v uint64) uint64 {
	v += 0x9e3779b97f4a7c15
	v = (v ^ v>>30) * 0xbf58476d1ce4e5b9
	v = (v ^ v>>27) * 0x94d049bb133111eb
	return v ^ v>>31
}
