package nvext

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/jsonscan"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/scan"
)

// These constants bound an Ext. A request beyond them is refused.
const (
	maxEntries  = 1024 // entries of a list, except token_data, of which nothing is kept
	maxTaints   = 64   // required taints, and preferred ones
	maxExperts  = 256  // entries of experts
	maxExpert   = 32   // bytes of an expert's name
	maxText     = 1024 // bytes of a text, as the body spells it
	maxSalt     = 64 << 10
	maxWorkerID = 256
	maxNumber   = 64 // bytes of a number
	maxLevels   = 3  // objects within objects
	maxNamed    = 64 // bytes of an unknown key in an error
)

// Parse reads the member nvext at a span of a scanned body: an object, or null, for which Parse
// returns nil. The error is a *scan.Error.
func Parse(body []byte, at scan.Span) (*Ext, error) {
	r := reader{x: &Ext{}, index: -1}
	r.c.Resume(body, at.Start, 1) // Scan has checked the syntax
	if r.c.Kind() == jsonscan.Null {
		return nil, nil
	}
	r.member = "nvext"
	if r.object(rootFields); r.err != nil {
		return nil, r.err
	}
	return r.x, nil
}

// reader reads one nvext or one header into x. A failure moves the cursor to the end, so that every
// loop ends.
type reader struct {
	c   jsonscan.Cursor
	x   *Ext
	err *scan.Error

	// These fields say where the reader is, for errors.
	objects [maxLevels]string // the open objects
	depth   int
	member  string // of the innermost object; empty: the object itself; or a header's name
	index   int    // in a list; -1: not in a list

	header []byte                   // value of the header that is read; nil: not a header
	weight policy.Optional[float64] // overlap_score_weight, an older name of prefill_load_scale
}

// name returns the place of the reader, such as nvext.router.moe_query.experts[2].
func (r *reader) name() string {
	s := strings.Join(r.objects[:r.depth], ".")
	if s != "" && r.member != "" {
		s += "."
	}
	s += r.member
	if r.index >= 0 {
		s += "[" + strconv.Itoa(r.index) + "]"
	}
	return s
}

// fail ends the reading because of the value at the given offset.
func (r *reader) fail(offset int, code, message string) {
	if r.err == nil {
		r.err = &scan.Error{Code: code, Param: r.name(), Message: "`" + r.name() + "` " + message, Offset: offset}
	}
	r.c.Fail(offset, "not acceptable")
}

// wrong ends the reading because the value at the cursor has the wrong type.
func (r *reader) wrong(want string) {
	kind := r.c.Kind()
	if want = "must be " + want; r.header == nil {
		want += ", not " + kind.String()
	}
	r.fail(r.c.Pos(), scan.CodeType, want)
}

// members calls each for the members of an object. key is the name as the body spells it.
func (r *reader) members(each func(at int, key []byte)) {
	if r.c.Kind() != jsonscan.Object {
		r.wrong("an object")
		return
	}
	outer := r.member
	r.objects[r.depth] = outer
	r.depth++
	for ok := r.c.Object(); ok && r.err == nil; ok = r.c.NextMember() {
		r.member = ""
		at := r.c.Pos()
		each(at, r.c.RawKey())
	}
	r.depth--
	r.member = outer
}

// object reads an object with the given fields, at most 64.
func (r *reader) object(fields []field) {
	seen := uint64(0)
	r.members(func(at int, key []byte) {
		i := slices.IndexFunc(fields, func(f field) bool { return jsonscan.Spells(key, f.name) })
		if i < 0 {
			r.unknown(at, key, fields)
			return
		}
		r.member = fields[i].name
		if seen&(1<<i) != 0 {
			r.fail(at, scan.CodeValue, "appears twice; send it once")
			return
		}
		seen |= 1 << i
		r.value(&fields[i])
	})
}

// value reads the value of a member, unless it is null.
func (r *reader) value(f *field) {
	if r.c.Kind() == jsonscan.Null {
		r.c.Literal()
		return
	}
	if f.privileged && r.x.Privileged == "" {
		r.x.Privileged = r.name()
	}
	f.read(r)
}

// unknown refuses a key that is none of the fields.
func (r *reader) unknown(at int, key []byte, fields []field) {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	key = key[:min(len(key), maxNamed)]
	near := r.nearest(string(key), names)
	if r.member = string(key); near != "" {
		r.fail(at, scan.CodeUnknown, "is not known; did you mean `"+near+"`?")
		return
	}
	r.fail(at, scan.CodeUnknown, "is not known; known are "+strings.Join(names, ", "))
}

