package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ram"
	"github.com/cognitora/dataplane/kvcached/ssd"
)

// disk is the part of an SSD tier that a store uses. Do not call the methods of disk under the
// store's lock.
type disk interface {
	Find(a block.Addr) (ssd.Info, bool)
	Doubtful(a block.Addr) bool
	Describe(a block.Addr) (ssd.Info, error)
	Read(ctx context.Context, a block.Addr, dst []byte) (ssd.Info, error)
	Write(ctx context.Context, r ssd.Record, payload []byte, durable bool) error
	Delete(ctx context.Context, addrs ...block.Addr) (int, error)
	Drop(addrs ...block.Addr) error
	Settle() error
	SetExpiry(a block.Addr, unixMS int64) (bool, error)
	Sync(a block.Addr) (bool, error)
	Touch(addrs ...block.Addr)
	Scan(ctx context.Context, cursor uint64, visit func(ssd.Info) bool) (uint64, error)
	Namespaces() []ssd.NamespaceUsage
	ForgetNames()
	Ready() <-chan struct{}
	Progress() ssd.Progress
	Stats() ssd.Stats
	CloseWithin(ctx context.Context) error
}

// Marks of a block in RAM.
const (
	onDisk = 1 << iota // SSD has the same block
	queued             // the block waits to be written to SSD
)

// openDisk opens the SSD tier, if the options have one.
func (s *Store) openDisk(ctx context.Context) error {
	if s.o.SSD == nil {
		return nil
	}
	o := *s.o.SSD
	o.Evicted = s.droppedByDisk
	o.Logger = cmp.Or(o.Logger, s.log)
	t, err := ssd.Open(ctx, o)
	if err != nil {
		return err
	}
	s.disk = t
	if s.o.wrap != nil {
		s.disk = s.o.wrap(t)
	}
	return nil
}

// droppedByDisk is called by the SSD tier when it has dropped a block on its own.
func (s *Store) droppedByDisk(a block.Addr) {
	h := s.tier.Hash(&a)
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.ops[a]; o != nil {
		o.lost = true
	}
	if id := s.tier.Find(h, &a); id != 0 {
		s.tier.At(id).Mark &^= onDisk
	}
	s.leftDisk(h, &a, block.Digest{})
}

// cameToDisk reports that SSD has the block of a record. The caller holds the lock.
func (s *Store) cameToDisk(r *ssd.Record) {
	if s.o.Changed != nil {
		s.o.Changed(Change{Addr: r.Addr, Namespace: r.Namespace, Parent: r.Parent, Key: r.Key, Attr: r.Attr, Tier: SSD,
			Present: true})
	}
}

// leftDisk reports that a block left SSD. The caller holds the lock.
func (s *Store) leftDisk(h uint64, a *block.Addr, parent block.Digest) {
	if s.o.Changed == nil {
		return
	}
	c := Change{Addr: *a, Namespace: s.tier.Names().TextOf(a.Model), Parent: parent, Tier: SSD}
	if id := s.tier.Find(h, a); id != 0 {
		c.Parent = s.tier.Parent(id)
	}
	s.o.Changed(c)
}

// announce reports the blocks that the SSD tier has from an earlier run, once its index is loaded.
func (s *Store) announce() {
	if s.o.Changed == nil {
		return
	}
	for _, first := range []<-chan struct{}{s.disk.Ready(), s.shown} {
		select {
		case <-first:
		case <-s.life.Done():
			return
		}
	}
	for cursor := uint64(0); s.life.Err() == nil; {
		var found []ssd.Info
		next, err := s.disk.Scan(s.life, cursor, func(i ssd.Info) bool {
			found = append(found, i)
			return true
		})
		if err != nil {
			s.log.Warn("what the SSD tier has cannot be told to watchers", "reason", err)
			return
		}
		for i := range found {
			s.announceOne(&found[i])
		}
		if cursor = next; cursor == 0 {
			return
		}
	}
}

