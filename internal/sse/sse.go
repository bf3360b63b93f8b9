// Package sse parses server-sent event streams incrementally, from pieces of any size. Scanner
// reports events. Filter forwards whole events, or the caller's replacement for each.
//
// Lines end in LF, CRLF or CR. A stream may begin with a byte order mark. Several data lines of one
// event are joined by LF. Comments, id and retry fields are not part of an Event. Nothing here does
// I/O.
package sse

import "bytes"

// MaxEventBytes is the longest event that is parsed, in bytes on the wire. Scanner does not report
// a longer event. Filter announces a longer event and forwards it without delay. Scanner and Filter
// continue with the next event.
const MaxEventBytes = 1 << 20

// Event is one event that has data. The slices are valid during the callback that receives the
// Event. Data of a single line lies inside Raw. So bytes that the callback writes there, which must
// not contain line ends, appear in Raw too.
type Event struct {
	Name []byte // event field; empty means "message"
	Data []byte
	// Raw is the event as received, with its comments and other fields, a byte order mark before
	// it, and its closing blank line. The event that Last returns has no blank line. An LF that
	// comes in a later piece than its CR is not in Raw. Filter forwards this LF if the event's
	// replacement ended with the CR.
	Raw []byte
}

// Oversized reports whether e only announces an event that is too long to be parsed.
func (e Event) Oversized() bool { return len(e.Raw) == 0 }

// IsDone reports whether the event is OpenAI's end mark, "data: [DONE]".
func (e Event) IsDone() bool { return string(e.Data) == "[DONE]" }

// closingTypes are the types of events that end a stream. The type is the event's name, or without
// a name the type member at the front of the data.
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

// Events returns how many events were reported since the start of the stream.
func (s *Scanner) Events() uint64 { return s.events }

// Skipped returns how many events were passed over because they were longer than MaxEventBytes.
func (s *Scanner) Skipped() uint64 { return s.skips }

// Last parses the unfinished event at the end of the stream as if a blank line followed. ok is
// false if it ends inside a line or has no data.
func (s *Scanner) Last() (e Event, ok bool) { return s.cut.last(&s.parse) }

// Reset makes s ready for another stream; its buffers are kept unless they
// have grown large.
func (s *Scanner) Reset() {
	s.cut.reset()
	s.parse.reset()
	s.events, s.skips = 0, 0
}

// parser parses the fields of one block.
type parser struct {
	joined []byte // data of events with several data lines
	begun  bool   // true once the first block, with a possible byte order mark, has been parsed
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

// join appends a further data line. join does not copy a single data line.
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

// splitField splits "name: value". One space after the colon does not belong to the value.
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

// lineEnd returns the index of the first CR or LF, or -1.
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
