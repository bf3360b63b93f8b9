package scan

import (
	"errors"

	"github.com/cognitora/dataplane/internal/jsonscan"
)

// Edits are changes to the members at the root of one request's body. Edits apply in the order of
// the calls, so the last edit of a member counts. Edits decode and copy nothing of the body. The
// bytes of all other members stay unchanged.
//
// A body may have several members of one name; engines read the last one. Names may contain
// escapes. After an edit the body has at most one member of the name.
//
// Call Reset first, then Model, Salt, IncludeUsage and the edits by name, then Segments. A reused
// Edits does not allocate. An Edits is not safe for concurrent use, but several Edits may edit one
// body: see Request.Index.
type Edits struct {
	r       *Request
	body    []byte
	changes []change // at most maxChanges, of different names
	named   bool     // some edit is by name, so the scan may not know all places of that member
	err     error
	cuts    []cut  // of the changes, sorted by place
	scratch []byte // bytes added to the body, except long values
}

const (
	maxChanges = 32  // changes of one Edits; a further one fails
	smallValue = 256 // bytes; a value up to this size is copied instead of becoming a segment
)

// change is the last edit of one member.
type change struct {
	name  string
	value []byte
	kind  changeKind
	met   bool // the body has the member
}

type changeKind uint8

const (
	setTo  changeKind = iota // sets the member to value
	remove                   // removes all members of the name
	report                   // sets include_usage to true in the member's object
)

// cut replaces body[at.Start:at.End] with with.
type cut struct {
	at   Span
	with []byte
}

var errChanges = errors.New("one body takes no more than 32 edits")

// Reset forgets all edits and begins edits of body. r is the scan of body. body and r are borrowed
// until the next Reset. Reset(nil, nil) releases body and scan.
func (e *Edits) Reset(r *Request, body []byte) {
	clear(e.changes[:cap(e.changes)])
	clear(e.cuts[:cap(e.cuts)])
	e.r, e.body, e.err, e.named = r, body, nil, false
	e.changes, e.cuts, e.scratch = e.changes[:0], e.cuts[:0], kept(e.scratch, 1)
}

// Err returns the first failure of an edit. An edit fails in a body other than the scanned one, and
// beyond 32 members. In a form every edit by name fails. Model and IncludeUsage do not fail if they
// come first.
func (e *Edits) Err() error { return e.err }

// Model sets the model to name. Model works in a form too.
func (e *Edits) Model(name string) {
	start := len(e.scratch)
	if e.r.form {
		e.scratch = append(e.scratch, name...)
	} else {
		e.scratch = jsonscan.AppendQuoted(e.scratch, name)
	}
	e.change(rootNames[rootModel], setTo, e.added(start))
}

// Salt sets cache_salt to salt. Salt changes nothing in a form.
func (e *Edits) Salt(salt []byte) {
	if e.r.form {
		return
	}
	start := len(e.scratch)
	e.scratch = jsonscan.AppendQuoted(e.scratch, salt)
	e.change(rootNames[rootCacheSalt], setTo, e.added(start))
}

// IncludeUsage sets stream_options.include_usage to true, and continuous_usage_stats to false if
// present. IncludeUsage changes nothing in a form, or if include_usage is already true.
// IncludeUsage reads the body's own stream_options, so call it before edits of them by name.
func (e *Edits) IncludeUsage() {
	name := rootNames[rootStreamOptions]
	switch o := &e.r.root.options; {
	case e.r.IncludeUsage || e.r.form:
	case o.kind == optionsAbsent || o.kind == optionsNull:
		e.change(name, setTo, usageObject)
	default:
		e.change(name, report, nil)
	}
}

// Set sets the member of that name to value, which must be JSON. The value is borrowed until the
// next Reset.
func (e *Edits) Set(name string, value []byte) {
	if e.index() {
		e.change(name, setTo, value)
	}
}

// Default calls Set if the body has no member of that name, or null.
func (e *Edits) Default(name string, value []byte) {
	if now := e.value(name); now == nil || string(now) == "null" {
		e.Set(name, value)
	}
}

// Replace calls Set if the body has a member of that name, even null.
func (e *Edits) Replace(name string, value []byte) {
	if e.value(name) != nil {
		e.Set(name, value)
	}
}

// Remove removes the member of that name.
func (e *Edits) Remove(name string) {
	if e.value(name) != nil {
		e.change(name, remove, nil)
	}
}

// index finds the places of all members. index returns true if no edit has failed.
func (e *Edits) index() bool {
	if err := e.r.Index(e.body); err != nil && e.err == nil {
		e.err = err
	}
	e.named = true
	return e.err == nil
}

// value returns the value of a member after the edits so far, or nil.
func (e *Edits) value(name string) []byte {
	if !e.index() {
		return nil
	}
	for i := range e.changes {
		if c := &e.changes[i]; c.name == name && c.kind != report {
			return c.value
		}
	}
	return e.r.Find(e.body, name)
}

func (e *Edits) change(name string, kind changeKind, value []byte) {
	for i := range e.changes {
		if e.changes[i].name == name {
			e.changes[i] = change{name: name, kind: kind, value: value}
			return
		}
	}
	if len(e.changes) == maxChanges && e.err == nil {
		e.err = errChanges
	}
	if e.err == nil {
		e.changes = append(e.changes, change{name: name, kind: kind, value: value})
	}
}

