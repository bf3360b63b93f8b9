package sse

// Filter forwards a stream in whole events. A callback decides for each event what is forwarded
// instead. Blocks without data (comments, id, retry) are forwarded without the callback. An event
// longer than MaxEventBytes is announced to the callback, and then forwarded as it comes. The zero
// value is ready.
type Filter struct {
	cut   cutter
	parse parser
	next  fate
	skips uint64
}

// fate is the treatment of bytes that belong to the previous block.
type fate uint8

const (
	drop    fate = iota
	forward      // bytes of an oversized event, or the late LF of a CRLF that was forwarded
)

// Feed takes the next bytes of the stream, and calls show for every event that they complete. Feed
// appends to out the bytes to forward now. show appends the replacement of the event: e.Raw,
// nothing, or whole events. An empty Event announces an oversized event, and the replacement is
// forwarded before that event. If show reports enough, Feed returns immediately and drops the rest
// of p, and the caller must Reset f. Feed does not keep p.
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

// Show decides what is forwarded for an event, and whether that is enough.
type Show func(e Event, out []byte) (rest []byte, enough bool)

// decide calls show for a block that is an event, and forwards other blocks.
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

// Pending returns the bytes of the unfinished event at the end of the stream, valid until the next
// call. A stream that ended properly has no pending bytes. After a failure the caller must drop the
// pending bytes, so that later bytes are not read as their continuation.
func (f *Filter) Pending() []byte { return f.cut.held }

// Last parses the unfinished event at the end of the stream as if a blank line followed. ok is
// false if it ends inside a line or has no data.
func (f *Filter) Last() (e Event, ok bool) { return f.cut.last(&f.parse) }

// Torn reports whether a part of an unfinished event has been forwarded. If so, a blank line must
// be sent before anything else.
func (f *Filter) Torn() bool { return f.cut.over }

// Skipped returns how many events were forwarded without the callback because they were too long.
func (f *Filter) Skipped() uint64 { return f.skips }

// Reset makes f ready for another stream.
func (f *Filter) Reset() {
	*f = Filter{cut: f.cut, parse: f.parse}
	f.cut.reset()
	f.parse.reset()
}
