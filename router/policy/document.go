package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/jsonscan"
)

// documentMax bounds a policy document, in bytes.
const documentMax = 64 << 10

// Parse reads a policy document, a JSON object with the keys of Policy. In the older form the
// settings of section score are at the top, and its weights may be there too. A key missing in the
// document gets its default. But a document without a mode has mode score if it has settings of
// that mode other than tiers, which mode predicted reads too. Parse accepts or refuses the whole
// document. Parse's error joins one error per problem, and a value that is not allowed makes a
// FieldError. json.Marshal writes the newest form of a document.
func Parse(doc []byte) (*Policy, error) {
	if len(doc) > documentMax {
		return nil, fmt.Errorf("policy: %d bytes, at most %d are read", len(doc), documentMax)
	}
	if len(bytes.TrimSpace(doc)) == 0 {
		return nil, errors.New("policy: empty, so not a JSON object; {} has every default")
	}
	p, r := read(doc)
	if len(r.errs) > 0 {
		return nil, fmt.Errorf("policy: %w", errors.Join(r.errs...))
	}
	return p, nil
}

// retired are the keys that older documents may have and that have no effect.
var retired = []string{"score.max_share"}

// Ignored returns the settings of a valid document that have no effect.
func Ignored(doc []byte) []string {
	_, r := read(doc)
	return r.ignored
}

// reader reads one document.
type reader struct {
	given map[string]string // for each member, by its newest name, the name in the document
	flat  string            // a weight at the top of the document
	errs  []error

	ignored []string // names of retired settings
}

// read reads a document. The reader has its problems.
func read(doc []byte) (*Policy, *reader) {
	p := Default()
	r := &reader{given: map[string]string{}}
	r.object("", doc,
		section{"", reflect.ValueOf(p).Elem()},
		section{"score", reflect.ValueOf(&p.Score).Elem()},
		section{"score.weights", reflect.ValueOf(&p.Score.Weights).Elem()})
	if nested := r.given["score.weights"]; nested != "" && r.flat != "" {
		r.refuse(r.flat, "a weight both inside and outside of %s; use one form", nested)
	}
	if strings.HasSuffix(r.given["cost.prefill_load_scale"], ".overlap_score_weight") && p.Cost.PrefillLoadScale == 0 {
		p.Cost.OverlapScoreCredit = 0
	}
	if r.given["mode"] == "" && r.scores() {
		p.Mode = Score
	}
	if len(r.errs) == 0 { // a refused value would look like a conflict
		r.errs = p.conflicts()
	}
	return p, r
}

// scores says whether the document has a setting of mode score alone, or the empty section of that
// mode. A document with such a setting and without a mode is for mode score, which was the default
// once. Mode predicted reads the tiers too, so they do not count.
func (r *reader) scores() bool {
	for name := range r.given {
		if strings.HasPrefix(name, "score.") && !strings.HasPrefix(name, "score.tiers") {
			return true
		}
	}
	section := r.given["score"] != "" && r.given["score.tiers"] == ""
	return section || r.flat != ""
}

func (r *reader) refuse(name, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s: "+format, append([]any{name}, args...)...))
}

// section is a struct of settings, with its name in the newest form of a document.
type section struct {
	name   string
	fields reflect.Value
}

// object reads the object with the given name. A member belongs to the first section with its key.
func (r *reader) object(name string, doc []byte, sections ...section) {
	err := members(doc, func(key string, value json.RawMessage) {
		for _, s := range sections {
			for f := range s.fields.Type().Fields() {
				if key == keyOf(f) || key == f.Tag.Get("older") {
					r.member(join(name, key), s, f, value)
					return
				}
			}
			if slices.Contains(retired, join(s.name, key)) {
				r.ignored = append(r.ignored, join(name, key))
				return
			}
		}
		if name == "" && slices.Contains(ModeNames(), key) {
			r.empty(key, value)
			return
		}
		r.unknown(name, key, sections)
	})
	r.unread(name, err, "an object of "+strings.Join(keysOf(sections), ", "))
}