// nearest returns the name that key may stand for, or "". Case does not count, and neither does
// the name of the open object before a name, as in router_temperature.
func (r *reader) nearest(key string, names []string) string {
	short := slices.Clone(names)
	if r.depth > 0 {
		for i, name := range names {
			short[i] = strings.TrimPrefix(name, r.objects[r.depth-1]+"_")
		}
	}
	near := config.Nearest(strings.ToLower(key), slices.Concat(names, short))
	if i := slices.Index(short, near); i >= 0 {
		return names[i]
	}
	return near
}

// flag reads true or false.
func (r *reader) flag() bool {
	if r.c.Kind() != jsonscan.Bool {
		r.wrong("true or false")
		return false
	}
	return r.c.Literal()
}

// number reads a number for which ok is true. want describes those numbers.
func (r *reader) number(want string, ok func(float64) bool) float64 {
	if r.c.Kind() != jsonscan.Number {
		r.wrong(want)
		return 0
	}
	at := r.c.Pos()
	digits := r.c.Number()
	if len(digits) > maxNumber {
		r.fail(at, scan.CodeValue, "must be "+want+", in at most "+strconv.Itoa(maxNumber)+" characters")
		return 0
	}
	v, err := strconv.ParseFloat(string(digits), 64)
	if err != nil || !ok(v) {
		r.fail(at, scan.CodeValue, "must be "+want)
		return 0
	}
	return v
}

// finite reads any number.
func (r *reader) finite() float64 {
	return r.number("a number", func(float64) bool { return true })
}

// positive reads a number of 0 or more.
func (r *reader) positive() float64 {
	return r.number("a number of 0 or more", func(v float64) bool { return v >= 0 })
}

// factor reads a number from 0 to a million, the range of the policy's settings.
func (r *reader) factor() float64 {
	return r.number("a number from 0 to 1000000", func(v float64) bool { return v >= 0 && v <= 1e6 })
}

// share reads a number from 0 to 1.
func (r *reader) share() float64 {
	return r.number("a number from 0 to 1", func(v float64) bool { return v >= 0 && v <= 1 })
}

// milliseconds reads a number above 0.
func (r *reader) milliseconds() float64 {
	return r.number("a number of milliseconds above 0", func(v float64) bool { return v > 0 })
}

// whole reads a whole number from low to high.
func (r *reader) whole(low, high int64) int64 {
	want := "a whole number from " + strconv.FormatInt(low, 10) + " to " + strconv.FormatInt(high, 10)
	if r.c.Kind() != jsonscan.Number {
		r.wrong(want)
		return 0
	}
	at := r.c.Pos()
	v, ok := r.c.Int()
	if !ok || v < low || v > high {
		r.fail(at, scan.CodeValue, "must be "+want)
		return 0
	}
	return v
}

// count reads a whole number that fits 32 bits without a sign.
func (r *reader) count() uint32 { return uint32(r.whole(0, math.MaxUint32)) }

// text reads a text of at least 1 and at most the given number of bytes.
func (r *reader) text(most int) []byte {
	if r.c.Kind() != jsonscan.String {
		r.wrong("a string")
		return nil
	}
	at := r.c.Pos()
	raw, escaped := r.c.String()
	switch {
	case len(raw) > most:
		r.fail(at, scan.CodeTooLong, "is longer than "+strconv.Itoa(most)+" bytes; send a shorter one")
		return nil
	case len(raw) == 0:
		r.fail(at, scan.CodeValue, "is empty; leave it out")
		return nil
	case escaped:
		return jsonscan.AppendUnescaped(nil, raw)
	}
	return bytes.Clone(raw)
}

// list calls each for the entries of a list, at most maxEntries. of describes the entries.
func (r *reader) list(of string, each func()) { r.listUpTo(maxEntries, of, each) }

// listUpTo is list with another bound.
func (r *reader) listUpTo(most int, of string, each func()) {
	if r.c.Kind() != jsonscan.Array {
		r.wrong("a list of " + of)
		return
	}
	at := r.c.Pos()
	n := 0
	for ok := r.c.Array(); ok && r.err == nil; ok = r.c.NextElement() {
		if n == most {
			r.tooMany(at, most)
			return
		}
		r.index = n
		each()
		r.index = -1
		n++
	}
}

func (r *reader) tooMany(at, most int) {
	r.fail(at, scan.CodeTooLarge, "has more than "+strconv.Itoa(most)+" entries; send fewer")
}
