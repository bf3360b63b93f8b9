package sse

// Filter forwards a stream in whole events, byte for byte, without those that
// keep refuses. Blocks without data (comments, id, retry) are forwarded
// unseen. An event longer than MaxEventBytes is forwarded unseen, as it comes.
// The zero value is ready.
type Filter struct {
	cut   cutter
	parse parser
	kept  bool // the block before was forwarded: its belated LF is too
	skips uint64
}

// Feed takes the next bytes of the stream, calls keep for every event that
// they complete, and appends to out what is to be forwarded now. p is not kept.
// For a whole stream in one call out may be p[:0].
func (f *Filter) Feed(p, out []byte, keep func(Event) bool) []byte {
	for len(p) > 0 {
		block, kind, rest := f.cut.next(p)
		p = rest
		switch kind {
		case partial:
			continue
		case lineFeed:
			if !f.kept {
				continue
			}
		case oversized:
			f.skips++
			f.kept = true
		case complete:
			e, ok := f.parse.event(block)
			f.kept = !ok || keep(e)
		}
		if f.kept {
			out = append(out, block...)
		}
		if kind == complete || kind == oversized {
			f.cut.taken()
		}
	}
	return out
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
	f.cut.reset()
	f.parse.reset()
	f.kept, f.skips = false, 0
}