// unread reports the error of members about the object with the given name. allowed is what may
// stand there.
func (r *reader) unread(name string, err error, allowed string) {
	twice, again := errors.AsType[givenTwice](err)
	switch {
	case err == nil:
	case again:
		r.errs = append(r.errs, givenTwice(join(name, string(twice))))
	case name == "":
		r.errs = append(r.errs, err)
	default:
		r.errs = append(r.errs, &FieldError{name, err.Error(), allowed})
	}
}

// empty reads the section of a mode that has no settings.
func (r *reader) empty(mode string, doc []byte) {
	err := members(doc, func(key string, _ json.RawMessage) {
		r.refuse(join(mode, key), "mode %s has no settings", mode)
	})
	r.unread(mode, err, "an empty object, because mode "+mode+" has no settings")
}

// member reads the value of field f of section s. name is its name in the document.
func (r *reader) member(name string, s section, f reflect.StructField, value json.RawMessage) {
	newest := join(s.name, keyOf(f))
	if s.name == "score.weights" && name == keyOf(f) {
		r.flat = name
	} else if was := r.given[newest]; was != "" {
		r.refuse(name, "also given as %s; use one of them", was)
		return
	} else {
		r.given[newest] = name
	}
	into := s.fields.FieldByIndex(f.Index)
	switch {
	case f.Type.Kind() == reflect.Struct:
		r.object(name, value, section{newest, into})
	case f.Type.Kind() == reflect.Pointer:
		into.Set(reflect.New(f.Type.Elem()))
		r.scalar(name, f, value, into.Elem())
	case f.Type.Kind() == reflect.Slice:
		r.list(name, newest, f, value, into)
	default:
		r.scalar(name, f, value, into)
	}
}

// list reads a list of objects, each of which has every key. newest is the list's newest name.
func (r *reader) list(name, newest string, f reflect.StructField, doc []byte, into reflect.Value) {
	var entries []json.RawMessage
	if json.Unmarshal(doc, &entries) != nil || entries == nil {
		r.errs = append(r.errs, &FieldError{name, shortened(doc), allowed(f)})
		return
	}
	if float64(len(entries)) > parsed(f.Tag.Get("most")) {
		r.errs = append(r.errs, &FieldError{name, fmt.Sprintf("a list of %d", len(entries)), allowed(f)})
		return
	}
	if len(entries) == 0 {
		return
	}
	into.Set(reflect.MakeSlice(f.Type, len(entries), len(entries)))
	for i, entry := range entries {
		place, before := fmt.Sprintf("[%d]", i), len(r.errs)
		r.object(name+place, entry, section{newest + place, into.Index(i)})
		for _, key := range keysIn(f.Type.Elem()) {
			if len(r.errs) == before && r.given[join(newest+place, key)] == "" {
				r.refuse(join(name+place, key), "missing; each entry has %s", strings.Join(keysIn(f.Type.Elem()), ", "))
			}
		}
	}
}

// scalar reads one number, word, switch or mode.
func (r *reader) scalar(name string, f reflect.StructField, value json.RawMessage, into reflect.Value) {
	refused := &FieldError{name, shortened(value), allowed(f)}
	var text string
	var v float64
	switch kind := into.Kind(); {
	case kind == reflect.Uint8 && json.Unmarshal(value, &text) == nil:
		if m, err := ParseMode(text); err == nil {
			into.Set(reflect.ValueOf(m))
			return
		}
		refused.Allowed = ModesInstead(text)
	case bytes.Equal(value, []byte("null")):
	case kind == reflect.String && json.Unmarshal(value, &text) == nil && slices.Contains(words(f), text):
		into.SetString(text)
		return
	case kind == reflect.String && text != "":
		refused.Allowed += didYouMean(text, words(f))
	case kind == reflect.Bool && json.Unmarshal(value, into.Addr().Interface()) == nil:
		return
	case json.Unmarshal(value, &v) != nil || !allows(f, v):
	case kind == reflect.Int:
		into.SetInt(int64(v))
		return
	case kind == reflect.Float64:
		into.SetFloat(v)
		return
	}
	r.errs = append(r.errs, refused)
}

