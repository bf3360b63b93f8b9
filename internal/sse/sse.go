// Package sse reads server-sent event streams incrementally, whatever way the
// bytes are cut up: Scanner reports events, Filter forwards whole events, and
// for each of them what the caller puts in its place.
//
// Lines end in LF, CRLF or CR. A stream may begin with a byte order mark.
// Several data lines of one event are joined by LF. Comments, id and retry
// fields are not part of an Event. Nothing here does I/O.
package sse

import "bytes"

// MaxEventBytes is the longest event, as it is on the wire, that is looked
// at. A longer one is not reported by Scanner; Filter announces it, and does not
// hold it back. Both go on with the event after it.
const MaxEventBytes = 1 << 20

// Event is one event that has data. The slices are valid during the callback
// that receives it. Data that is one line lies inside Raw: what the callback
// writes there, without line ends, stands in Raw too.
type Event struct {
	Name []byte // event field; empty means "message"
	Data []byte
	// Raw is the event as it came: its comments and other fields, a byte order
	// mark before it, and its closing blank line. The event that Last returns has
	// no blank line. An LF that comes in a later piece than its CR is not in Raw;
	// Filter forwards it if the event's replacement ended with the CR.
	Raw []byte
}

// Oversized reports whether e only announces an event that is too long to be read.
func (e Event) Oversized() bool { return len(e.Raw) == 0 }

// IsDone reports whether the event is OpenAI's end mark, "data: [DONE]".
func (e Event) IsDone() bool { return string(e.Data) == "[DONE]" }

// closingTypes name the events that end a stream: by themselves, or as the
// type member at the front of the data where the event has no name.
var closingTypes = [...]string{
	"message_stop", "response.completed", "response.incomplete", "response.failed", "response.cancelled", "error",
}

// Closes reports whether a stream may end after the event: OpenAI's end mark,
// the last event of a Responses or Anthropic stream, or an error.
func (e Event) Closes() bool {
	if e.IsDone() || bytes.HasPrefix(e.Data, errorDocument) {
		return true
	}
	name := e.Name
	if rest, ok := bytes.CutPrefix(e.Data, typedDocument); ok && len(name) == 0 {
		rest, _ = bytes.CutPrefix(bytes.TrimLeft(rest, " "), quote)
		name, _, _ = bytes.Cut(rest, quote)
	}
	for _, t := range closingTypes {
		if string(name) == t {
			return true
		}
	}
	return false
}

var (
	errorDocument = []byte(`{"error"`)
	typedDocument = []byte(`{"type":`)
	quote         = []byte{'"'}
)

// EndsBlank reports whether events ends with a blank line.
func EndsBlank(events []byte) bool {
	return bytes.HasSuffix(events, []byte("\n\n")) || bytes.HasSuffix(events, []byte("\r\n\r\n")) ||
		bytes.HasSuffix(events, []byte("\r\r"))
}

// Scanner finds the events of a stream. The zero value is ready.
type Scanner struct {
	cut    cutter
	parse  parser
	events uint64
	skips  uint64
}

// Feed takes the next bytes of the stream and calls fn for every event that
// they complete. p is not kept.
func (s *Scanner) Feed(p []byte, fn func(Event)) {
	for len(p) > 0 {
		block, kind, rest := s.cut.next(p)
		p = rest
		switch kind {
		case oversized:
			s.skips++
			s.cut.taken()
		case complete:
			if e, ok := s.parse.event(block); ok {
				s.events++
				fn(e)
			}
			s.cut.taken()
		}
	}
}

// Events counts the events reported since the start of the stream.
func (s *Scanner) Events() uint64 { return s.events }

// Skipped counts the events passed over for being longer than MaxEventBytes.
func (s *Scanner) Skipped() uint64 { return s.skips }

// Last reads the unfinished event at the end of the stream as if a blank line
// followed. ok is false if it ends inside a line or has no data.
func (s *Scanner) Last() (e Event, ok bool) { return s.cut.last(&s.parse) }

// Reset makes s ready for another stream; its buffers are kept unless they
// have grown large.
func (s *Scanner) Reset() {
	s.cut.reset()
	s.parse.reset()
	s.events, s.skips = 0, 0
}

// parser reads the fields of one block.
type parser struct {
	joined []byte // data of events with several data lines
	begun  bool   // the byte order mark, if any, is behind us
}

func (p *parser) reset() {
	*p = parser{joined: keepSmall(p.joined)}
}

var byteOrderMark = []byte("\xef\xbb\xbf")

// event parses block, one event with its line ends. ok is false if it has no
// data.
func (p *parser) event(block []byte) (e Event, ok bool) {
	e.Raw = block
	if !p.begun {
		p.begun, block = true, bytes.TrimPrefix(block, byteOrderMark)
	}
	lines := 0
	for len(block) > 0 {
		var line []byte
		line, block = cutLine(block)
		if len(line) > 0 && line[0] == ':' {
			continue
		}
		name, value := splitField(line)
		switch string(name) {
		case "event":
			e.Name = value
		case "data":
			e.Data = p.join(e.Data, value, lines)
			lines++
		}
	}
	return e, lines > 0
}

// join appends a further data line; a single one is not copied.
func (p *parser) join(data, value []byte, lines int) []byte {
	switch lines {
	case 0:
		return value
	case 1:
		p.joined = append(p.joined[:0], data...)
	}
	p.joined = append(append(p.joined, '\n'), value...)
	return p.joined
}

// splitField splits "name: value"; one space after the colon is not part of
// the value.
func splitField(line []byte) (name, value []byte) {
	name, value, _ = bytes.Cut(line, colon)
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	return name, value
}

var colon = []byte{':'}

// cutLine splits off the first line of block, without its line end.
func cutLine(block []byte) (line, rest []byte) {
	i := lineEnd(block)
	if i < 0 {
		return block, nil
	}
	n := i + 1
	if block[i] == '\r' && n < len(block) && block[n] == '\n' {
		n++
	}
	return block[:i], block[n:]
}

// lineEnd is the index of the first CR or LF, or -1.
func lineEnd(p []byte) int {
	lf := bytes.IndexByte(p, '\n')
	if lf >= 0 {
		p = p[:lf]
	}
	if cr := bytes.IndexByte(p, '\r'); cr >= 0 {
		return cr
	}
	return lf
}
