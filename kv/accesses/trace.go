// Package accesses records which blocks were requested and stored, and reads these recordings.
// cgn-kvcached --trace writes recordings, and cgn-ctl kv trace replays them.
package accesses

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
)

// Trace is a sequence of accesses. The blocks of a Trace are numbered from 0 on.
type Trace struct {
	ends  []int    // index in keys of the end of each request
	store []bool   // true: the request stored blocks
	keys  []uint32 // block numbers of all requests
	names map[int64]uint32
	bytes uint64 // total length of the sized blocks
	sized uint64 // number of blocks whose length the trace tells
}

// Bounds of a trace.
const (
	maxLine  = 4 << 20 // bytes of one line
	maxTotal = 1 << 28 // block numbers in one trace
)

// Error says at which line a trace is wrong, and why.
type Error struct {
	Line   int
	Reason string
}

func (e *Error) Error() string { return fmt.Sprintf("trace line %d: %s", e.Line, e.Reason) }

// Line is one line of a trace, a JSON object. Mooncake's public traces can be read; their other
// fields are ignored.
type Line struct {
	Timestamp int64   `json:"timestamp"` // ms since the recording began or was continued
	HashIDs   []int64 `json:"hash_ids"`  // the blocks of one prompt in order, or single blocks
	// Op is put if the blocks were stored. Op is get or empty if the blocks were requested. A put
	// of a block that is already there does not count as a use of the block.
	Op string `json:"op,omitempty"`
	// Bytes is the total length of the blocks; 0: not known.
	Bytes int64 `json:"bytes,omitempty"`
}

// TornError says that a trace ends in the middle of a line. The last line is torn while a daemon
// writes the trace, and after a crash.
type TornError struct{ Line int }

func (e *TornError) Error() string {
	return fmt.Sprintf("line %d, the last, is not whole and left out", e.Line)
}

// Read reads a trace with one Line per line and skips blank lines. If the error is a *TornError,
// Read returns the lines before the torn one. With any other error Read returns no trace.
func Read(r io.Reader) (*Trace, error) {
	s := &lineReader{in: bufio.NewReaderSize(r, 64<<10)}
	t := NewTrace()
	for {
		text, whole, err := s.next()
		if errors.Is(err, io.EOF) {
			return t, nil
		}
		if err != nil {
			return nil, err
		}
		if len(text) == 0 {
			continue
		}
		var l Line
		if err := json.Unmarshal(text, &l); err != nil {
			if !whole && s.line > 1 {
				return t, &TornError{s.line}
			}
			return nil, &Error{s.line, plainly(err)}
		}
		if reason := l.check(len(t.keys)); reason != "" {
			return nil, &Error{s.line, reason}
		}
		t.Add(l)
	}
}

// lineReader reads lines of at most maxLine bytes.
type lineReader struct {
	in   *bufio.Reader
	line int
	text []byte
}

// next returns a line without its newline. whole is false if the newline is missing. The text is
// valid until the next call.
func (r *lineReader) next() (text []byte, whole bool, err error) {
	r.text, r.line = r.text[:0], r.line+1
	for {
		piece, err := r.in.ReadSlice('\n')
		if len(r.text)+len(piece) > maxLine {
			return nil, false, &Error{r.line, fmt.Sprintf("longer than %d bytes", maxLine)}
		}
		r.text = append(r.text, piece...)
		switch {
		case err == nil:
			return bytes.TrimRight(r.text, "\r\n"), true, nil
		case errors.Is(err, io.EOF) && len(r.text) > 0:
			return r.text, false, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, false, err
		}
	}
}

// plainly describes a JSON error without the names of Go types.
func plainly(err error) string {
	var kind *json.UnmarshalTypeError
	if !errors.As(err, &kind) {
		return "not a JSON object: " + err.Error()
	}
	if kind.Field == "" {
		return "not a JSON object, but " + kind.Value
	}
	wanted := map[string]string{"timestamp": "a whole number of milliseconds", "hash_ids": "a list of whole numbers",
		"op": "get or put", "bytes": "a whole number"}
	return fmt.Sprintf("%s is %s; it must be %s", kind.Field, kind.Value, cmp.Or(wanted[kind.Field],
		wanted["hash_ids"]))
}

func (l *Line) check(before int) string {
	switch {
	case len(l.HashIDs) == 0:
		return "hash_ids is missing or empty"
	case l.Op != "" && l.Op != "get" && l.Op != "put":
		return fmt.Sprintf("op is %.20q, not get or put", l.Op)
	case l.Bytes < 0:
		return "bytes is negative"
	case before+len(l.HashIDs) > maxTotal:
		return fmt.Sprintf("more than %d accesses", maxTotal)
	}
	return ""
}

// NewTrace returns an empty trace.
func NewTrace() *Trace { return &Trace{names: map[int64]uint32{}} }

// Add appends one line.
func (t *Trace) Add(l Line) {
	for _, id := range l.HashIDs {
		key, ok := t.names[id]
		if !ok {
			key = uint32(len(t.names))
			t.names[id] = key
		}
		t.keys = append(t.keys, key)
	}
	t.ends = append(t.ends, len(t.keys))
	t.store = append(t.store, l.Op == "put")
	if l.Bytes > 0 {
		t.bytes, t.sized = t.bytes+uint64(l.Bytes), t.sized+uint64(len(l.HashIDs))
	}
}

// Requests is the number of lines.
func (t *Trace) Requests() int { return len(t.ends) }

// Distinct is the number of different blocks, the working set.
func (t *Trace) Distinct() int { return len(t.names) }

// BlockBytes is the mean length of a block; 0 where the trace has none.
func (t *Trace) BlockBytes() int64 {
	if t.sized == 0 {
		return 0
	}
	return int64(t.bytes / t.sized)
}

// All yields the blocks of each line. The boolean tells whether the line stored them. The keys are
// valid until the next line is added.
func (t *Trace) All() iter.Seq2[bool, []uint32] {
	return func(yield func(bool, []uint32) bool) {
		from := 0
		for i, end := range t.ends {
			if !yield(t.store[i], t.keys[from:end]) {
				return
			}
			from = end
		}
	}
}
