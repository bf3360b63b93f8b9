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
	shown []byte   // scratch
	said  []byte   // scratch
}

// maxStops bounds the bytes of stop strings that are looked for.
const maxStops = 16 << 10

var errStop = errors.New("the stop strings are not read")

// readStops reads the stop strings of a request.
func readStops(value []byte) (stops [][]byte, err error) {
	switch {
	case len(value) == 0:
		return nil, nil
	case len(value) > maxStops:
		return nil, errStop
	}
	cur := jsonscan.New(value)
	one := func() {
		if cur.Kind() != jsonscan.String {
			cur.Skip()
		} else if stop := cur.AppendString(nil); len(stop) > 0 {
			stops = append(stops, stop)
		}
	}
	if cur.Kind() != jsonscan.Array {
		one()
	} else {
		for ok := cur.Array(); ok; ok = cur.NextElement() {
			one()
		}
	}
	if cur.Failed() {
		return nil, errStop
	}
	return stops, nil
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
	m.open = false
	end := len(m.text)
	if found != nil {
		end = max(at, m.had)
		quoted := jsonscan.AppendQuoted(nil, found)
		stop = quoted[1 : len(quoted)-1]
	}
	m.shown = jsonscan.AppendQuoted(m.shown[:0], m.text[m.had:end])
	return m.shown[1 : len(m.shown)-1], stop
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
// back that may begin a stop string. Detokenized must then be called with the text of Tail.
func (s *Stream) Lacks(stop []byte) bool {
	by, _ := s.How()
	if by != IDs || !s.Stops {
		return false
	}
	stops, err := readStops(stop)
	return err == nil && longest(stops) > 0
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
// that are not repeated to the engine.
func (s *Stream) Cross(by By, r *scan.Request, body, lacking []byte, drop int) error {
	if s.by, s.checked = by, false; by == Start {
		s.ids, s.prompt, s.sure, s.idsLost, s.chunks, s.delivered = s.ids[:0], -1, 0, false, 0, 0
		return nil
	}
	stops, err := readStops(r.Find(body, "stop"))
	if err != nil {
		return err
	}
	if by == IDs && longest(stops) > 0 {
		s.ids = s.ids[:len(s.ids)-drop]
	} else if by == IDs {
		s.ids = s.ids[:s.sure]
	}
	s.delivered = s.Tokens()
	if by == Text {
		s.idsLost = true // ids of a continued text are not those of one answer
	}
	if least, ok := wholeNumber(r.Find(body, "min_tokens")); ok && least > s.delivered {
		stops = nil // they do not count yet
	}
	known := jsonscan.AppendUnescaped(nil, s.text)
	quoted := jsonscan.AppendQuoted(nil, lacking)
	s.text = append(s.text, quoted[1:len(quoted)-1]...)
	if m := &s.seam; m.open { // the broken leg has not passed its own seam
		pending := m.text[m.had:]
		known, lacking = known[:len(known)-len(pending)], append(bytes.Clone(pending), lacking...)
	}
	s.seam.begin(stops, known, lacking)
	return nil
}

// Lacking returns the text of delivered ids that the client lacks. whole is the text of the last
// ids. drop says that the last id's text is incomplete: ask again without it. An engine holds back
// one character less than its longest stop string has.
func (s *Stream) Lacking(stop, whole []byte) (lacking []byte, drop, ok bool) {
	if bytes.HasSuffix(whole, []byte("\uFFFD")) {
		return nil, true, !s.eachToken()
	}
	stops, err := readStops(stop)
	if err != nil {
		return nil, false, false
	}
	lacking = lastChars(whole, longest(stops))
	known := jsonscan.AppendUnescaped(nil, s.text)
	rest := whole[:len(whole)-len(lacking)]
	return lacking, false, bytes.HasSuffix(known, rest) || bytes.HasSuffix(rest, known)
}