func (s *Store) announceOne(i *ssd.Info) {
	o, err := s.acquire(s.life, i.Addr)
	if err != nil {
		return
	}
	defer s.release(o)
	if _, there := s.disk.Find(i.Addr); !there {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !o.lost {
		s.o.Changed(Change{Addr: i.Addr, Namespace: i.Namespace, Parent: i.Parent, Key: i.Key, Attr: i.Attr, Tier: SSD,
			Present: true, Length: i.Length})
	}
}

// promote brings a block from SSD to RAM and holds it for b. A second caller for the same block
// waits for the op and finds the block in RAM.
func (s *Store) promote(ctx context.Context, h uint64, a *block.Addr, b *Block) error {
	o, err := s.acquire(ctx, *a)
	if err != nil {
		return err
	}
	defer s.release(o)
	if found, err := s.hit(h, a, b); found || err != nil {
		return err
	}
	info, there := s.disk.Find(*a)
	if !there || s.expired(info.Expires) {
		return s.missed(b)
	}
	p := promotion{s: s, o: o, hash: h}
	if err := p.reserve(ctx, info.Length); err != nil {
		return err
	}
	return p.read(ctx, b)
}

// promotion is a block on its way from SSD to RAM.
type promotion struct {
	s      *Store
	o      *op
	hash   uint64
	body   ram.Ext
	memory []byte
}

// reserve reserves room for a payload and for the longest key and attribute.
func (p *promotion) reserve(ctx context.Context, length int) (err error) {
	s := p.s
	s.mu.Lock()
	defer s.mu.Unlock()
	var room ram.Room
	err = s.evicting(ctx, func() (again bool, err error) {
		p.body, again, err = s.tier.Reserve(0, ram.PieceSize(length, block.MaxKey+block.MaxAttr), &room)
		return again, err
	})
	if err == nil {
		p.memory = s.tier.Memory(p.body)
	}
	return err
}

// read reads the block from SSD and publishes it.
func (p *promotion) read(ctx context.Context, b *Block) error {
	s := p.s
	info, err := s.disk.Read(ctx, p.o.addr, p.memory)
	if err == nil {
		layOut(p.memory, info.Length, info.Key, info.Attr)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		err = p.publish(ctx, &info, b)
	}
	if err == nil {
		return nil
	}
	s.tier.Cancel(0, p.body)
	switch {
	case ctx.Err() != nil || errors.Is(err, ErrClosed) || errors.Is(err, ErrQuota) || errors.Is(err, ram.ErrNamespaces):
		return err
	case errors.Is(err, ssd.ErrClosed):
		return ErrClosed
	case errors.Is(err, ssd.ErrMiss):
	default:
		s.counts.PromotionsFailed++
	}
	return s.miss(b)
}

// publish makes the block visible and holds it for b. The caller holds the lock.
func (p *promotion) publish(ctx context.Context, info *ssd.Info, b *Block) error {
	s := p.s
	if s.closed {
		return ErrClosed
	}
	names := s.tier.Names()
	ns, err := names.Hold(info.Addr.Model, info.Namespace)
	if err != nil {
		return err
	}
	defer names.Drop(ns)
	s.tier.Trim(0, p.body, ram.PieceSize(info.Length, len(info.Key)+len(info.Attr)))
	gone := false // SSD has dropped the block meanwhile, or a purge drops it
	if err := s.evicting(ctx, func() (again bool, err error) {
		if gone = p.o.lost || s.purges(info.Namespace, info.Key); gone {
			return false, nil
		}
		return s.tier.Admit(ns, p.body)
	}); err != nil {
		return err
	}
	if gone {
		return ssd.ErrMiss
	}
	id := s.tier.Publish(p.hash, &info.Addr, ns, p.body, ram.Meta{
		Parent: info.Parent, Expires: info.Expires, Length: uint32(info.Length), CRC: info.CRC,
		KeyLen: uint16(len(info.Key)), AttrLen: uint16(len(info.Attr)),
	})
	s.tier.At(id).Mark |= onDisk
	s.counts.Promotions++
	s.changed(id, true)
	s.use(p.hash, id, b)
	s.tier.Drop(p.body)
	return nil
}

// record is the SSD record of the draft's block. The caller holds the lock, or is the only user of
// the piece.
func (d *Draft) record() ssd.Record {
	n := ram.MetaAt(int(d.meta.Length))
	key, attr := int(d.meta.KeyLen), int(d.meta.AttrLen)
	r := ssd.Record{
		Addr: d.it.Addr, Namespace: d.it.Namespace, Parent: d.meta.Parent, Expires: d.meta.Expires, CRC: d.crc,
		HasCRC: true,
	}
	if key > 0 {
		r.Key = d.memory[n : n+key]
	}
	if attr > 0 {
		r.Attr = d.memory[n+key : n+key+attr]
	}
	return r
}

// padded returns the payload. The slice's capacity extends to the end of the last granule if only
// zeros follow the payload there.
func padded(memory []byte, length, names int) []byte {
	end := (length + ram.Granule - 1) &^ (ram.Granule - 1)
	if names > 0 && ram.MetaAt(length) < end {
		end = length
	}
	return memory[:length:end]
}

// DiskError says that the SSD tier failed. The error's text is for a log, because it may name
// files.
type DiskError struct {
	What string // the state that the block did not reach: durable, deleted, ...
	Err  error
}

func (e *DiskError) Error() string {
	return fmt.Sprintf("store: the block is not %s: %v", e.What, e.Err)
}

func (e *DiskError) Unwrap() error { return e.Err }

// Full tells whether the disk has no room. A later try may succeed then.
func (e *DiskError) Full() bool {
	return errors.Is(e.Err, syscall.ENOSPC) || errors.Is(e.Err, syscall.EDQUOT)
}

// Public is the error's text for a client.
func (e *DiskError) Public() string {
	if e.Full() {
		return fmt.Sprintf("the cache's disk has no room, so the block is not %s; try again later, or give the SSD "+
			"tier more of it", e.What)
	}
	return fmt.Sprintf("the cache's disk failed, so the block is not %s; the daemon's log says why", e.What)
}

// diskError returns the error for a caller when the SSD tier fails. length is the payload's length
// in bytes; 0: the error is about no payload.
func diskError(what string, length int, err error) error {
	var size *ssd.SizeError
	switch {
	case errors.As(err, &size):
		return &SizeError{Length: int64(length), Most: size.Most, Setting: "kvcached.ssd", Size: size.Cap,
			Durable: true}
	case errors.Is(err, ssd.ErrTooLarge):
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	case errors.Is(err, ssd.ErrQuota):
		return fmt.Errorf("%w: %w", ErrQuota, err)
	case errors.Is(err, ssd.ErrClosed):
		return ErrClosed
	}
	return &DiskError{what, err}
}
