package scan

import (
	"strconv"

	"github.com/cognitora/dataplane/internal/jsonscan"
)

// These are the marks of the canonical text; see the package documentation.
const (
	markMessage  = 0xFF
	markText     = 0xFE
	markMedia    = 0xFD
	markName     = 0xFC
	markID       = 0xFB
	markCall     = 0xFA
	markScalar   = 0xF9
	markThinking = 0xF8
	markArray    = 0xF7
	markClose    = 0xF6
	markObject   = 0xF5
	markMember   = 0xC1
	markString   = 0xC0
)

// value appends any JSON value in canonical form.
func (r *Request) value() {
	switch r.c.Kind() {
	case jsonscan.Object:
		r.objectValue()
	case jsonscan.Array:
		start := len(r.Text)
		r.Text = append(r.Text, markArray)
		for ok := r.c.Array(); ok; ok = r.c.NextElement() {
			r.root.framing.tokens += framedValue
			r.value()
			r.clip(start)
		}
		r.Text = append(r.Text, markClose)
	case jsonscan.String:
		r.marked(markString)
	case jsonscan.Number:
		r.number()
	default:
		r.literalValue()
	}
}

func (r *Request) objectValue() {
	base := len(r.order.members)
	r.Text = append(r.Text, markObject)
	for ok := r.c.Object(); ok; ok = r.c.NextMember() {
		start := len(r.Text)
		r.root.framing.tokens += framedMember
		r.memberName()
		nameEnd := len(r.Text)
		r.value()
		r.pushMember(start, nameEnd)
	}
	r.sortMembers(base)
	r.Text = append(r.Text, markClose)
}

func (r *Request) literalValue() {
	start := r.c.Pos()
	switch kind := r.c.Kind(); {
	case kind == jsonscan.Null:
		r.c.Literal()
		r.Text = append(append(r.Text, markScalar), "null"...)
	case kind == jsonscan.Bool:
		r.Text = strconv.AppendBool(append(r.Text, markScalar), r.c.Literal())
	default:
		r.c.Fail(start, "expected a value")
	}
}

// appendNumber appends a number in canonical form.
func appendNumber(dst, number []byte) []byte {
	if v, ok := jsonscan.Int(number); ok && v > -(1<<53) && v < 1<<53 {
		return strconv.AppendInt(dst, v, 10)
	}
	if len(number) > 32 {
		return append(dst, number...)
	}
	for _, b := range number {
		if b == '.' || b|0x20 == 'e' {
			f, err := strconv.ParseFloat(string(number), 64)
			if err != nil {
				break
			}
			return strconv.AppendFloat(dst, f, 'g', -1, 64)
		}
	}
	return append(dst, number...)
}

// marked appends a mark and the string at the cursor.
func (r *Request) marked(mark byte) {
	r.Text = append(r.Text, mark)
	r.text()
}

// optional appends a mark and the string at the cursor. For null optional appends nothing.
func (r *Request) optional(mark byte) {
	switch r.c.Kind() {
	case jsonscan.String:
		r.marked(mark)
	case jsonscan.Null:
		r.c.Literal()
	default:
		r.wrong("a string")
	}
}