// unknown refuses a key, and suggests another one.
func (r *reader) unknown(object, key string, sections []section) {
	if object == "" && key == "models" {
		r.refuse(key, "a document is one policy, and a model's own is among the model's settings; give it with "+
			"`cgn-ctl model set NAME --policy FILE`, or as policy of [[model]]")
		return
	}
	keys := keysOf(sections)
	meant := config.Nearest(key, keys)
	walk("", reflect.ValueOf(Default()).Elem(), func(name string, _ reflect.StructField, _ reflect.Value) {
		if strings.HasSuffix(name, "."+key) {
			meant = name // another section has the key
		}
	})
	if meant != "" {
		meant = "; did you mean " + meant + "?"
	}
	r.refuse(join(object, key), "unknown key; there are %s%s", strings.Join(keys, ", "), meant)
}

// shortened returns the beginning of a value, for errors.
func shortened(value []byte) string {
	const longest = 64
	if len(value) > longest {
		return string(value[:longest]) + "..."
	}
	return string(value)
}

// otherNames are names of modes in other routers.
var otherNames = map[string]Mode{"kv": Cost, "device_aware_weighted": DeviceAware}

// allModes lists the modes with their other names, for people.
func allModes() string {
	names := ModeNames()
	for _, other := range slices.Sorted(maps.Keys(otherNames)) {
		names[otherNames[other]] += " (or " + other + ")"
	}
	return strings.Join(names, ", ")
}

// ModesInstead lists the modes for an error about a name that is none, and suggests the nearest.
func ModesInstead(name string) string {
	return allModes() + didYouMean(name, slices.Concat(ModeNames(), slices.Sorted(maps.Keys(otherNames))))
}

// didYouMean suggests the word that is nearest to text in any case; "" if none is near.
func didYouMean(text string, words []string) string {
	meant := config.Nearest(strings.ToLower(strings.ReplaceAll(text, "-", "_")), words)
	if meant == "" {
		return ""
	}
	return "; did you mean " + meant + "?"
}

// ParseMode returns the mode with the given name, which may have hyphens for underscores.
func ParseMode(name string) (Mode, error) {
	plain := strings.ReplaceAll(name, "-", "_")
	if i := slices.Index(ModeNames(), plain); i >= 0 {
		return Mode(i), nil
	}
	if m, ok := otherNames[plain]; ok {
		return m, nil
	}
	return 0, &FieldError{"mode", fmt.Sprintf("%q", name), ModesInstead(name)}
}

// givenTwice is the error about a key that an object has twice.
type givenTwice string

func (key givenTwice) Error() string { return string(key) + ": given twice" }

// members calls fn for each member of one JSON object. members refuses duplicates and anything
// after the object.
func members(doc []byte, fn func(key string, value json.RawMessage)) error {
	dec := json.NewDecoder(bytes.NewReader(doc))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return errors.New(noObject)
	}
	seen := map[string]bool{}
	for dec.More() {
		t, err := dec.Token()
		key, ok := t.(string)
		if err != nil || !ok {
			return malformed("", doc)
		}
		var value json.RawMessage
		if dec.Decode(&value) != nil {
			return malformed(key+": ", doc)
		}
		if seen[key] {
			return givenTwice(key)
		}
		seen[key] = true
		fn(key, value)
	}
	if _, err := dec.Token(); err != nil {
		return malformed("", doc)
	}
	if _, err := dec.Token(); err != io.EOF {
		return malformed("", doc)
	}
	return nil
}

// malformed returns the error of a document that is no JSON, with the place of its first fault. A
// section is read only once its document is known to be JSON, so doc is the whole document.
func malformed(what string, doc []byte) error {
	c := jsonscan.New(doc)
	c.Skip()
	c.End()
	at, ok := errors.AsType[*jsonscan.Error](c.Err())
	if !ok {
		return fmt.Errorf("%smalformed JSON", what)
	}
	line := 1 + bytes.Count(doc[:min(at.Offset, len(doc))], []byte("\n"))
	return fmt.Errorf("%smalformed JSON at byte %d of the document, in line %d: %s", what, at.Offset, line, at.Reason)
}
