package tokens

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

// maxAdded bounds the added tokens.
const maxAdded = 1 << 16

// addedTokens are found in the text before it is cut into words. Of several matching tokens the
// longest one counts.
type addedTokens struct {
	all   []addedToken
	raw   finder // tokens to find in the original text
	later finder // tokens to find in the normalized text
}

// finder finds the first of several tokens in a text.
type finder struct {
	byFirst [256][]*addedToken // longest first
	firsts  string             // the first bytes of tokens
}

func (t *Tokenizer) readAdded(f *file) error {
	if len(f.Added) > maxAdded {
		return fmt.Errorf("there are more than %d", maxAdded)
	}
	t.added.all = f.Added
	for i := range f.Added {
		a := &f.Added[i]
		switch {
		case a.Content == "":
			return errors.New("one is empty")
		case a.SingleWord:
			return fmt.Errorf("%q has single_word, which is not supported", a.Content)
		case a.ID >= maxID:
			return fmt.Errorf("the id of %q is not below %d", a.Content, maxID)
		}
		if id, ok := f.Model.Vocab[a.Content]; ok && id != a.ID {
			return fmt.Errorf("%q has the id %d here and %d in the vocabulary", a.Content, a.ID, id)
		}
		if a.Normalized {
			t.added.later.put(a)
		} else {
			t.added.raw.put(a)
		}
	}
	return nil
}

func (f *finder) put(a *addedToken) {
	b := a.Content[0]
	if len(f.byFirst[b]) == 0 {
		f.firsts += string([]byte{b})
	}
	f.byFirst[b] = append(f.byFirst[b], a)
	slices.SortStableFunc(f.byFirst[b], func(x, y *addedToken) int { return len(y.Content) - len(x.Content) })
}

// find returns the first token of text from at on.
func (f *finder) find(text string, at int) (token *addedToken, start int) {
	for at < len(text) {
		if len(f.firsts) == 1 {
			next := strings.IndexByte(text[at:], f.firsts[0])
			if next < 0 {
				return nil, 0
			}
			at += next
		}
		for _, a := range f.byFirst[text[at]] {
			if strings.HasPrefix(text[at:], a.Content) {
				return a, at
			}
		}
		at++
	}
	return nil, 0
}

// each calls do for the text before each token, together with the token. each calls do for the
// remaining text with nil.
func (f *finder) each(text string, do func(text string, token *addedToken)) {
	from, at := 0, 0
	for f.firsts != "" {
		token, start := f.find(text, at)
		if token == nil {
			break
		}
		end := start + len(token.Content)
		if token.LStrip {
			start = max(from, len(strings.TrimRightFunc(text[:start], unicode.IsSpace)))
		}
		if token.RStrip {
			end = len(text) - len(strings.TrimLeftFunc(text[end:], unicode.IsSpace))
		}
		do(text[from:start], token)
		from, at = end, end
	}
	do(text[from:], nil)
}
