package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ram"
)

// CommitOptions are the conditions and changes of a Commit.
type CommitOptions struct {
	// Durable makes Commit wait until the block is durable on SSD. ErrNotDurable: there is no SSD
	// tier.
	Durable bool
	// CRC is the CRC32C that the payload must have. Commit checks CRC only with CheckCRC.
	CRC      uint32
	CheckCRC bool
	// IfAbsent commits nothing if the address has a block: Commit returns ErrExists and that
	// block's Info. If Durable is set, ErrExists also says that the existing block is durable on
	// SSD. Another error says that the existing block could not be made durable.
	IfAbsent bool
	// Copy says that another host has the block, so Commit does not call Options.Written.
	Copy bool
	// Unless is called under the store's lock just before the block becomes visible. Commit stores
	// nothing and returns ErrMiss if Unless returns true. Unless must be quick and must not call
	// the store. Nil: there is no condition.
	Unless func() bool
	// Expires replaces the Item's expiry, Unix ms; 0: the Item's expiry stays.
	Expires int64
	// Attr replaces the Item's attribute; nil: the Item's attribute stays. ErrTooLarge: Attr is
	// longer than the Item's.
	Attr []byte
}

// Commit makes the block visible and replaces the block at its address. SSD has lost a replaced
// block for good when Commit returns. Commit's errors are ErrCorrupt, ErrExists, ErrClosed,
// ErrNotDurable, ErrTooLarge, ErrMiss and those of SSD. The draft is over in any case.
func (d *Draft) Commit(ctx context.Context, o CommitOptions) (info Info, err error) {
	if d.done {
		return info, ErrClosed
	}
	d.done, d.unless = true, o.Unless
	d.Filled(int(d.meta.Length) - d.filled)
	d.meta.CRC = d.crc
	if o.Expires != 0 {
		d.meta.Expires, d.it.Expires = o.Expires, o.Expires
	}
	switch d.setAttr(o.Attr); {
	case len(o.Attr) > int(d.meta.AttrLen):
		err = fmt.Errorf("%w: an attribute of %d bytes, the draft has room for %d", ErrTooLarge, len(o.Attr),
			d.meta.AttrLen)
	case o.CheckCRC && o.CRC != d.crc:
		err = fmt.Errorf("%w: it is %08x, not %08x", ErrCorrupt, d.crc, o.CRC)
	case o.Durable && (d.s.disk == nil || d.s.o.SSD.Volatile):
		err = ErrNotDurable
	case d.s.disk == nil:
		err = d.commitRAM(o, &info)
	default:
		err = d.commit(ctx, o, &info)
	}
	if err != nil && !d.public {
		d.s.mu.Lock()
		d.cancel()
		d.s.mu.Unlock()
	}
	if errors.Is(err, errPurged) && !o.Copy {
		return Info{Item: d.it, Length: int(d.meta.Length), CRC: d.crc}, nil
	}
	if err == nil && d.s.o.Written != nil && !o.Copy {
		d.s.o.Written(&d.it)
	}
	if err == nil && d.timer != nil {
		d.timer.Observe(time.Since(d.began).Seconds())
	}
	return info, err
}

// setAttr replaces the draft's attribute. The draft's attribute stays if attr is nil or too long.
func (d *Draft) setAttr(attr []byte) {
	had := int(d.meta.AttrLen)
	if attr == nil || len(attr) > had {
		return
	}
	at := ram.MetaAt(int(d.meta.Length)) + int(d.meta.KeyLen)
	clear(d.memory[at+copy(d.memory[at:], attr) : at+had])
	d.meta.AttrLen = uint16(len(attr))
}

// commitRAM commits in a store without an SSD tier.
func (d *Draft) commitRAM(o CommitOptions, info *Info) error {
	s := d.s
	s.mu.Lock()
	defer s.mu.Unlock()
	if o.IfAbsent {
		if id := s.find(d.hash, &d.it.Addr); id != 0 {
			s.info(id, info)
			return ErrExists
		}
	}
	_, err := d.publish(info)
	return err
}

// errPurged says that a purge has removed the draft's block.
var errPurged = fmt.Errorf("%w: it was purged", ErrMiss)

// barred returns an error if the block must not become visible. The caller holds the lock.
func (d *Draft) barred() error {
	switch {
	case d.Purged():
		return errPurged
	case d.unless != nil && d.unless():
		return ErrMiss
	default:
		return nil
	}
}