// added returns the bytes appended to scratch since start. Bytes returned before stay in the old
// buffer when scratch grows.
func (e *Edits) added(start int) []byte { return e.scratch[start:len(e.scratch):len(e.scratch)] }

// Segments appends the segments of the edited body to dst. The segments' concatenation is the
// edited body. The segments alias the body, the values and the memory of e, and are valid until the
// next Reset. Segments appends nothing if an edit has failed.
func (e *Edits) Segments(dst [][]byte) [][]byte {
	if e.err != nil {
		return dst
	}
	stay := e.cut()
	from := 0
	if e.adds() {
		from = e.r.root.membersAt
		dst = e.additions(append(dst, e.body[:from]), stay)
	}
	for _, c := range e.cuts {
		dst = appendSegment(dst, e.body[from:c.at.Start])
		dst = appendSegment(dst, c.with)
		from = c.at.End
	}
	return appendSegment(dst, e.body[from:])
}

func appendSegment(dst [][]byte, s []byte) [][]byte {
	if len(s) == 0 {
		return dst
	}
	return append(dst, s)
}

// cut makes the cuts. stay says that some members of the body stay.
func (e *Edits) cut() (stay bool) {
	if len(e.cuts) > 0 {
		clear(e.cuts)
		e.cuts = e.cuts[:0]
	}
	for i := range e.changes {
		e.changes[i].met = false
	}
	if e.named {
		return e.cutNamed()
	}
	for i := range e.changes { // only Model, Salt and IncludeUsage; the scan knows the places of their members
		c, at := &e.changes[i], e.r.root.options.at
		switch c.name {
		case rootNames[rootModel]:
			at = e.r.root.model
		case rootNames[rootCacheSalt]:
			at = e.r.root.salt
		}
		if at != (Span{}) {
			e.meet(c, at)
		}
	}
	return !e.r.root.empty
}

// cutNamed is cut for edits by name. A member is removed together with the comma before it, or with
// the comma after it if no member before it stays.
func (e *Edits) cutNamed() (stay bool) {
	leading := -1 // beginning of the removed members before the first remaining member
	before := 0   // end of the preceding value
	e.r.members(e.body, func(m entry) bool {
		c := e.changeOf(&m)
		switch goes := c != nil && (c.kind == remove || c.met); {
		case goes && stay:
			e.replace(Span{before, m.value.End}, nil)
		case goes && leading < 0:
			leading = m.name.Start
		case !goes:
			if leading >= 0 {
				e.replace(Span{leading, m.name.Start}, nil)
				leading = -1
			}
			if stay = true; c != nil {
				e.meet(c, m.value)
			}
		}
		before = m.value.End
		return true
	})
	if leading >= 0 {
		e.replace(Span{leading, before}, nil)
	}
	return stay
}

// changeOf returns the change of a member, or nil.
func (e *Edits) changeOf(m *entry) *change {
	for i := range e.changes {
		if c := &e.changes[i]; m.spells(e.body, c.name) {
			return c
		}
	}
	return nil
}

// meet applies change c to the member whose value is at the span value.
func (e *Edits) meet(c *change, value Span) {
	if c.met = true; c.kind == setTo {
		e.replace(value, c.value)
		return
	}
	o := &e.r.root.options
	if o.continuous != (Span{}) { // counts only with include_usage, which the body does not set
		e.replace(o.continuous, falseValue)
	}
	switch {
	case o.usage != (Span{}):
		e.replace(o.usage, trueValue)
	case o.kind == optionsEmpty:
		e.replace(Span{o.membersAt, o.membersAt}, usageOnlyMember)
	default:
		e.replace(Span{o.membersAt, o.membersAt}, usageMember)
	}
}

var (
	usageObject     = []byte(`{"include_usage":true}`)
	usageMember     = []byte(`"include_usage":true,`)
	usageOnlyMember = []byte(`"include_usage":true`)
	trueValue       = []byte(`true`)
	falseValue      = []byte(`false`)
)

// replace adds a cut. The cuts are sorted by place.
func (e *Edits) replace(at Span, with []byte) {
	e.cuts = append(e.cuts, cut{at, with})
	i := len(e.cuts) - 1
	for ; i > 0 && e.cuts[i-1].at.Start > at.Start; i-- {
		e.cuts[i] = e.cuts[i-1]
	}
	e.cuts[i] = cut{at, with}
}

// adds says whether some member to set is missing in the body.
func (e *Edits) adds() bool {
	for i := range e.changes {
		if e.changes[i].adds() {
			return true
		}
	}
	return false
}

func (c *change) adds() bool { return c.kind == setTo && !c.met }

// additions appends the missing members, which come first in the root. stay says that members
// follow.
func (e *Edits) additions(dst [][]byte, stay bool) [][]byte {
	start, comma := len(e.scratch), false
	for i := range e.changes {
		c := &e.changes[i]
		if !c.adds() {
			continue
		}
		if comma {
			e.scratch = append(e.scratch, ',')
		}
		comma = true
		e.scratch = append(jsonscan.AppendQuoted(e.scratch, c.name), ':')
		if len(c.value) <= smallValue {
			e.scratch = append(e.scratch, c.value...)
			continue
		}
		dst = append(dst, e.added(start), c.value)
		start = len(e.scratch)
	}
	if stay {
		e.scratch = append(e.scratch, ',')
	}
	return appendSegment(dst, e.added(start))
}
