package chunks

import (
	"context"

	"github.com/cognitora/dataplane/kv/alias"
	"github.com/cognitora/dataplane/kv/block"
)

// Annotate appends to the attribute of an object in RAM, as store.Store.Annotate does. Annotate
// returns nil if RAM does not have the object.
type Annotate func(ctx context.Context, a block.Addr, more func(attr []byte) []byte) error

// want has the note on a chunk written to the part that carries it. The caller holds t.mu.
func (t *Table) want(carrier block.Addr, r ref) {
	if h := t.chunk(r); h.origin() == 0 || h.is(disputed) {
		return
	}
	if len(t.pending) >= maxPending {
		t.counts.Unkept++
		return
	}
	t.pending = append(t.pending, carrier)
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// Keep writes notes by annotate until ctx ends, and counts the errors. A part that has gone from
// RAM gets its note when it comes back.
func (t *Table) Keep(ctx context.Context, annotate Annotate) {
	for {
		select {
		case <-t.wake:
		case <-ctx.Done():
			return
		}
		for _, a := range t.take() {
			if err := annotate(ctx, a, func(attr []byte) []byte { return t.note(&a, attr) }); err != nil {
				t.mu.Lock()
				t.counts.Unkept++
				t.mu.Unlock()
			}
			if ctx.Err() != nil {
				return
			}
		}
	}
}

func (t *Table) take() []block.Addr {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.pending
	t.pending = nil
	return all
}

// note returns the note for a part with the given attribute; nil: it has one, or needs none.
func (t *Table) note(a *block.Addr, attr []byte) []byte {
	if _, _, ok := alias.CutNote(attr); ok {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	at, _, known := t.part(a)
	if !known {
		return nil
	}
	h := t.chunk(at.get().chunk())
	if h.origin() == 0 || h.is(disputed) {
		return nil
	}
	return alias.AppendNote(nil, &t.origins.at(h.origin()).key.Source, &alias.Chunk{Parent: t.parent(h),
		Blocks: t.blocks(h)})
}
