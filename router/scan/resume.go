package scan

import (
	"cmp"
	"slices"
)

// resume takes up the scan of body at a mark that was left in a body which begins with the same bytes.
// What of the canonical text lies before the mark has negative offsets in Text.
func (r *Request) resume(m *mark, body []byte) {
	r.c.Resume(body, m.pos, m.depth)
	r.Skipped = m.text
	r.seen, r.MembersAt, r.MaxTokens = uint32(m.seen), m.membersAt, int64(m.maxTokens)
	r.ModelSpan, r.Model = m.model, text(body, m.model)
	r.salt, r.CacheSalt = m.salt, text(body, m.salt)
	r.previous, r.PreviousResponseID = m.previous, text(body, m.previous)
	r.StreamOptions, r.Stream, r.IncludeUsage = m.options, m.stream == 1, m.includeUsage == 1
	r.options = optionSpans{null: m.optionsNull == 1, empty: m.optionsEmpty == 1, membersAt: m.optionMembers, usage: m.usage, continuous: m.continuous}
	r.plain, r.turned, r.turnEnd = m.plain == 1, m.turned == 1, m.turnEnd-m.text
	r.Media, r.ShortTurn, r.TurnHash = m.media, m.shortTurn, m.turnHash
	member := rootMember(m.member)
	r.at = place{field: member.String(), index: m.index}
	r.within(member, m.memberStart-m.text)
	r.noted = member
	for _, s := range m.segments[:m.ofRoot+m.ofTurn+m.ofPart] {
		r.segments = append(r.segments, segment{uint8(s.rank), s.start - m.text, s.end - m.text})
	}
	switch m.where {
	case inPrompt:
		r.longText(inText{at: inPrompt})
	case betweenTurns:
		r.turnsFrom(true)
	default:
		r.resumeTurn(m, body)
		r.at.index++
		r.turnsFrom(r.c.NextElement())
	}
	r.promptMemberEnd(member, r.frame.start)
	r.rootMembers(r.c.NextMember())
}

// text is what a string without escapes that lies at a span of the body, or null, says.
func text(body []byte, at Span) []byte {
	if at == (Span{}) || body[at.Start] != '"' {
		return nil
	}
	return body[at.Start+1 : at.End-1]
}

// resumeTurn takes up a message in the middle of its content.
func (r *Request) resumeTurn(m *mark, body []byte) {
	t := turn{
		base: m.ofRoot, begin: m.turnStart - m.text, seen: uint16(m.turnSeen), content: m.contentStart - m.text,
		kind: text(body, m.kind), kindAt: m.kind, user: m.user == 1,
	}
	r.at.leaf = turnNames[turnContent]
	if m.where == inContent {
		r.longText(inText{at: inContent, turn: &t})
	} else {
		p := inText{at: inPart, turn: &t, base: m.ofRoot + m.ofTurn, start: m.partStart - m.text, partSeen: uint32(m.partSeen)}
		r.longText(p)
		r.push(partText, p.start)
		r.partMembers(&t, p.base, p.partSeen, r.c.NextMember())
		r.contentParts(&t, r.c.NextElement())
	}
	r.push(turnContent, t.content)
	r.turnMembers(&t, r.c.NextMember())
	r.turnDone(&t)
}

// arrangeRoot orders the root members like arrange. Where some of the text was passed over, or may be next
// time, what has to come before it becomes the head.
func (r *Request) arrangeRoot() {
	if r.Skipped == 0 && len(r.marks) == 0 {
		r.arrange(0)
		return
	}
	head, ok := r.headBytes()
	if !ok {
		r.marks = r.marks[:0]
		r.arrange(0)
		return
	}
	first := len(r.pieces)
	slices.SortFunc(r.segments, func(a, b segment) int { return cmp.Compare(a.rank, b.rank) })
	for _, s := range r.segments {
		r.place(max(s.start, 0), s.end)
	}
	r.shuffle(first)
	r.Head, r.segments = head, r.segments[:0]
}

// headBytes is how much text comes before that of the members that the scan began with, up to the one
// with the marks; false if some has to come between them.
func (r *Request) headBytes() (n int, ok bool) {
	last := 0 // the member with the marks
	for i, s := range r.segments {
		if rootMember(s.rank) == r.noted {
			last = i
		}
	}
	for i, s := range r.segments {
		switch {
		case i <= last && i > 0 && s.rank < r.segments[i-1].rank:
			return 0, false
		case i > last && s.rank < r.segments[0].rank:
			n += s.end - s.start
		case i > last && s.rank < r.segments[last].rank:
			return 0, false
		}
	}
	return n, true
}
