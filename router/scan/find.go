package scan

import (
	"errors"

	"github.com/cognitora/dataplane/internal/jsonscan"
)

// Find returns the value at a path of member names in a JSON document, in the document's spelling:
// Find(doc, "nvext", "agent_hints", "osl"). Find returns nil if the path does not exist, or if the
// path leads through anything but objects. Of several members with one name the last one counts, as
// in the engines' decoders. The value aliases doc. The error is a *jsonscan.Error about the
// document.
func Find(doc []byte, path ...string) ([]byte, error) {
	c := jsonscan.New(doc)
	for ; len(path) > 0 && c.Kind() == jsonscan.Object; path = path[1:] {
		value := Span{}
		for ok := c.Object(); ok; ok = c.NextMember() {
			named := jsonscan.Spells(c.RawKey(), path[0])
			c.Kind()
			start := c.Pos()
			if c.Skip(); named {
				value = Span{start, c.Pos()}
			}
		}
		c.End()
		if value == (Span{}) || c.Failed() {
			return nil, c.Err()
		}
		doc = doc[value.Start:value.End]
		c.Reset(doc, 0)
	}
	if len(path) == 0 {
		return doc, nil
	}
	c.Skip()
	c.End()
	return nil, c.Err()
}

// index holds the places of a root object's members.
type index struct {
	entries []entry // the first members, at most maxEntries
	state   indexState
	rest    int // beginning of the members behind the last entry; 0: there are none
}

type indexState uint8

const (
	notIndexed indexState = iota
	indexed
)

// entry is the place of a member: its name with the quotes, and its value.
type entry struct{ name, value Span }

// maxEntries bounds an index. Each lookup walks over the members beyond maxEntries.
const maxEntries = 256

var (
	errForm = errors.New("a multipart/form-data body has no members to edit but its model")
	errRoot = errors.New("the request body is not the JSON object that was scanned")
)

// Index finds the members at the root of body. r is the scan of body. Index skips the longest part
// of the prompt. A second call does nothing. Find and the edits by name call Index. After Index has
// returned nil, several goroutines may use Find at once, each with an Edits of its own.
func (r *Request) Index(body []byte) error {
	switch {
	case r.form:
		return errForm
	case r.index.state == indexed:
		return nil
	}
	x := &r.index
	x.entries, x.rest = x.entries[:0], 0
	err := r.walk(body, 0, func(e entry) bool {
		if len(x.entries) == maxEntries {
			x.rest = e.name.Start
			return false
		}
		x.entries = append(x.entries, e)
		return true
	})
	if err == nil {
		x.state = indexed
	}
	return err
}

// walk yields the members of body's root, beginning with the name at offset from.
func (r *Request) walk(body []byte, from int, yield func(entry) bool) error {
	c := jsonscan.New(body)
	var ok bool
	if from > 0 {
		c.Resume(body, from, 1)
		ok = true
	} else {
		ok = c.Object()
	}
	for ; ok; ok = c.NextMember() {
		var e entry
		c.Kind()
		e.name.Start = c.Pos()
		raw := c.RawKey()
		e.name.End = e.name.Start + len(raw) + len(`""`)
		c.Kind()
		if e.value.Start = c.Pos(); e.value.Start == r.root.longest.Start && e.value.Start > 0 {
			c.Resume(body, r.root.longest.End, 1)
		} else {
			c.Skip()
		}
		e.value.End = c.Pos()
		if c.Failed() {
			return errRoot
		}
		if !yield(e) {
			return nil
		}
	}
	if c.End(); c.Failed() {
		return errRoot
	}
	return nil
}

// members yields the members of an indexed body in order.
func (r *Request) members(body []byte, yield func(entry) bool) {
	for _, e := range r.index.entries {
		if !yield(e) {
			return
		}
	}
	if r.index.rest > 0 {
		_ = r.walk(body, r.index.rest, yield)
	}
}

// Members yields the name and the value of each member at the root of body, until yield returns
// false. Both are in the body's spelling, the name without its quotes. r is the scan of body.
// Members yields nothing for a form.
func (r *Request) Members(body []byte, yield func(name, value []byte) bool) {
	if r.Index(body) != nil {
		return
	}
	r.members(body, func(e entry) bool {
		return yield(body[e.name.Start+1:e.name.End-1], body[e.value.Start:e.value.End])
	})
}

// spells says whether the member has that name, with or without escapes.
func (e *entry) spells(body []byte, name string) bool {
	return jsonscan.Spells(body[e.name.Start+1:e.name.End-1], name)
}

// Find is the function Find on body, without another walk over the prompt. r is the scan of body.
// Find returns nil for a form.
func (r *Request) Find(body []byte, path ...string) []byte {
	if len(path) == 0 || r.Index(body) != nil {
		return nil
	}
	var value []byte
	r.members(body, func(e entry) bool {
		if e.spells(body, path[0]) {
			value = body[e.value.Start:e.value.End]
		}
		return true
	})
	if value != nil {
		value, _ = Find(value, path[1:]...)
	}
	return value
}
