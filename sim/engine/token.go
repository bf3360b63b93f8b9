package engine

import (
	"encoding/binary"
	"strings"
	"unicode/utf8"
)

// tokenBytes is the length of a token's text in bytes.
const tokenBytes = 4

// appendTokens tokenises one piece of text onto dst.
func appendTokens[T string | []byte](dst []uint32, text T) []uint32 {
	for len(text) >= tokenBytes {
		dst = append(dst, uint32(text[0])|uint32(text[1])<<8|uint32(text[2])<<16|uint32(text[3])<<24)
		text = text[tokenBytes:]
	}
	if len(text) == 0 {
		return dst
	}
	var last [tokenBytes]byte
	copy(last[:], text)
	return append(dst, binary.LittleEndian.Uint32(last[:]))
}

// appendText is the inverse of appendTokens, without the padding.
func appendText(dst []byte, tokens []uint32) []byte {
	for _, t := range tokens {
		for ; t != 0; t >>= 8 {
			dst = append(dst, byte(t))
		}
	}
	return dst
}

// words are the vocabulary of generated text, each one token long.
var words = strings.Split("|"+
	" the| and| for| are| but| not| you| all| any| can| had| her| was| one| our| out|"+
	" day| get| has| him| his| how| man| new| now| old| see| two| way| who| boy| did|"+
	" its| let| put| say| she| too| use| sun| sea| sky| map| key| red| hot| run| cut|"+
	" air| arm| art| ask| bay| bed| big| box| bus| car| cat| cup| dog| ear", "|")[1:]

// mix is the finaliser of splitmix64, a cheap 64-bit hash.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// output is the complete answer of a sequence, decided at its arrival. output is a function of the
// seed and the request, not of the batch.
type output struct {
	limit      int    // tokens to generate, at least 1
	cut        int    // visible bytes of text
	reason     string // finish reason
	stopReason string // stop string that ended the output, or ""
	key        uint64 // selects the words
	fixed      string // text instead of words
}

// token returns the id of generated token i.
func (o *output) token(i int) uint32 {
	var buf [1]uint32
	return appendTokens(buf[:0], o.word(i))[0]
}

// word returns the text of generated token i, before any cut.
func (o *output) word(i int) string {
	if o.fixed != "" {
		return o.fixed[min(i*tokenBytes, len(o.fixed)):min((i+1)*tokenBytes, len(o.fixed))]
	}
	return words[mix(o.key+uint64(i))%uint64(len(words))]
}

// text returns the visible text of token i. A character shared by two tokens comes with the first.
func (o *output) text(i int) string {
	if o.fixed != "" {
		end := min(o.cut, len(o.fixed))
		return o.fixed[runeStart(o.fixed, min(i*tokenBytes, end)):runeStart(o.fixed, min((i+1)*tokenBytes, end))]
	}
	w := o.word(i)
	return w[:max(0, min(len(w), o.cut-i*tokenBytes))]
}

// runeStart returns the first character boundary of s at or after at.
func runeStart(s string, at int) int {
	for at < len(s) && !utf8.RuneStart(s[at]) {
		at++
	}
	return at
}

// whole returns the whole visible text.
func (o *output) whole() string {
	var b strings.Builder
	for i := range o.limit {
		b.WriteString(o.text(i))
	}
	return b.String()
}

// logprob returns the simulated log probability of rank r at token i.
func (o *output) logprob(i, r int) float64 {
	return -float64(mix(o.key^uint64(i)<<8)%3000)/1000 - float64(r)
}

// stopAt ends the output at the first of the stop strings.
func (o *output) stopAt(stops []string) {
	if len(stops) == 0 {
		return
	}
	text := o.whole()
	for _, stop := range stops {
		at := strings.Index(text, stop)
		if at < 0 || at >= o.cut {
			continue
		}
		o.cut, o.reason, o.stopReason = at, "stop", stop
		o.limit = (at + len(stop) + tokenBytes - 1) / tokenBytes
	}
}
