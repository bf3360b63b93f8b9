package tokens

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
)

// file holds the members of a tokenizer.json that matter for encoding.
type file struct {
	Added         []addedToken    `json:"added_tokens"`
	Normalizer    json.RawMessage `json:"normalizer"`
	PreTokenizer  json.RawMessage `json:"pre_tokenizer"`
	PostProcessor json.RawMessage `json:"post_processor"`
	Model         struct {
		Type         string            `json:"type"`
		Dropout      *float64          `json:"dropout"`
		Unknown      *string           `json:"unk_token"`
		Prefix       *string           `json:"continuing_subword_prefix"`
		Suffix       *string           `json:"end_of_word_suffix"`
		ByteFallback bool              `json:"byte_fallback"`
		IgnoreMerges bool              `json:"ignore_merges"`
		Vocab        map[string]uint32 `json:"-"`
		Merges       []merge           `json:"merges"`
		RawVocab     json.RawMessage   `json:"vocab"`
	} `json:"model"`
}

type addedToken struct {
	ID         uint32 `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
}

// merge is written as "a b" or as ["a", "b"].
type merge struct{ left, right string }

func (m *merge) UnmarshalJSON(doc []byte) error {
	var both []string
	if doc[0] == '"' {
		var s string
		if err := json.Unmarshal(doc, &s); err != nil {
			return err
		}
		both = strings.Split(s, " ")
	} else if err := json.Unmarshal(doc, &both); err != nil {
		return err
	}
	if len(both) != 2 {
		return fmt.Errorf("a merge of %d parts, not 2", len(both))
	}
	m.left, m.right = both[0], both[1]
	return nil
}

// maxID bounds ids. maxID is far above any vocabulary.
const maxID = 1 << 24

// part is an element of a normalizer, pre_tokenizer or post_processor.
type part struct {
	Type           string            `json:"type"`
	Normalizers    []json.RawMessage `json:"normalizers"`
	PreTokenizers  []json.RawMessage `json:"pretokenizers"`
	Processors     []json.RawMessage `json:"processors"`
	AddPrefixSpace bool              `json:"add_prefix_space"`
	UseRegex       *bool             `json:"use_regex"`
	Individual     bool              `json:"individual_digits"`
	Behavior       string            `json:"behavior"`
	Invert         bool              `json:"invert"`
	Pattern        struct {
		Regex  *string
		String *string
	} `json:"pattern"`
	Single []struct {
		Special  *struct{ ID string } `json:"SpecialToken"`
		Sequence *struct{ ID string } `json:"Sequence"`
	} `json:"single"`
	Specials map[string]struct {
		IDs []uint32 `json:"ids"`
	} `json:"special_tokens"`
}

// parts reads a value that may be null, one part or a sequence of them.
func parts(doc json.RawMessage, of func(*part) []json.RawMessage) (all []part, err error) {
	if len(doc) == 0 || bytes.Equal(doc, []byte("null")) {
		return nil, nil
	}
	var p part
	if err := json.Unmarshal(doc, &p); err != nil {
		return nil, err
	}
	if p.Type != "Sequence" {
		return []part{p}, nil
	}
	for _, one := range of(&p) {
		var inner part
		if err := json.Unmarshal(one, &inner); err != nil {
			return nil, err
		}
		if inner.Type == "Sequence" {
			return nil, errors.New("a sequence within a sequence")
		}
		all = append(all, inner)
	}
	return all, nil
}

// Parse reads a tokenizer.json. Parse's error names the member that is not supported.
func Parse(doc []byte) (*Tokenizer, error) {
	var f file
	if err := json.Unmarshal(doc, &f); err != nil {
		return nil, fmt.Errorf("no tokenizer.json: %w", err)
	}
	if f.Model.Type != "" && f.Model.Type != "BPE" || f.Model.Type == "" && f.Model.Merges == nil {
		return nil, fmt.Errorf("model.type is %q: only byte-level BPE is supported", f.Model.Type)
	}
	if err := json.Unmarshal(f.Model.RawVocab, &f.Model.Vocab); err != nil {
		return nil, fmt.Errorf("model.vocab: %w", err)
	}
	f.Model.RawVocab = nil
	t := &Tokenizer{mark: rand.Uint64()}
	for _, step := range []struct {
		member string
		do     func(*file) error
	}{
		{"model", t.readModel}, {"added_tokens", t.readAdded}, {"normalizer", t.readNormalizer},
		{"pre_tokenizer", t.readPreTokenizer}, {"post_processor", t.readPostProcessor},
	} {
		if err := step.do(&f); err != nil {
			return nil, fmt.Errorf("%s: %w", step.member, err)
		}
	}
	t.findBreaks()
	return t, nil
}

// byteOf maps each character of a byte-level vocabulary to its byte. Printable bytes map to
// themselves; the others map to characters from U+0100 on, in order.
var byteOf = func() map[rune]byte {
	all := map[rune]byte{}
	next := rune(256)
	for b := range rune(256) {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			all[b] = byte(b)
		} else {
			all[next] = byte(b)
			next++
		}
	}
	return all
}()

// bytesOf returns the bytes of a token of the vocabulary. ok is false if the token is not written
// in bytes.
func bytesOf(token string) (string, bool) {
	raw := make([]byte, 0, len(token))
	for _, r := range token {
		b, ok := byteOf[r]
		if !ok {
			return "", false
		}
		raw = append(raw, b)
	}
	return string(raw), true
}

func (t *Tokenizer) readModel(f *file) error {
	m := &f.Model
	switch {
	case m.Dropout != nil && *m.Dropout != 0:
		return errors.New("dropout makes tokens random; set it to null")
	case m.ByteFallback:
		return errors.New("byte_fallback: this is a SentencePiece model, only byte-level BPE is supported")
	case m.Prefix != nil && *m.Prefix != "" || m.Suffix != nil && *m.Suffix != "":
		return errors.New("continuing_subword_prefix and end_of_word_suffix are not supported")
	case len(m.Vocab) == 0:
		return errors.New("vocab is empty")
	}
	for token, id := range m.Vocab {
		if id >= maxID {
			return fmt.Errorf("vocab: the id of %q is not below %d", token, maxID)
		}
	}
	for r, b := range byteOf {
		id, ok := m.Vocab[string(r)]
		if !ok {
			return fmt.Errorf("vocab has no token for the byte %#02x: it is not byte-level", b)
		}
		t.bpe.bytes[b] = id
	}
	t.bpe.merges = newPairs(len(m.Merges))
	for rank, pair := range m.Merges {
		left, okLeft := m.Vocab[pair.left]
		right, okRight := m.Vocab[pair.right]
		merged, ok := m.Vocab[pair.left+pair.right]
		if !okLeft || !okRight || !ok {
			return fmt.Errorf("merges[%d]: %q, %q or both together are not in vocab", rank, pair.left, pair.right)
		}
		if !t.bpe.merges.put(left, right, uint32(rank), merged) {
			return fmt.Errorf("merges[%d]: %q, %q are there twice", rank, pair.left, pair.right)
		}
	}
	t.bpe.findStarts()
	t.findWords(m.Vocab, m.IgnoreMerges)
	return nil
}

// findWords records the words that are one token. If all is set, every word of vocab is one token.
// Otherwise a word is one token if its merges end in it.
func (t *Tokenizer) findWords(vocab map[string]uint32, all bool) {
	t.bpe.words = newWords(nil)
	words := make(map[string]uint32, len(vocab))
	s := scratch{longest: math.MaxInt}
	var ids []uint32
	for token, id := range vocab {
		word, ok := bytesOf(token)
		if !ok || word == "" {
			continue
		}
		if !all {
			ids = t.bpe.append(ids[:0], word, &s)
		}
		if all || len(ids) == 1 && ids[0] == id {
			words[word] = id
		}
	}
	t.bpe.words = newWords(words)
}