// publish makes the block visible in RAM. The caller holds the lock.
func (d *Draft) publish(info *Info) (ram.ID, error) {
	s := d.s
	if s.closed {
		return 0, ErrClosed
	}
	if err := d.barred(); err != nil {
		return 0, err
	}
	s.open.remove(d)
	id := s.tier.Publish(d.hash, &d.it.Addr, d.ns, d.body, d.meta)
	d.public = true
	d.dropShare()
	s.counts.Puts++
	s.changed(id, true)
	s.info(id, info)
	s.tier.Drop(d.body)
	s.tier.Names().Drop(d.ns)
	return id, nil
}

// commit commits the block while it holds the address's op.
func (d *Draft) commit(ctx context.Context, o CommitOptions, info *Info) error {
	s := d.s
	turn, err := s.acquire(ctx, d.it.Addr)
	if err != nil {
		return err
	}
	defer s.release(turn)
	if o.IfAbsent {
		if there, err := d.existing(ctx, turn, &o, info); err != nil {
			return err
		} else if there {
			return ErrExists
		}
	}
	if o.Durable {
		return d.commitDurable(ctx, turn, info)
	}
	_, stored := s.disk.Find(d.it.Addr)
	stored = stored || s.disk.Doubtful(d.it.Addr)
	if err := d.commitBehind(info, stored); err != nil || !stored {
		return err
	}
	return d.deleteOld(ctx)
}

// exists tells whether the draft's address has a block. While the store is hidden, blocks that only
// SSD has do not count. The caller holds the address's op.
func (d *Draft) exists(info *Info) bool {
	s := d.s
	s.mu.Lock()
	if id := s.find(d.hash, &d.it.Addr); id != 0 {
		s.info(id, info)
		s.mu.Unlock()
		return true
	}
	s.mu.Unlock()
	if !s.hidden() {
		s.statDisk(&d.it.Addr, info)
	}
	return info.Tiers != 0
}

// commitBehind publishes the block in RAM. The block is queued for SSD if the same address was
// written or evicted not long ago. replaces says that SSD has an older block.
func (d *Draft) commitBehind(info *Info, replaces bool) error {
	s := d.s
	s.mu.Lock()
	defer s.mu.Unlock()
	id, err := d.publish(info)
	if err != nil {
		return err
	}
	if replaces {
		s.churn.now.add(d.hash)
	}
	if s.ghost.has(d.hash) {
		s.enqueue(d.hash, id)
	}
	s.ghost.add(d.hash)
	return nil
}

// commitDurable writes the block to SSD, replaces the old block there, and then publishes the block
// in RAM. SSD drops the new block if it has become barred meanwhile.
func (d *Draft) commitDurable(ctx context.Context, turn *op, info *Info) error {
	s := d.s
	r := d.record()
	payload := padded(d.memory, int(d.meta.Length), len(r.Key)+len(r.Attr))
	s.mu.Lock()
	turn.lost = false // the block is about to be replaced
	err := d.barred()
	s.mu.Unlock()
	if err != nil {
		return err
	}
	if err := s.disk.Write(ctx, r, payload, true); err != nil {
		return diskError("durable", int(d.meta.Length), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id, err := d.publish(info)
	if err != nil {
		s.mu.Unlock()
		defer s.mu.Lock()
		if _, failed := s.deleteAll(context.WithoutCancel(ctx), []block.Addr{d.it.Addr}); failed != nil {
			return failed
		}
		return err
	}
	s.counts.Durable++
	s.wrote(turn, d.hash, &r)
	s.info(id, info)
	return nil
}

// deleteOld deletes the replaced block from SSD. Readers get the new block from RAM meanwhile. A
// reader that misses the block in RAM waits until the op is released. If SSD fails, the new block
// is removed as well, because the old one might come back.
func (d *Draft) deleteOld(ctx context.Context) error {
	s := d.s
	s.moved.Add(1)
	_, err := s.disk.Delete(context.WithoutCancel(ctx), d.it.Addr)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		s.counts.DiskDeletes++
		s.leftDisk(d.hash, &d.it.Addr, d.meta.Parent)
		return nil
	}
	if id := s.tier.Find(d.hash, &d.it.Addr); id != 0 {
		s.remove(id)
	}
	return diskError("replaced on SSD", 0, err)
}
