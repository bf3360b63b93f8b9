package scan

import (
	"cmp"
	"slices"
	"unsafe"
)

// Long bodies are read in strides. The scan records a mark at the end of each stride, or somewhat
// earlier. A later scan of a body with the same beginning can start at a mark.
const (
	stride   = 8192 // bytes of the body from one mark to the next
	maxMarks = 512  // in one body
)

// where is the kind of place at which a scan can start.
type where uint8

const (
	betweenTurns where = iota // before an element of messages or input
	inContent                 // in the string that is the content of a message
	inPart                    // in the text of a part of a message's content
	inPrompt                  // in the string that is the prompt
)

// mark is the state of a scan at one place of a body. mark has no pointers, so it can be a record
// of a memo.Table. A mark's text offsets refer to the whole canonical text at that time.
type mark struct {
	pos, depth, text     int
	where                where
	root                 root
	stream, includeUsage bool
	turns                turnsRead
	media, shortTurn     int
	turnHash, systemHash uint64

	frame frame
	index int // index of the element in the frame's member
	turn  turnPlace
	part  partPlace

	counts   segmentCounts
	segments [maxSegments]segment
}

// segmentCounts are the numbers of segments of the root, then of the message, then of the part.
type segmentCounts struct{ root, turn, part int }

const (
	maxSegments = 12
	markWords   = int(unsafe.Sizeof(mark{}) / 8)
	markBytes   = int(unsafe.Sizeof(atStride{}))
)

func (m *mark) words() []uint64 { return (*[markWords]uint64)(unsafe.Pointer(m))[:] }

// atStride is a mark with the number of strides that it covers.
type atStride struct {
	strides int
	mark    mark
}

// frame is the root member being read.
type frame struct {
	member rootMember
	text   int // beginning of the member in Text
	at     int // beginning of the member's value in the body
}

// recording is the state of a Request that records marks or starts at a mark.
type recording struct {
	state  recordingState
	frame  frame
	next   int  // end of the next mark's stride
	last   mark // the last place between turns
	has    bool // this stride has a place between turns
	marks  []atStride
	noted  rootMember // the member with the marks
	hashes []uint64   // hashes of the body up to the end of each stride
	taken  int        // strides skipped
}

type recordingState uint8

const (
	noMarks     recordingState = iota // no marks are recorded
	leavesMarks                       // marks are recorded at the end of strides
	lostText                          // skipped text would have to be moved
)

// begin begins a scan that has skipped the given number of strides.
func (r *Request) begin(api API, strides int) {
	r.api, r.rec.taken, r.rec.next = api, strides, (strides+1)*stride
	if r.keep == 0 {
		r.keep = TextKept
	}
}

// stop drops the marks and records no more.
func (c *recording) stop() {
	if c.state == leavesMarks {
		c.state = noMarks
	}
	c.marks, c.has = c.marks[:0], false
}

// betweenTurns records the place before a message.
func (r *Request) betweenTurns() {
	if r.rec.state != leavesMarks {
		return
	}
	pos := r.c.Pos()
	r.pass(pos)
	if pos <= r.rec.next {
		r.rec.has = r.note(&r.rec.last, betweenTurns)
	}
}

// pass records the mark of the stride that the scan has finished.
func (r *Request) pass(pos int) {
	if r.rec.state != leavesMarks || pos <= r.rec.next {
		return
	}
	if r.rec.has {
		r.leave(&r.rec.last)
	}
	r.rec.next, r.rec.has = pos-pos%stride+stride, false
}

func (r *Request) leave(m *mark) {
	c := &r.rec
	first := len(c.marks) == 0 && c.taken == 0
	if !first && c.noted != m.frame.member || c.next/stride > len(c.hashes) {
		return
	}
	c.noted = m.frame.member
	c.marks = append(c.marks, atStride{c.next / stride, *m})
}

