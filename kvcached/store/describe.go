package store

import (
	"bytes"
	"context"
	"errors"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ram"
	"github.com/cognitora/dataplane/kvcached/ssd"
)

// Describe returns all that is known of a block, also its key and attribute, in whichever tier it
// lies. Describe does not count as a use and does not move the block. ErrMiss: there is no block.
func (s *Store) Describe(ctx context.Context, a block.Addr) (Info, error) {
	if s.hidden() {
		return Info{}, ErrMiss
	}
	h := s.tier.Hash(&a)
	for range statAttempts {
		moved := s.moved.Load()
		info, err := s.describeRAM(h, &a)
		if err == nil || !errors.Is(err, ErrMiss) || s.disk == nil {
			return info, err
		}
		i, err := s.disk.Describe(a)
		switch {
		case err == nil && !s.expired(i.Expires):
			return fromDisk(&i), nil
		case err != nil && !errors.Is(err, ssd.ErrMiss):
			return Info{}, diskError("described", 0, err)
		}
		// A block that was replaced meanwhile came to RAM before SSD lost it, so look again.
		if moved == s.moved.Load() || ctx.Err() != nil {
			break
		}
	}
	if err := ctx.Err(); err != nil {
		return Info{}, err
	}
	return Info{}, ErrMiss
}

func (s *Store) describeRAM(h uint64, a *block.Addr) (Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return Info{}, ErrClosed
	}
	id := s.find(h, a)
	if id == 0 {
		return Info{}, ErrMiss
	}
	return s.all(id), nil
}

// all returns the Info of a block in RAM. The caller holds the lock.
func (s *Store) all(id ram.ID) (info Info) {
	s.info(id, &info)
	info.Item.Key, info.Item.Attr = bytes.Clone(s.tier.Key(id)), bytes.Clone(s.tier.Attr(id))
	return info
}

// fromDisk returns the Info of a block on SSD.
func fromDisk(i *ssd.Info) Info {
	it := Item{Addr: i.Addr, Namespace: i.Namespace, Key: i.Key, Parent: i.Parent, Expires: i.Expires, Attr: i.Attr}
	return Info{Item: it, Length: i.Length, CRC: i.CRC, Tiers: SSD}
}

// NamespaceOf returns the text of a namespace. The text is empty if the namespace has no blocks in
// RAM.
func (s *Store) NamespaceOf(id block.ModelID) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tier.Names().TextOf(id)
}
