package ssd

import (
	"fmt"

	"github.com/cognitora/dataplane/kv/block"
)

// Describe returns all fields of a block, key and attribute included, without marking it as used.
// ErrMiss, ErrIO, ErrClosed.
func (t *Tier) Describe(a block.Addr) (Info, error) {
	if !t.users.enter() {
		return Info{}, ErrClosed
	}
	defer t.users.leave()
	for range readAttempts { // a block being replaced has a newer row than entry
		e, ok := t.find(&a, false)
		if !ok {
			break
		}
		r, ok, err := t.rows.get(&a)
		if err != nil {
			t.stats.readErrors.Add(1)
			return Info{}, fmt.Errorf("%w: %w", ErrIO, err)
		}
		if ok && r.seq == e.seq {
			return Info{Addr: a, Namespace: t.names.get(a.Model), Key: r.key, Attr: r.attr, Parent: r.parent,
				Expires: e.expires, Length: int(r.size), CRC: r.crc}, nil
		}
	}
	return Info{}, ErrMiss
}
