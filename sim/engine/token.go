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

// wordTokens are the ids of words.
var wordTokens = func() (ids []uint32) {
	for _, w := range words {
		ids = appendTokens(ids, w)
	}
	return ids
}()

// mix is the finaliser of splitmix64, a cheap 64-bit hash.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// output is the complete answer of a sequence, decided at its arrival. Each generated token is a
// function of the seed and of all tokens before it, those of the prompt included, and not of the
// batch. A sequence whose prompt ends with the first tokens of an answer therefore goes on with the
// rest of that answer.
type output struct {
	limit      int    // tokens to generate, at least 1
	cut        int    // visible bytes of text
	hold       int    // bytes of text that come late, because they may begin a stop string
	reason     string // finish reason
	stopReason string // stop string that ended the output, or ""
	picks      []byte // for each token its place in words
	fixed      string // text instead of words

	voice  uint64 // of the seed and the model
	before int    // tokens before the first one
	last   uint32 // the last of these

	surprise float64 // mean of -logprob, with Config.Quality
}

// after returns the state of the words after one more token.
func after(state uint64, token uint32) uint64 { return mix(state ^ uint64(token)) }

// speak decides the words, from the state after the prompt.
func (o *output) speak(state uint64) {
	o.picks = make([]byte, o.limit)
	for i := range o.picks {
		pick := byte(mix(state) % uint64(len(words)))
		o.picks[i] = pick
		state = after(state, wordTokens[pick])
	}
}

// token returns the id of generated token i. Token -1 is the last one of the prompt.
func (o *output) token(i int) uint32 {
	switch {
	case i < 0:
		return o.last
	case o.fixed == "" && o.picks == nil: // a Model's Work without its blocks
		return wordTokens[mix(uint64(i))%uint64(len(words))]
	case o.fixed == "":
		return wordTokens[o.picks[i]]
	}
	var buf [1]uint32
	return appendTokens(buf[:0], o.word(i))[0]
}

// tokens returns the ids of all generated tokens.
func (o *output) tokens() []uint32 {
	ids := make([]uint32, o.limit)
	for i := range ids {
		ids[i] = o.token(i)
	}
	return ids
}

// word returns the text of generated token i, before any cut.
func (o *output) word(i int) string {
	if o.fixed != "" {
		return o.fixed[min(i*tokenBytes, len(o.fixed)):min((i+1)*tokenBytes, len(o.fixed))]
	}
	return words[o.picks[i]]
}

// text returns the text that becomes visible with token i. A character shared by two tokens comes
// with the first.
func (o *output) text(i int) string {
	from, to := max(0, i*tokenBytes-o.hold), max(0, (i+1)*tokenBytes-o.hold)
	if i == o.limit-1 {
		to += o.hold
	}
	from, to = min(from, o.cut), min(to, o.cut)
	switch {
	case o.fixed != "":
		end := min(o.cut, len(o.fixed))
		return o.fixed[runeStart(o.fixed, min(from, end)):runeStart(o.fixed, min(to, end))]
	case o.hold == 0:
		return o.word(i)[:to-from]
	}
	return o.between(from, to)
}

// between returns the bytes [from, to) of generated words.
func (o *output) between(from, to int) string {
	b := make([]byte, 0, to-from)
	for ; from < to; from = (from/tokenBytes + 1) * tokenBytes {
		w := words[o.picks[from/tokenBytes]]
		b = append(b, w[from%tokenBytes:min(tokenBytes, to-from/tokenBytes*tokenBytes)]...)
	}
	return string(b)
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

// chance returns a hash that belongs to token i where it stands, whichever engine generates it.
func (o *output) chance(i int) uint64 {
	return mix(o.voice ^ mix(uint64(o.before+i)) ^ uint64(o.token(i-1))<<32 ^ uint64(o.token(i)))
}

// logprob returns the simulated log probability of rank r at token i.
func (o *output) logprob(i, r int) float64 {
	if o.surprise > 0 {
		return o.graded(i, r)
	}
	return -float64(o.chance(i)%3000)/1000 - float64(r)
}

// stopAt ends the output at the first of the stop strings that ends after the first tokens, which
// min_tokens protects.
func (o *output) stopAt(stops []string, protected int) {
	if len(stops) == 0 {
		return
	}
	text := o.whole()
	for _, stop := range stops {
		from := max(0, protected*tokenBytes-len(stop)+1)
		if stop == "" || from >= len(text) {
			continue
		}
		o.hold = max(o.hold, len(stop)-1)
		at := strings.Index(text[from:], stop)
		if at < 0 || from+at >= o.cut {
			continue
		}
		o.cut, o.reason, o.stopReason = from+at, "stop", stop
		o.limit = (from + at + len(stop) + tokenBytes - 1) / tokenBytes
	}
}
