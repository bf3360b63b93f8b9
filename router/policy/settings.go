package policy

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// The tags of a setting's field describe the setting:
//
//	json   its key in a document
//	range  the allowed numbers, LOWEST..HIGHEST
//	oneof  the allowed words, separated by |
//	most   the most entries of a list
//	older  an older key
//
// A setting of a pointer type may be unset.

// noObject is the value of a setting that should be a JSON object.
const noObject = "not a JSON object"

// FieldError reports a setting whose value is not allowed.
type FieldError struct {
	Field, Value, Allowed string
}

func (e *FieldError) Error() string {
	if e.Value == noObject {
		return fmt.Sprintf("%s: %s, allowed: %s", e.Field, e.Value, e.Allowed)
	}
	return fmt.Sprintf("%s: %s is refused, allowed: %s", e.Field, e.Value, e.Allowed)
}

// Validate reports every setting whose value is not allowed, NaN included.
func (p *Policy) Validate() error {
	if errs := p.faults(); len(errs) > 0 {
		return fmt.Errorf("policy: %w", errors.Join(errs...))
	}
	return nil
}

func (p *Policy) faults() (errs []error) {
	walk("", reflect.ValueOf(p).Elem(), func(name string, f reflect.StructField, v reflect.Value) {
		if v.IsValid() && !allows(f, number(f, v)) {
			errs = append(errs, &FieldError{name, fmt.Sprint(v), allowed(f)})
		}
	})
	return append(errs, p.conflicts()...)
}

// conflicts reports settings that are not allowed together.
func (p *Policy) conflicts() (errs []error) {
	if w := &p.Score.Weights; w.KV == 0 && w.Load == 0 && w.Power == 0 && w.Capacity == 0 {
		errs = append(errs, &FieldError{
			"score.weights", "all 0", "one of kv, load, power and capacity above 0",
		})
	}
	if w := &p.Predicted; w.First == 0 && w.Others == 0 { // First counts Wait too
		errs = append(errs, &FieldError{
			"predicted", "first and others both 0", "one of them above 0, such as first at its default, 12",
		})
	}
	if p.Cost.TrackOutputBlocks && !p.Cost.TrackActiveBlocks {
		errs = append(errs, &FieldError{
			"cost.track_output_blocks", "true", "false, or true with cost.track_active_blocks",
		})
	}
	if err := p.PrefillLoadModel.fault(); err != nil {
		errs = append(errs, err)
	}
	return errs
}

// Setting is one setting of a policy. Its name is the path of its keys in a document.
type Setting struct {
	Name  string
	Value any
}

// Settings returns the settings of p that have an effect: not those of other modes, nor those that
// another setting leaves without one. ofBooks are among them in every mode, if they differ from
// their defaults.
func (p *Policy) Settings() (all []Setting) {
	usual := defaults()
	walk("", reflect.ValueOf(p).Elem(), func(name string, _ reflect.StructField, v reflect.Value) {
		if v.IsValid() && (p.counts(name) || slices.Contains(ofBooks, name) && usual[name] != v.Interface()) {
			all = append(all, Setting{name, v.Interface()})
		}
	})
	return all
}

// Idle lists the settings of p that differ from their defaults and have no effect, because another
// mode uses them, or because of another setting of the mode. A list of entries counts as one
// setting.
func (p *Policy) Idle() (names []string) {
	usual := defaults()
	walk("", reflect.ValueOf(p).Elem(), func(name string, _ reflect.StructField, v reflect.Value) {
		if !v.IsValid() || p.counts(name) || slices.Contains(ofBooks, name) || usual[name] == v.Interface() {
			return
		}
		if name, _, _ = strings.Cut(name, "["); !slices.Contains(names, name) {
			names = append(names, name)
		}
	})
	return names
}

// defaults returns the default of each setting that has one.
func defaults() map[string]any {
	all := map[string]any{}
	walk("", reflect.ValueOf(Default()).Elem(), func(name string, _ reflect.StructField, v reflect.Value) {
		if v.IsValid() {
			all[name] = v.Interface()
		}
	})
	return all
}

