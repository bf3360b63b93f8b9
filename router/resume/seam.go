package resume

import (
	"bytes"
	"errors"
	"unicode/utf8"

	"github.com/cognitora/dataplane/internal/jsonscan"
	"github.com/cognitora/dataplane/router/scan"
)

// seam is the place at which one leg's text ends and the next one's begins. Engines look for stop
// strings in their own text only. The seam finds those that begin before it.
type seam struct {
	open  bool
	stops [][]byte // decoded
	most  int      // characters that may belong to a stop string that begins before the seam
	text  []byte   // decoded: the end of the delivered text, the text that the client lacks, new text
	had   int      // bytes of text that the client has
	old   int      // bytes of text before the seam
	room  int      // bytes that the stream has reserved for the stop strings and text
}

// maxStops bounds the bytes of stop strings that are looked for.
const maxStops = 16 << 10

var (
	errStop = errors.New("the stop strings are not read")
	errRoom = errors.New("there is no room for the text at the seam")
)

// eachStop yields each stop string of a request that is not empty, as it is in the JSON string.
// eachStop returns false if the value is not read.
func eachStop(value []byte, yield func(raw []byte)) bool {
	if len(value) == 0 {
		return true
	} else if len(value) > maxStops {
		return false
	}
	cur := jsonscan.New(value)
	list := cur.Kind() == jsonscan.Array
	for ok := !list || cur.Array(); ok; ok = list && cur.NextElement() {
		if cur.Kind() != jsonscan.String {
			cur.Skip()
		} else if raw, _ := cur.String(); len(raw) > 0 {
			yield(raw)
		}
	}
	return !cur.Failed()
}

// readStops reads the stop strings of a request.
func readStops(value []byte) (stops [][]byte, err error) {
	if !eachStop(value, func(raw []byte) { stops = append(stops, jsonscan.AppendUnescaped(nil, raw)) }) {
		return nil, errStop
	}
	return stops, nil
}

// holdback returns longest of the stop strings, and false if they are not read. holdback allocates
// only for stop strings with escapes.
func holdback(value []byte) (most int, ok bool) {
	ok = eachStop(value, func(raw []byte) {
		if bytes.IndexByte(raw, '\\') >= 0 {
			raw = jsonscan.AppendUnescaped(nil, raw)
		}
		most = max(most, utf8.RuneCount(raw)-1)
	})
	return most, ok
}

// longest returns the characters of the longest stop string but one.
func longest(stops [][]byte) (most int) {
	for _, stop := range stops {
		most = max(most, utf8.RuneCount(stop)-1)
	}
	return most
}

// lastChars returns the last n characters of text.
func lastChars(text []byte, n int) []byte {
	at := len(text)
	for ; n > 0 && at > 0; n-- {
		_, size := utf8.DecodeLastRune(text[:at])
		at -= size
	}
	return text[at:]
}

// begin opens the seam behind the delivered text and the text that the client lacks.
func (m *seam) begin(stops [][]byte, delivered, lacking []byte) {
	m.stops, m.most = stops, longest(stops)
	m.text = append(m.text[:0], lastChars(delivered, m.most)...)
	m.had = len(m.text)
	m.text = append(m.text, lacking...)
	m.old = len(m.text)
	m.open = m.old > 0 && m.most > 0 || m.had < m.old
}

// pass takes the next new text, as in a JSON string, and returns the text that the client gets now.
// stop, as in a JSON string, is the stop string that ends the stream there; nil: none. last says
// that no more text comes.
func (m *seam) pass(text []byte, last bool) (shown, stop []byte) {
	m.text = jsonscan.AppendUnescaped(m.text, text)
	at, found := m.find()
	if found == nil && !last && utf8.RuneCount(m.text[m.old:]) < m.most {
		return nil, nil
	}
	end := len(m.text)
	if found != nil {
		end = max(at, m.had)
		quoted := jsonscan.AppendQuoted(nil, found)
		stop = quoted[1 : len(quoted)-1]
	}
	shown = jsonscan.AppendQuoted(nil, m.text[m.had:end])
	m.open, m.stops, m.text = false, nil, nil // the text may be as long as an event
	return shown[1 : len(shown)-1], stop
}

