package load

import (
	"bytes"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/perf/instant"
)

// sink counts the events of streams. Several connections share a sink.
type sink struct {
	Want     int          // required tokens of each stream
	Tokens   atomic.Int64 // tokens that have arrived
	Delay    *Histogram   // time from the engine's stamp to arrival, while Counting; nil: not measured
	Counting *atomic.Bool
	OnFirst  func() // called at a stream's first token
	OnToken  func() // called after each token
}

// events parses and checks a stream's payload.
type events struct {
	sink   *sink
	rest   []byte // an unfinished line
	tokens int
	next   uint32 // required sequence number of the next token
	stream uint32
	done   bool
	now    time.Time // arrival of the present bytes
}

// maxLine is the longest unfinished line.
const maxLine = 1 << 20

func (e *events) reset(s *sink) { *e = events{sink: s, rest: e.rest[:0]} }

// feed parses the next bytes of the payload.
func (e *events) feed(b []byte) error {
	e.now = time.Now()
	for {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			if len(e.rest)+len(b) > maxLine {
				return errBroken
			}
			e.rest = append(e.rest, b...)
			return nil
		}
		line := b[:i]
		if len(e.rest) > 0 {
			e.rest = append(e.rest, line...)
			line = e.rest
		}
		if err := e.line(line); err != nil {
			return err
		}
		e.rest, b = e.rest[:0], b[i+1:]
	}
}

var (
	dataField  = []byte("data: ")
	content    = []byte(`"content":"`)
	errorStart = []byte(`{"error"`)
	doneMark   = []byte("[DONE]")
)

func (e *events) line(line []byte) error {
	data, ok := bytes.CutPrefix(line, dataField)
	if !ok {
		return nil
	}
	i := bytes.Index(data, content)
	if i < 0 {
		if bytes.HasPrefix(data, doneMark) {
			e.done = true
		} else if bytes.HasPrefix(data, errorStart) {
			return errEvent
		}
		return nil
	}
	text := data[i+len(content):]
	if len(text) == 0 || text[0] == '"' {
		return nil // the chunk with the role, or the last chunk
	}
	if e.done {
		return errOrder
	}
	return e.token(text)
}

func (e *events) token(text []byte) error {
	if stamp, ok := instant.ParseStamp(text); ok {
		if e.tokens == 0 {
			e.stream = stamp.Stream
		}
		if stamp.Stream != e.stream {
			return errStray
		}
		if stamp.Seq != e.next {
			return errOrder
		}
		e.next++
		if e.sink.Delay != nil && e.sink.Counting.Load() {
			e.sink.Delay.Add(e.now.Sub(stamp.Sent))
		}
	}
	e.tokens++
	e.sink.Tokens.Add(1)
	if e.tokens == 1 && e.sink.OnFirst != nil {
		e.sink.OnFirst()
	}
	if e.sink.OnToken != nil {
		e.sink.OnToken()
	}
	return nil
}

// end checks that the stream has ended properly.
func (e *events) end() error {
	if !e.done || len(e.rest) > 0 {
		return errClosed
	}
	if e.tokens != e.sink.Want {
		return errCount
	}
	return nil
}
