// Package trace reads request traces in the format of Mooncake's public traces, generates traces in
// that format, and expands requests to prompt text.
package trace

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
)

// BlockTokens is the number of prompt tokens that one hash id stands for.
const BlockTokens = 512

// Request is one line of a trace.
type Request struct {
	// Timestamp is the arrival in milliseconds since the trace began.
	Timestamp int64 `json:"timestamp"`
	// InputLength and OutputLength are in tokens.
	InputLength  int `json:"input_length"`
	OutputLength int `json:"output_length"`
	// HashIDs names the blocks of the prompt. Equal ids mean equal text after an equal beginning.
	// The last block may be incomplete.
	HashIDs []int64 `json:"hash_ids"`
	// SystemBlocks is how many leading blocks are the system prompt. SystemBlocks is this project's
	// addition to the format. 0 means that the trace does not give this number.
	SystemBlocks int `json:"system_blocks,omitempty"`
	// Session is the number of the request's session, from 1. Session is this project's addition to
	// the format. 0 means that the trace does not give this number.
	Session int64 `json:"session,omitempty"`
}

// Source yields requests in order of their timestamps, and io.EOF after the last.
type Source interface {
	Next() (Request, error)
}

// Error is a mistake in a trace, with its place.
type Error struct {
	Line   int
	Field  string // empty if the line is not a JSON object
	Reason string
}

// Error returns a text with the line and the field.
func (e *Error) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("trace line %d: %s", e.Line, e.Reason)
	}
	return fmt.Sprintf("trace line %d: %s: %s", e.Line, e.Field, e.Reason)
}

// maxLine is the longest line. A prompt of a million tokens takes about 20 KB.
const maxLine = 4 << 20

// Reader reads a trace of any length, with one JSON object per line, in constant memory. A Reader
// skips blank lines.
type Reader struct {
	lines *bufio.Scanner
	line  int
	last  int64 // the last timestamp
}

// NewReader returns a Reader of r.
func NewReader(r io.Reader) *Reader {
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 64<<10), maxLine)
	return &Reader{lines: s}
}

// Next returns the next request, io.EOF at the end, an *Error for a bad line, or the error of r.
func (r *Reader) Next() (Request, error) {
	for r.lines.Scan() {
		r.line++
		if len(r.lines.Bytes()) > 0 {
			return r.parse(r.lines.Bytes())
		}
	}
	err := r.lines.Err()
	if errors.Is(err, bufio.ErrTooLong) {
		return Request{}, &Error{Line: r.line + 1, Reason: fmt.Sprintf("longer than %d bytes", maxLine)}
	}
	if err != nil {
		return Request{}, fmt.Errorf("trace line %d: %w", r.line+1, err)
	}
	return Request{}, io.EOF
}

func (r *Reader) parse(line []byte) (Request, error) {
	var q Request
	if err := json.Unmarshal(line, &q); err != nil {
		return Request{}, r.jsonError(err)
	}
	if field, reason := q.check(r.last); field != "" {
		return Request{}, &Error{Line: r.line, Field: field, Reason: reason}
	}
	r.last = q.Timestamp
	return q, nil
}

func (r *Reader) jsonError(err error) error {
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) {
		return &Error{Line: r.line, Field: wrongType.Field, Reason: "is a " + wrongType.Value}
	}
	return &Error{Line: r.line, Reason: err.Error()}
}

// check returns an invalid field, and the reason.
func (q *Request) check(previous int64) (field, reason string) {
	blocks := (q.InputLength + BlockTokens - 1) / BlockTokens
	switch {
	case q.Timestamp < 0:
		return "timestamp", "is negative"
	case q.Timestamp < previous:
		return "timestamp", fmt.Sprintf("%d comes after %d", q.Timestamp, previous)
	case q.InputLength <= 0:
		return "input_length", "is missing or not positive"
	case q.OutputLength < 0:
		return "output_length", "is negative"
	case len(q.HashIDs) != blocks:
		return "hash_ids", fmt.Sprintf("has %d ids, %d tokens need %d", len(q.HashIDs), q.InputLength, blocks)
	case q.SystemBlocks < 0 || q.SystemBlocks > len(q.HashIDs):
		return "system_blocks", fmt.Sprintf("is %d of %d blocks", q.SystemBlocks, len(q.HashIDs))
	case q.Session < 0:
		return "session", "is negative"
	}
	for _, id := range q.HashIDs {
		if id < 0 {
			return "hash_ids", fmt.Sprintf("has a negative id %d", id)
		}
	}
	return "", ""
}

// Limit returns the first n requests of s; 0: all.
func Limit(s Source, n int) Source {
	if n == 0 {
		return s
	}
	return &limit{s, n}
}

type limit struct {
	Source
	left int
}

func (l *limit) Next() (Request, error) {
	if l.left == 0 {
		return Request{}, io.EOF
	}
	l.left--
	return l.Source.Next()
}

// All yields the remaining requests of s, and in the end the error of s, if it has one.
func All(s Source) iter.Seq2[Request, error] {
	return func(yield func(Request, error) bool) {
		for {
			q, err := s.Next()
			if errors.Is(err, io.EOF) || !yield(q, err) || err != nil {
				return
			}
		}
	}
}

// Write writes the remaining requests of s as JSON lines.
func Write(w io.Writer, s Source) error {
	enc := json.NewEncoder(w)
	for q, err := range All(s) {
		if err == nil {
			err = enc.Encode(q)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