// find returns the stop string that begins before the seam and ends first, and its place.
func (m *seam) find() (at int, found []byte) {
	end := len(m.text) + 1
	for _, stop := range m.stops {
		i := bytes.Index(m.text, stop)
		if i >= 0 && i < m.old && i+len(stop) > m.old && i+len(stop) < end {
			at, found, end = i, stop, i+len(stop)
		}
	}
	return at, found
}

// Lacks says whether the client may lack text of delivered tokens, because the engine holds text
// back that may begin a stop string. Lacking must then be called with the text of Tail.
func (s *Stream) Lacks() bool {
	by, _ := s.How()
	return by == IDs && s.Holdback > 0
}

// tailIDs is the number of token ids whose text is asked for.
const tailIDs = 4096

// Tail appends the JSON list of the last ids of the answer, without the last drop ones.
func (s *Stream) Tail(b []byte, drop int) []byte {
	end := max(len(s.ids)-drop, s.prompt)
	return appendIDs(b, s.ids[max(s.prompt, end-tailIDs):end])
}

// Cross begins another leg, which goes on by the way that How has returned. r is the scan of body.
// lacking is the text of delivered tokens that the client lacks, and drop the number of last tokens
// that are not repeated to the engine. If Cross fails because there is no room, Lost returns Full.
func (s *Stream) Cross(by By, r *scan.Request, body, lacking []byte, drop int) error {
	if s.by, s.checked = by, false; by == Start {
		s.ids, s.prompt, s.sure, s.idsLost, s.chunks, s.delivered = s.ids[:0], -1, 0, false, 0, 0
		return nil
	}
	if by == IDs && s.Holdback > 0 {
		s.ids = s.ids[:len(s.ids)-drop]
	} else if by == IDs {
		s.ids = s.ids[:s.sure]
	}
	s.delivered = s.Tokens()
	if by == Text {
		s.idsLost = true // ids of a continued text are not those of one answer
	}
	if s.Holdback == 0 {
		return nil
	}
	return s.open(r, body, lacking)
}

// open opens the seam of another leg. See Cross.
func (s *Stream) open(r *scan.Request, body, lacking []byte) error {
	value := r.Find(body, "stop")
	stops, err := readStops(value)
	if err != nil {
		return err
	}
	if least, ok := wholeNumber(r.Find(body, "min_tokens")); ok && least > s.delivered {
		stops = nil // they do not count yet
	}
	known := jsonscan.AppendUnescaped(nil, s.text)
	quoted := jsonscan.AppendQuoted(nil, lacking)
	if len(s.text)+len(quoted) > cap(s.text) {
		s.text = grown(s, s.text, len(quoted), 1)
	}
	m := &s.seam
	if m.open { // the broken leg has not passed its own seam
		pending := m.text[m.had:]
		known, lacking = known[:len(known)-len(pending)], append(bytes.Clone(pending), lacking...)
	}
	room := len(value) + len(lacking) + 2*utf8.UTFMax*s.Holdback
	if s.why != Possible || room > m.room && !s.reserve(room-m.room) {
		return errRoom
	}
	m.room = max(m.room, room)
	s.text = append(s.text, quoted[1:len(quoted)-1]...)
	m.begin(stops, known, lacking)
	return nil
}

// Lacking returns the text of delivered ids that the client lacks. whole is the text of the last
// ids. drop says that the last id's text is incomplete: ask again without it.
func (s *Stream) Lacking(whole []byte) (lacking []byte, drop, ok bool) {
	if bytes.HasSuffix(whole, []byte("\uFFFD")) {
		return nil, true, !s.eachToken()
	}
	lacking = lastChars(whole, s.Holdback)
	known := jsonscan.AppendUnescaped(nil, s.text)
	rest := whole[:len(whole)-len(lacking)]
	return lacking, false, bytes.HasSuffix(known, rest) || bytes.HasSuffix(rest, known)
}
