package store

import (
	"context"
	"errors"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ram"
)

// ErrNoRoom says that the attribute of a block cannot grow in its place.
var ErrNoRoom = errors.New("store: no room beside the block for a longer attribute")

// Annotate appends to the attribute of a block in RAM. If SSD has the block, Annotate writes all of
// it again: a record's head has the attribute, and SSD reads it there to move or to recover the
// record. more gets the present attribute and returns the addition; nil: there is none. more is
// called once, under the store's lock, so it must be quick and must not call the store. The errors
// are ErrMiss if RAM does not have the block, ErrNoRoom, ErrClosed and those of SSD.
func (s *Store) Annotate(ctx context.Context, a block.Addr, more func(attr []byte) []byte) error {
	h := s.tier.Hash(&a)
	if s.disk == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		_, err := s.annotate(h, &a, more)
		return err
	}
	turn, err := s.acquire(ctx, a)
	if err != nil {
		return err
	}
	defer s.release(turn)
	s.mu.Lock()
	id, err := s.annotate(h, &a, more)
	if id == 0 || err != nil || s.tier.At(id).Mark&onDisk == 0 {
		s.mu.Unlock()
		return err
	}
	body := s.tier.Body(id)
	s.tier.Hold(body)
	r, payload := s.record(id)
	turn.lost = false
	s.mu.Unlock()
	err = s.disk.Write(ctx, r, payload, false)
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.tier.Drop(body)
	if err != nil {
		return diskError("annotated on SSD", len(payload), err)
	}
	s.counts.AnnotatedBytes += uint64(len(payload))
	s.wrote(turn, h, &r)
	return nil
}

// annotate appends to the attribute of a block in RAM. annotate returns 0 if nothing has changed.
// The caller holds the lock.
func (s *Store) annotate(h uint64, a *block.Addr, more func(attr []byte) []byte) (ram.ID, error) {
	if s.closed {
		return 0, ErrClosed
	}
	id := s.find(h, a)
	if id == 0 || s.purgesID(id) {
		return 0, ErrMiss
	}
	text := more(s.tier.Attr(id))
	switch {
	case len(text) == 0:
		return 0, nil
	case !s.tier.AppendAttr(id, text):
		return 0, ErrNoRoom
	}
	return id, nil
}