// counts says whether the setting with the given name has an effect with the modes of p.
func (p *Policy) counts(name string) bool {
	section, _, nested := strings.Cut(name, ".")
	switch {
	case strings.HasPrefix(name, "prefill_load_model.table"):
		return p.PrefillLoadModel.Mode == Modelled
	case name == "predicted.wait": // late, the other part of the cost that counts wait, needs a target
		return p.Mode == Predicted && (p.Predicted.First > 0 || p.TTFTSloMs > 0)
	case name == "predicted.explore":
		return p.Mode == Predicted && p.Predicted.Learn
	case name == "ttft_slo_ms":
		return p.Mode == Predicted
	case name == "score.tiers.host", name == "score.tiers.disk":
		return p.Mode == Score || p.Mode == Predicted
	}
	return !nested || section == p.Mode.String() || !slices.Contains(ModeNames(), section)
}

// ofBooks are the settings of mode cost that every mode's load books follow.
var ofBooks = []string{"cost.assume_kv_reuse", "cost.track_prefill_tokens", "cost.track_output_blocks"}

// walk calls fn for each setting of v and its sections, in the order of the fields. at is v's name.
// The value of an unset setting is the zero Value.
func walk(at string, v reflect.Value, fn func(name string, f reflect.StructField, v reflect.Value)) {
	for f := range v.Type().Fields() {
		name, value := join(at, keyOf(f)), v.FieldByIndex(f.Index)
		switch f.Type.Kind() {
		case reflect.Struct:
			walk(name, value, fn)
		case reflect.Slice:
			for i := range value.Len() {
				walk(fmt.Sprintf("%s[%d]", name, i), value.Index(i), fn)
			}
		default:
			fn(name, f, reflect.Indirect(value))
		}
	}
}

func keyOf(f reflect.StructField) string {
	key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return key
}

func keysOf(sections []section) (keys []string) {
	for _, s := range sections {
		keys = append(keys, keysIn(s.fields.Type())...)
	}
	return keys
}

func keysIn(t reflect.Type) (keys []string) {
	for f := range t.Fields() {
		keys = append(keys, keyOf(f))
	}
	return keys
}

func join(section, key string) string {
	if section == "" {
		return key
	}
	return section + "." + key
}

// number returns the value of setting f as a number: for a word, its place among the allowed ones.
func number(f reflect.StructField, v reflect.Value) float64 {
	switch v.Kind() {
	case reflect.String:
		return float64(slices.Index(words(f), v.String()))
	case reflect.Float64:
		return v.Float()
	case reflect.Int:
		return float64(v.Int())
	case reflect.Uint8:
		return float64(v.Uint())
	}
	return 0
}

// kindOf returns the kind of a setting's value.
func kindOf(f reflect.StructField) reflect.Kind {
	if f.Type.Kind() == reflect.Pointer {
		return f.Type.Elem().Kind()
	}
	return f.Type.Kind()
}

// allows says whether v is an allowed value of the setting.
func allows(f reflect.StructField, v float64) bool {
	switch kind := kindOf(f); {
	case kind == reflect.Bool:
		return true
	case kind == reflect.String:
		return v >= 0
	case kind == reflect.Uint8:
		return v < float64(len(modes))
	case kind == reflect.Int && v != math.Trunc(v):
		return false
	}
	low, high, _ := strings.Cut(f.Tag.Get("range"), "..")
	return v >= parsed(low) && v <= parsed(high)
}

// words returns the allowed words of a setting.
func words(f reflect.StructField) []string { return strings.Split(f.Tag.Get("oneof"), "|") }

// parsed returns the number in a tag.
func parsed(text string) float64 {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		panic(err) // a mistake in a tag
	}
	return v
}

// allowed describes the allowed values of the setting.
func allowed(f reflect.StructField) string {
	text := "a number from "
	switch kindOf(f) {
	case reflect.Bool:
		return "true or false"
	case reflect.Uint8:
		return allModes()
	case reflect.String:
		return strings.Join(words(f), ", ")
	case reflect.Slice:
		return "a list of at most " + f.Tag.Get("most") + " objects of " + strings.Join(keysIn(f.Type.Elem()), ", ")
	case reflect.Int:
		text = "a whole number from "
	}
	return text + strings.Replace(f.Tag.Get("range"), "..", " to ", 1)
}
