package resume

import (
	"bytes"
	"sync"
	"sync/atomic"
)

// form is what chunks have in common that differ only in their heads, texts and ids. Nearly all
// chunks have the form of the chunk before, and are then read without parsing. Streams share forms,
// which are immutable. No form has anything of one stream, such as its id, in it.
type form struct {
	opening []byte // from the name of choices up to the text, with its first quote
	middle  []byte // from the text's last quote up to the list of ids
	behind  []byte // after the list of ids; nil: the form has no ids
}

const (
	maxForms = 64  // further forms are parsed chunk by chunk
	maxForm  = 512 // bytes of a form
)

// forms are all forms that streams have had so far.
var forms struct {
	adding sync.Mutex
	all    atomic.Pointer[[]*form]
}

// learn returns the form of a chunk, or nil if it has none that another chunk may have.
func learn(c *chunk, data []byte) *form {
	if c.text == (span{}) || c.finished || c.role != (span{}) || c.usage != (span{}) || c.logprobs || c.tool ||
		c.reasoning || c.promptIDs != (span{}) && string(c.promptIDs.of(data)) != "null" {
		return nil
	}
	ids := span{len(data), len(data)}
	if c.listed {
		ids = c.ids
	}
	if ids.from < c.text.to || len(data)-c.choices-(c.text.to-c.text.from)-(ids.to-ids.from) > maxForm {
		return nil
	}
	f := form{opening: data[c.choices : c.text.from+1], middle: data[c.text.to-1 : ids.from]}
	if c.listed {
		f.behind = data[ids.to:]
	}
	if !constant(f.opening[:len(f.opening)-1]) || !constant(f.middle) || !constant(f.behind) {
		return nil
	}
	return f.shared()
}

// constant says whether part, which is a part of a chunk between values, has no value that may
// differ between streams: no string, and no number but zeros.
func constant(part []byte) bool {
	last := byte(0)
	for _, b := range part {
		if b-'1' < 9 || b == '"' && (last == ':' || last == '[') {
			return false
		}
		if b != ' ' {
			last = b
		}
	}
	return true
}

// shared returns the same form from forms, or nil if forms is full. shared takes no lock then.
func (f *form) shared() *form {
	if known := find(f); known != nil {
		return known
	}
	if all := forms.all.Load(); all != nil && len(*all) == maxForms {
		return nil
	}
	forms.adding.Lock()
	defer forms.adding.Unlock()
	known := find(f)
	if known != nil {
		return known
	}
	var all []*form
	if now := forms.all.Load(); now != nil {
		all = *now
	}
	if len(all) == maxForms {
		return nil
	}
	own := &form{bytes.Clone(f.opening), bytes.Clone(f.middle), bytes.Clone(f.behind)}
	more := append(all[:len(all):len(all)], own)
	forms.all.Store(&more)
	return own
}

func find(f *form) *form {
	all := forms.all.Load()
	if all == nil {
		return nil
	}
	for _, known := range *all {
		if bytes.Equal(known.opening, f.opening) && bytes.Equal(known.middle, f.middle) &&
			bytes.Equal(known.behind, f.behind) && (known.behind == nil) == (f.behind == nil) {
			return known
		}
	}
	return nil
}

// match finds the ids in a chunk of this form with that head. ids is zero if the form has none. f
// may be nil.
func (f *form) match(data, head []byte) (ids span, ok bool) {
	if f == nil {
		return ids, false
	}
	n := len(head) + len(f.opening)
	if len(data) < n || string(data[len(head):n]) != string(f.opening) ||
		string(data[:len(head)]) != string(head) {
		return ids, false
	}
	at := len(data)
	if f.behind != nil {
		if ids, ok = f.list(data, n); !ok {
			return span{}, false
		}
		at = ids.from
	}
	end := at - len(f.middle)
	if end < n || string(data[end:at]) != string(f.middle) {
		return span{}, false
	}
	text := data[n:end]
	if bytes.IndexByte(text, '"') >= 0 || len(text) > 0 && text[len(text)-1] == '\\' {
		return span{}, false
	}
	return ids, true
}

// list finds the list of ids before the end of a chunk, not before from.
func (f *form) list(data []byte, from int) (ids span, ok bool) {
	end := len(data) - len(f.behind)
	if end <= from || string(data[end:]) != string(f.behind) || data[end-1] != ']' {
		return ids, false
	}
	for i := end - 2; i >= from; i-- {
		if b := data[i]; b == '[' {
			return span{i, end}, true
		} else if b-'0' > 9 && b != ',' {
			break
		}
	}
	return ids, false
}
