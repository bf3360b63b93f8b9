package store

import "context"

// existing tells whether the draft's address has a block, and makes that block durable if o says
// so. The caller holds the address's op. An error says that the block exists and could not be made
// durable.
func (d *Draft) existing(ctx context.Context, turn *op, o *CommitOptions, info *Info) (bool, error) {
	if !d.exists(info) {
		return false, nil
	}
	if !o.Durable {
		return true, nil
	}
	s := d.s
	synced, err := s.disk.Sync(d.it.Addr)
	if synced {
		info.Tiers |= SSD
		return true, nil
	}
	there, wrote := d.persist(ctx, turn, info)
	switch {
	case there && wrote == nil:
		return true, nil
	case there:
		err = wrote
	}
	if err != nil {
		return false, diskError("durable", info.Length, err)
	}
	return false, nil // the block has been evicted
}

// persist writes the RAM block at the draft's address durably to SSD. persist returns false if RAM
// has the block no longer, or a purge is removing it.
func (d *Draft) persist(ctx context.Context, turn *op, info *Info) (there bool, err error) {
	s := d.s
	s.mu.Lock()
	id := s.find(d.hash, &d.it.Addr)
	if id == 0 || s.purgesID(id) {
		s.mu.Unlock()
		return false, nil
	}
	body := s.tier.Body(id)
	s.tier.Hold(body)
	r, payload := s.record(id)
	turn.lost = false
	s.mu.Unlock()
	err = s.disk.Write(ctx, r, payload, true)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.counts.Durable++
		s.wrote(turn, d.hash, &r)
		info.Tiers |= SSD
	}
	s.tier.Drop(body)
	return true, err
}