// note fills m with the present state. note returns true if a scan can start with m.
func (r *Request) note(m *mark, at where) bool {
	o, escaped := &r.order, len(r.scratch.decoded) > 0
	if escaped || len(o.segments) > maxSegments || len(o.shuffles) > 0 || len(r.Tokens) > 0 {
		return false
	}
	*m = mark{
		pos: r.c.Pos(), depth: r.c.Depth(), text: r.Skipped + len(r.Text), where: at,
		root: r.root, stream: r.Stream, includeUsage: r.IncludeUsage,
		turns: r.turns, media: r.Media, shortTurn: r.ShortTurn, turnHash: r.TurnHash,
		systemHash: r.SystemHash, frame: r.rec.frame, index: r.at.index, counts: segmentCounts{root: len(o.segments)},
	}
	m.turns.end += r.Skipped
	m.frame.text += r.Skipped
	for i, s := range o.segments {
		m.segments[i] = segment{s.rank, r.Skipped + s.start, r.Skipped + s.end}
	}
	return true
}

// inText is a string that may be long, with the open elements around it.
type inText struct {
	at   where
	turn *turn     // inContent and inPart
	base int       // inPart: base of the part's pieces in order.segments
	part partPlace // inPart
}

// longText reads the string that the cursor is in and records a mark at the end of every stride.
// The string's text begins at start.
func (r *Request) longText(start int, in inText) {
	c := &r.rec
	for c.state == leavesMarks {
		var ended bool
		if r.Text, ended = r.c.AppendText(r.Text, c.next); ended {
			r.clip(start)
			return
		}
		r.room(start)
		pos := r.c.Pos()
		var m mark
		switch r.clip(start); {
		case c.state != leavesMarks:
		case pos <= c.next && r.note(&m, in.at) && r.noteText(&m, &in):
			r.leave(&m)
		case c.has:
			r.leave(&c.last)
		}
		c.next, c.has = max(pos, c.next)/stride*stride+stride, false
	}
	r.textFrom(start)
}

// noteText adds the open elements around a string to a mark. noteText refuses a message whose role
// is unknown, because the beginning of its text is missing. noteText refuses a first turn that may
// be short, because its whole text is needed, and a system prompt whose beginning is not yet read.
func (r *Request) noteText(m *mark, in *inText) bool {
	t := in.turn
	if t == nil {
		return in.at == inPrompt
	}
	first := r.turns.state == noUserTurn
	if t.seen&(1<<turnRole) == 0 || first && len(r.Text)-t.begin < shortTurn {
		return false
	}
	if r.leads(t) {
		if len(r.Text)-t.begin < systemBytes {
			return false
		}
		m.systemHash = r.systemHash(t.begin)
	}
	m.counts.root, m.counts.turn = t.base, len(r.order.segments)-t.base
	m.turn = t.turnPlace
	m.turn.begin += r.Skipped
	m.turn.content += r.Skipped
	m.turn.user = t.user || t.begin >= 0 && isUser(r.Text[t.begin:])
	if in.at == inPart {
		m.counts.turn, m.counts.part = in.base-t.base, len(r.order.segments)-in.base
		m.part = in.part
		m.part.text += r.Skipped
	}
	return true
}

// movable is called before the text from start on is moved. Marks in that text would be wrong, so
// movable drops them. Skipped text cannot be moved; then the scan must begin anew from the
// beginning.
func (r *Request) movable(start int) bool {
	c := &r.rec
	if start < 0 {
		c.state = lostText
		r.c.Fail(r.c.Pos(), "text that was passed over is out of order")
		return false
	}
	for n := len(c.marks); n > 0 && c.marks[n-1].mark.text > r.Skipped+start; n-- {
		c.marks = c.marks[:n-1]
	}
	c.has = c.has && c.last.text <= r.Skipped+start
	return true
}

