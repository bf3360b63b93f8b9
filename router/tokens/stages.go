package tokens

import (
	"encoding/json"
	"errors"
	"fmt"
	"unicode"

	"golang.org/x/text/unicode/norm"
)

// gpt2 is ByteLevel's built-in pattern.
const gpt2 = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// stage cuts pieces of text. Each match is a piece, and so is the text between matches.
type stage struct {
	pattern *pattern
	drop    bool // the text between matches is dropped
	prefix  bool // a piece that does not begin with a space gets one
}

func (t *Tokenizer) readNormalizer(f *file) error {
	all, err := parts(f.Normalizer, func(p *part) []json.RawMessage { return p.Normalizers })
	if err != nil {
		return err
	}
	for _, p := range all {
		if p.Type != "NFC" {
			return fmt.Errorf("type %q is not supported, only NFC is", p.Type)
		}
		t.nfc = true
	}
	if !t.nfc {
		return nil
	}
	for _, a := range f.Added {
		if a.Normalized && !norm.NFC.IsNormalString(a.Content) {
			return fmt.Errorf("added token %q is not in NFC itself", a.Content)
		}
	}
	return nil
}

func (t *Tokenizer) readPreTokenizer(f *file) error {
	all, err := parts(f.PreTokenizer, func(p *part) []json.RawMessage { return p.PreTokenizers })
	if err != nil {
		return err
	}
	byteLevel := false
	for _, p := range all {
		if byteLevel {
			return fmt.Errorf("%s behind ByteLevel is not supported", p.Type)
		}
		text, s := "", stage{}
		switch p.Type {
		case "ByteLevel":
			byteLevel = true
			if p.AddPrefixSpace {
				t.stages = append(t.stages, stage{prefix: true})
			}
			if p.UseRegex != nil && !*p.UseRegex {
				continue
			}
			text = gpt2
		case "Digits":
			if text = `\p{N}+`; p.Individual {
				text = `\p{N}`
			}
		case "Split":
			if text, err = p.splits(); err != nil {
				return err
			}
			s.drop = p.Behavior == "Removed"
		default:
			return fmt.Errorf("type %q is not supported, only Split, Digits and ByteLevel are", p.Type)
		}
		if s.pattern, err = compile(text); err != nil {
			return fmt.Errorf("%s: %w", p.Type, err)
		}
		t.stages = append(t.stages, s)
	}
	if !byteLevel {
		return errors.New("it has no ByteLevel: only byte-level BPE is supported")
	}
	return nil
}

// splits returns the pattern of a Split whose matches are pieces.
func (p *part) splits() (string, error) {
	switch {
	case p.Pattern.Regex == nil:
		return "", errors.New("the pattern of a Split must be of type Regex")
	case p.Behavior == "Isolated":
	case p.Behavior == "Removed" && p.Invert:
	default:
		return "", fmt.Errorf("a Split's behavior %q with invert %v is not supported, only Isolated, and Removed "+
			"with invert", p.Behavior, p.Invert)
	}
	return *p.Pattern.Regex, nil
}

func (t *Tokenizer) readPostProcessor(f *file) error {
	all, err := parts(f.PostProcessor, func(p *part) []json.RawMessage { return p.Processors })
	if err != nil {
		return err
	}
	for _, p := range all {
		if p.Type == "ByteLevel" {
			continue // affects offsets only
		}
		if p.Type != "TemplateProcessing" {
			return fmt.Errorf("type %q is not supported, only ByteLevel and TemplateProcessing are", p.Type)
		}
		if t.before != nil || t.after != nil {
			return errors.New("there are two TemplateProcessing")
		}
		prompts := 0
		for _, piece := range p.Single {
			switch {
			case piece.Sequence != nil && piece.Sequence.ID == "A":
				prompts++
			case piece.Special != nil && prompts == 0:
				t.before = append(t.before, p.Specials[piece.Special.ID].IDs...)
			case piece.Special != nil:
				t.after = append(t.after, p.Specials[piece.Special.ID].IDs...)
			}
		}
		if prompts != 1 {
			return fmt.Errorf("single has the prompt %d times", prompts)
		}
	}
	return nil
}

// cut cuts piece by the stages and appends the ids to dst.
func (t *Tokenizer) cut(dst []uint32, piece string, stages []stage, s *scratch) []uint32 {
	if piece == "" {
		return dst
	}
	if len(stages) == 0 {
		return t.bpe.append(dst, piece, s)
	}
	st, rest := &stages[0], stages[1:]
	if st.prefix {
		if piece[0] != ' ' {
			piece = " " + piece
		}
		return t.cut(dst, piece, rest, s)
	}
	between := 0 // beginning of the text since the last match
	for at := 0; at < len(piece); {
		end := st.pattern.match(piece, at)
		if end < 0 {
			_, size := decode(piece, at)
			at += size
			continue
		}
		if !st.drop {
			dst = t.cut(dst, piece[between:at], rest, s)
		}
		if len(rest) == 0 {
			dst = t.bpe.append(dst, piece[at:end], s)
		} else {
			dst = t.cut(dst, piece[at:end], rest, s)
		}
		at, between = end, end
	}
	if !st.drop {
		dst = t.cut(dst, piece[between:], rest, s)
	}
	return dst
}

// breaks are pairs of characters between which a text may be cut anywhere without changing its
// tokens.
var breaks = [][2]rune{{'a', ' '}, {'\n', 'a'}, {'中', '，'}, {'中', '。'}}

// like maps a sample character to the characters that it stands for.
var like = map[rune][]rune{'a': {'a', 'z', 'A', 'Z', '0', '9', 's'}, '中': {'中', 0x4e00, 0x9fff}}

// findBreaks finds the breaks that are valid for this tokenizer.
func (t *Tokenizer) findBreaks() {
	for i, b := range breaks {
		t.breaks[i] = true
		for _, left := range alike(b[0]) {
			for _, right := range alike(b[1]) {
				t.breaks[i] = t.breaks[i] && t.parted(left, right)
			}
		}
	}
}

func alike(r rune) []rune {
	if all := like[r]; all != nil {
		return all
	}
	return []rune{r}
}

// parted says whether no piece and no added token can contain left followed by right.
func (t *Tokenizer) parted(left, right rune) bool {
	certain := false
	for _, s := range t.stages {
		if s.prefix {
			if right != ' ' {
				return false
			}
			continue
		}
		if s.pattern.joins(left, right) || !s.pattern.endsAt(left, right) {
			return false
		}
		certain = certain || s.pattern.match(string(left), 0) > 0 || s.pattern.match(string(right), 0) > 0
	}
	for _, a := range t.added.all {
		last := rune(0)
		for _, r := range a.Content {
			if last != 0 && related(last, left) && related(r, right) {
				return false
			}
			last = r
		}
		first, _ := decode(a.Content, 0)
		if a.RStrip && related(last, left) || a.LStrip && unicode.IsSpace(left) && related(first, right) {
			return false
		}
	}
	return certain
}

// related says whether sample stands for r.
func related(r, sample rune) bool {
	switch {
	case sample < 0x80 && (unicode.IsLetter(sample) || unicode.IsDigit(sample)):
		return plain(r)
	case han(sample):
		return han(r)
	}
	return r == sample
}

func plain(r rune) bool { return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' }
func han(r rune) bool   { return r >= 0x4e00 && r <= 0x9fff }
