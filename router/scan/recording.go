package scan

import (
	"unsafe"
)

// Long bodies are read in strides, so that another scan can begin in the middle of a body that
// begins with the same bytes: at most strides' ends the scan notes where it was.
const (
	stride   = 8192 // bytes of the body from one mark to the next
	maxMarks = 512  // in one body
)

// where says at which kinds of place a scan can be taken up.
type where = int

const (
	betweenTurns where = iota // before an element of messages or input
	inContent                 // in the string that is the content of a message
	inPart                    // in the text of a part of a message's content
	inPrompt                  // in the string that is the prompt
)

// mark is what a scan knew at one place of a body. It has words only, so that it can be a record of
// a memo.Table. Text offsets are those of the canonical text as it stood then.
type mark struct {
	pos, depth, text int
	where            where

	// The root.
	seen                                               int
	model, options, usage, continuous, salt, previous  Span
	optionMembers, membersAt, maxTokens                int
	stream, includeUsage, optionsNull, optionsEmpty    int
	plain, turned, turnEnd, member, memberStart, index int
	media, shortTurn                                   int
	turnHash                                           uint64

	// The message and the part that the place is in.
	turnStart, turnSeen, user, contentStart int
	kind                                    Span
	partSeen, partStart                     int

	// segments: of the root, then of the message, then of the part.
	ofRoot, ofTurn, ofPart int
	segments               [maxSegments]wordSegment
}

type wordSegment struct{ rank, start, end int }

const (
	maxSegments = 12
	markWords   = int(unsafe.Sizeof(mark{}) / 8)
	markBytes   = int(unsafe.Sizeof(atStride{}))
)

func (m *mark) words() []uint64 { return (*[markWords]uint64)(unsafe.Pointer(m))[:] }

// atStride is a mark that holds for a number of strides from the body's beginning.
type atStride struct {
	strides int
	mark    mark
}

// frame is what is open around the cursor that a mark needs to know of.
type frame struct {
	open   bool // a root member that can have marks
	member rootMember
	start  int // of the member in Text
}

// recording is what a Request needs to leave marks and to be taken up at one.
type recording struct {
	marking bool // marks are taken
	lost    bool // text that was passed over would have to be moved
	frame   frame
	next    int  // the end of the stride that the next mark is for
	last    mark // the latest place between turns
	has     bool // there is one in this stride
	marks   []atStride
	noted   rootMember // the one with the marks

	hashes []uint64 // of the body up to the end of each stride
	taken  int      // strides passed over
}

// within notes that the marks to come are in root member m.
func (r *Request) within(m rootMember, start int) { r.frame = frame{true, m, start} }

// betweenTurns notes the place before a message.
func (r *Request) betweenTurns() {
	if !r.marking {
		return
	}
	pos := r.c.Pos()
	r.pass(pos)
	if pos <= r.next {
		r.has = r.note(&r.last, betweenTurns)
	}
}

// pass leaves the mark of a stride that the scan has come to the end of.
func (r *Request) pass(pos int) {
	if !r.marking || pos <= r.next {
		return
	}
	if r.has {
		r.leave(&r.last)
	}
	r.next = pos - pos%stride + stride
	r.has = false
}

func (r *Request) leave(m *mark) {
	first := len(r.marks) == 0 && r.taken == 0
	if !first && r.noted != rootMember(m.member) || r.next/stride > len(r.hashes) {
		return
	}
	r.noted = rootMember(m.member)
	r.marks = append(r.marks, atStride{r.next / stride, *m})
}

// note fills m with what is known now, and reports whether a scan could be taken up with it.
func (r *Request) note(m *mark, at where) bool {
	if !r.frame.open || len(r.segments) > maxSegments || len(r.decoded) > 0 || len(r.shuffles) > 0 || len(r.Tokens) > 0 {
		return false
	}
	*m = mark{
		pos: r.c.Pos(), depth: r.c.Depth(), text: r.Skipped + len(r.Text), where: at,
		seen: int(r.seen), model: r.ModelSpan, options: r.StreamOptions, usage: r.options.usage, continuous: r.options.continuous, salt: r.salt, previous: r.previous,
		optionMembers: r.options.membersAt, membersAt: r.MembersAt, maxTokens: int(r.MaxTokens),
		stream: word(r.Stream), includeUsage: word(r.IncludeUsage), optionsNull: word(r.options.null), optionsEmpty: word(r.options.empty),
		plain: word(r.plain), turned: word(r.turned), turnEnd: r.Skipped + r.turnEnd,
		media: r.Media, shortTurn: r.ShortTurn, turnHash: r.TurnHash,
		member: int(r.frame.member), memberStart: r.Skipped + r.frame.start, index: r.at.index,
		ofRoot: len(r.segments),
	}
	for i, s := range r.segments {
		m.segments[i] = wordSegment{int(s.rank), r.Skipped + s.start, r.Skipped + s.end}
	}
	return true
}

func word(b bool) int {
	if b {
		return 1
	}
	return 0
}

// inText is a string that can be long, and what is open around it.
type inText struct {
	at       where
	turn     *turn  // inContent and inPart
	base     int    // inPart: of the part's pieces in segments
	start    int    // inPart: of the text's piece in Text
	partSeen uint32 // inPart: members of the part
}

// longText reads the string that the cursor is in, and leaves a mark at the end of every stride.
func (r *Request) longText(in inText) {
	for {
		var ended bool
		if r.Text, ended = r.c.AppendText(r.Text, r.next); ended {
			return
		}
		pos := r.c.Pos()
		var m mark
		switch {
		case pos <= r.next && r.note(&m, in.at) && r.noteText(&m, &in):
			r.leave(&m)
		case r.has:
			r.leave(&r.last)
		}
		r.next, r.has = max(pos, r.next)/stride*stride+stride, false
	}
}

// noteText adds to a mark what is open around a string. Without its role the beginning of the
// message is not there yet, and a first turn that may be short is wanted whole.
func (r *Request) noteText(m *mark, in *inText) bool {
	t := in.turn
	if t == nil {
		return in.at == inPrompt
	}
	if t.seen&(1<<turnRole) == 0 || !r.turned && len(r.Text)-t.begin < shortTurn {
		return false
	}
	m.ofRoot, m.ofTurn = t.base, len(r.segments)-t.base
	m.turnStart, m.turnSeen, m.contentStart, m.kind = r.Skipped+t.begin, int(t.seen), r.Skipped+t.content, t.kindAt
	m.user = word(t.user || t.begin >= 0 && isUser(r.Text[t.begin:]))
	if in.at == inPart {
		m.ofTurn, m.ofPart = in.base-t.base, len(r.segments)-in.base
		m.partSeen, m.partStart = int(in.partSeen), r.Skipped+in.start
	}
	return true
}

// movable is asked before the text from start on is put into another order. Marks in it would be wrong. Text
// that was passed over cannot be moved: that ends the scan, which has to be made again from the beginning.
func (r *Request) movable(start int) bool {
	if start < 0 {
		r.lost = true
		r.c.Fail(r.c.Pos(), "text that was passed over is out of order")
		return false
	}
	for n := len(r.marks); n > 0 && r.marks[n-1].mark.text > r.Skipped+start; n-- {
		r.marks = r.marks[:n-1]
	}
	r.has = r.has && r.last.text <= r.Skipped+start
	return true
}