// resume starts the scan of body at a mark from a body with the same beginning. Text before the
// mark has negative offsets.
func (r *Request) resume(m *mark, body []byte) {
	r.c.Resume(body, m.pos, m.depth)
	r.Skipped = m.text
	r.root = m.root
	r.Model, r.CacheSalt = plainString(body, m.root.model), plainString(body, m.root.salt)
	r.PreviousResponseID = plainString(body, m.root.previous)
	r.Stream, r.IncludeUsage = m.stream, m.includeUsage
	r.turns = turnsRead{m.turns.state, m.turns.end - m.text}
	r.Media, r.ShortTurn, r.TurnHash, r.SystemHash = m.media, m.shortTurn, m.turnHash, m.systemHash
	r.at = place{field: m.frame.member.String(), index: m.index}
	r.rec.frame = frame{m.frame.member, m.frame.text - m.text, m.frame.at}
	r.rec.noted = m.frame.member
	for _, s := range m.segments[:m.counts.root+m.counts.turn+m.counts.part] {
		r.order.segments = append(r.order.segments, segment{s.rank, s.start - m.text, s.end - m.text})
	}
	switch m.where {
	case inPrompt:
		r.longText(r.rec.frame.text, inText{at: inPrompt})
	case betweenTurns:
		r.turnsFrom(true)
	default:
		r.resumeTurn(m, body)
		r.clip(r.rec.frame.text)
		r.at.index++
		r.turnsFrom(r.c.NextElement())
	}
	r.promptMemberEnd()
	r.rootMembers(r.c.NextMember())
}

// plainString returns the string at a span of the body, which has no escapes, or null.
func plainString(body []byte, at Span) []byte {
	if at == (Span{}) || body[at.Start] != '"' {
		return nil
	}
	return body[at.Start+1 : at.End-1]
}

// resumeTurn starts in the middle of a message's content.
func (r *Request) resumeTurn(m *mark, body []byte) {
	t := turn{turnPlace: m.turn, base: m.counts.root, kind: plainString(body, m.turn.kindAt)}
	t.begin -= m.text
	t.content -= m.text
	r.at.leaf = turnNames[turnContent]
	if m.where == inContent {
		r.longText(t.content, inText{at: inContent, turn: &t})
	} else {
		base, p := m.counts.root+m.counts.turn, m.part
		p.text -= m.text
		r.longText(p.text, inText{at: inPart, turn: &t, base: base, part: p})
		r.push(partText, p.text)
		r.partMembers(&t, p, base, r.c.NextMember())
		r.clip(t.content)
		r.contentParts(&t, t.content, r.c.NextElement())
	}
	r.push(turnContent, t.content)
	r.turnMembers(&t, r.c.NextMember())
	r.turnDone(&t)
}

// arrangeRoot sorts the root members like arrange. If some of the text was skipped, or may be
// skipped next time, the text that belongs before the skipped text becomes the head.
func (r *Request) arrangeRoot() {
	if r.Skipped == 0 && len(r.rec.marks) == 0 {
		r.arrange(0)
		return
	}
	head, ok := r.headBytes()
	if !ok {
		r.rec.marks = r.rec.marks[:0]
		r.arrange(0)
		return
	}
	first := len(r.order.pieces)
	slices.SortFunc(r.order.segments, func(a, b segment) int { return cmp.Compare(a.rank, b.rank) })
	for _, s := range r.order.segments {
		r.place(max(s.start, 0), s.end)
	}
	r.shuffle(first)
	r.Head, r.order.segments = head, r.order.segments[:0]
}

// headBytes returns the length of the text that belongs before the scan's first members, up to the
// one with the marks. ok is false if some text belongs between these members.
func (r *Request) headBytes() (n int, ok bool) {
	segments := r.order.segments
	last := 0 // index of the member with the marks
	for i, s := range segments {
		if rootMember(s.rank) == r.rec.noted {
			last = i
		}
	}
	for i, s := range segments {
		switch {
		case i <= last && i > 0 && s.rank < segments[i-1].rank:
			return 0, false
		case i > last && s.rank < segments[0].rank:
			n += s.end - s.start
		case i > last && s.rank < segments[last].rank:
			return 0, false
		}
	}
	return n, true
}
