package sse

// Filter forwards a stream in whole events. For each event a callback decides
// what goes out in its place. Blocks without data (comments, id, retry) are
// forwarded unseen. An event longer than MaxEventBytes is forwarded unseen, as
// it comes, once it has been announced. The zero value is ready.
type Filter struct {
	cut   cutter
	parse parser
	next  fate
	skips uint64
}

// fate says what becomes of bytes that belong to the block before.
type fate uint8

const (
	drop    fate = iota
	forward      // more of an oversized event, or the belated LF of a CRLF that was forwarded
)

// Feed takes the next bytes of the stream, calls show for every event that they
// complete, and appends to out what is to be forwarded now. show appends what
// goes out for the event: e.Raw, nothing, or whole events in its place. An empty
// Event announces one that is too long: what is appended goes out before it. Where
// show reports enough, Feed returns at once, the rest of p is dropped, and f has
// to be Reset. p is not kept.
func (f *Filter) Feed(p, out []byte, show Show) (rest []byte, enough bool) {
	for len(p) > 0 && !enough {
		var block []byte
		var kind blockKind
		block, kind, p = f.cut.next(p)
		switch kind {
		case partial:
		case complete:
			out, enough = f.decide(block, out, show)
			f.cut.taken()
		case oversized:
			f.skips++
			f.next = forward
			if out, enough = show(Event{}, out); !enough {
				out = append(out, block...)
			}
			f.cut.taken()
		default:
			if f.next == forward {
				out = append(out, block...)
			}
		}
	}
	return out, enough
}

// Show decides what is forwarded for an event, and whether more is wanted.
type Show func(e Event, out []byte) (rest []byte, enough bool)

// decide asks show about a block that is an event, and lets the others pass.
func (f *Filter) decide(block, out []byte, show Show) (rest []byte, enough bool) {
	before := len(out)
	if e, ok := f.parse.event(block); ok {
		rest, enough = show(e, out)
	} else {
		rest = append(out, block...)
	}
	if f.next = drop; len(rest) > before && rest[len(rest)-1] == '\r' {
		f.next = forward
	}
	return rest, enough
}

// Pending returns the bytes of the unfinished event at the end of the stream,
// valid until the next call. A stream that ended properly has none; after a
// failure they are best dropped, so that what follows is not read as their
// continuation.
func (f *Filter) Pending() []byte { return f.cut.held }

// Last reads the unfinished event at the end of the stream as if a blank line
// followed. ok is false if it ends inside a line or has no data.
func (f *Filter) Last() (e Event, ok bool) { return f.cut.last(&f.parse) }

// Torn reports whether part of an unfinished event has been forwarded: the
// stream needs a blank line before anything else.
func (f *Filter) Torn() bool { return f.cut.over }

// Skipped counts the events forwarded unseen for being too long.
func (f *Filter) Skipped() uint64 { return f.skips }

// Reset makes f ready for another stream.
func (f *Filter) Reset() {
	*f = Filter{cut: f.cut, parse: f.parse}
	f.cut.reset()
	f.parse.reset()
}
