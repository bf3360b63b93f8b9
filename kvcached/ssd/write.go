package ssd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cognitora/dataplane/kv/block"
)

// Write stores payload under r.Addr and replaces an earlier block. payload must not change until
// Write returns. It is written without a copy if it begins at a multiple of 4 KiB, has capacity up
// to the end of its last 4 KiB, and zeros follow it there. A durable write, and every replacement,
// returns when it survives a crash; other writes may be lost in one. At the disk cap Write waits
// for reclaim. It returns ErrTooLarge, ErrInvalid, ErrBudget, ErrQuota, ErrReadOnly, ErrIO,
// ErrClosed, or the error of ctx. A failed write does not count in the budget.
func (t *Tier) Write(ctx context.Context, r Record, payload []byte, durable bool) (err error) {
	h := header{Record: r, size: len(payload)}
	account, err := t.admit(&h)
	if err != nil {
		return err
	}
	bytes := int64(h.pages()) * page
	defer t.usage.release(account, bytes)
	day, ok := t.budget.take(t.o.now(), t.o.DailyWrites, bytes, durable)
	if !ok {
		t.stats.overBudget.Add(1)
		return ErrBudget
	}
	defer func() {
		if err != nil {
			t.budget.giveBack(day, bytes)
		}
	}()
	if !t.users.enter() {
		return ErrClosed
	}
	defer t.users.leave()
	if t.rows.broken.Load() {
		return ErrReadOnly
	}
	if err := t.names.begin(t.rows, r.Addr.Model, r.Namespace); err != nil {
		t.wakeKeeper() // the keeper may make room
		return err
	}
	defer t.names.end(r.Addr.Model)
	if !h.HasCRC {
		h.CRC = block.Sum(payload)
	}
	h.crc = h.CRC
	body, own, err := t.body(ctx, &h, payload)
	if err != nil {
		return err
	}
	if own {
		defer t.buffers.put(body)
	}
	hash := t.index.hash(&r.Addr)
	for {
		if err := t.awaitSpace(ctx, h.pages()); err != nil {
			return err
		}
		err := t.writeAt(ctx, hash, &h, payload, body, durable)
		if !errors.Is(err, errNoSpace) {
			return err
		}
	}
}

// admit refuses records that cannot be stored, sets the flags, and reserves room in an account,
// which it returns.
func (t *Tier) admit(h *header) (*account, error) {
	switch {
	case len(h.Namespace) > block.MaxNamespace, len(h.Key) > block.MaxKey, len(h.Attr) > block.MaxAttr:
		return nil, fmt.Errorf("%w: a name is too long", ErrInvalid)
	case h.size > block.MaxPayload:
		return nil, ErrTooLarge
	}
	if t.o.Key != nil {
		h.flags |= flagSealed
	}
	if storedSize(h.size, h.flags) <= inlineRoom(h.names()) {
		h.flags |= flagInline
	}
	if int64(h.pages()+1+footerPages(1))*page > t.o.segmentSize {
		most := t.o.segmentSize - int64(2+footerPages(1))*page
		return nil, &SizeError{Most: min(block.MaxPayload, most-int64(storedSize(0, h.flags))), Cap: t.o.Cap}
	}
	return t.takeQuota(h)
}

// body returns the pages of the payload that follow the header: the payload's own memory, or a copy
// (own). A payload that is inline, or will be sealed, has no pages yet.
func (t *Tier) body(ctx context.Context, h *header, payload []byte) (b []byte, own bool, err error) {
	if h.flags != 0 {
		return nil, false, nil
	}
	size := roundUp(h.size)
	if aligned(payload, size) {
		return payload[:size], false, nil
	}
	if b, err = t.buffers.get(ctx, size); err != nil {
		return nil, false, err
	}
	clear(b[copy(b, payload):])
	return b, true, nil
}

// writeAt writes the record into the log and publishes it, under the address's lock.
func (t *Tier) writeAt(ctx context.Context, hash uint64, h *header, payload, body []byte, durable bool) error {
	t.addrs.lock(hash)
	defer t.addrs.unlock(hash)
	replaces, err := t.holds(hash, &h.Addr)
	if err != nil {
		return err
	}
	f, err := t.allocate(h.pages(), tableEntry{addr: h.Addr, size: uint32(h.size), crc: h.crc, flags: h.flags}, false)
	if err != nil {
		return err
	}
	h.place, h.seq, h.salt = f.place, f.seq, f.seg.salt
	published := false
	defer func() {
		if !published {
			t.doubt.add(f.place)
		}
		t.land(f, published)
	}()
	if err := t.writeRecord(ctx, f.seg, h, payload, body); err != nil {
		return err
	}
	if durable || replaces {
		if err := t.datasync(f.seg); err != nil {
			return fmt.Errorf("%w: %w", ErrIO, err)
		}
	}
	r := rowOf(h)
	c := t.rows.change()
	c.put(&h.Addr, &r)
	if err := c.commit(replaces); err != nil {
		t.writeFailed("row", err)
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	t.publish(&h.Addr, r.entry(hash))
	published = true
	t.stats.writes.Add(1)
	t.stats.payload.Add(uint64(h.size))
	return nil
}

// writeRecord writes header and payload with one system call.
func (t *Tier) writeRecord(ctx context.Context, s *segment, h *header, payload, body []byte) error {
	head := t.pages.Get().(*[page]byte)
	defer t.pages.Put(head)
	rest := h.encode(head[:])
	switch {
	case h.flags&flagSealed != 0:
		b, err := t.sealed(ctx, s, h, head[:], payload)
		if err != nil {
			return err
		}
		defer t.buffers.put(b)
		if h.flags&flagInline != 0 {
			copy(rest, b[:storedSize(h.size, h.flags)])
		} else {
			body = b
		}
	case h.flags&flagInline != 0:
		copy(rest, payload)
	}
	bufs := [][]byte{head[:], body}
	if len(body) == 0 {
		bufs = bufs[:1]
	}
	if err := s.f.WriteAt(bufs, int64(h.page)*page); err != nil {
		t.writeFailed("write", err)
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	t.stats.written.Add(uint64(h.pages()) * page)
	return nil
}

// holds tells whether the address has a record, or may have one in the log. Its lock is held.
func (t *Tier) holds(hash uint64, a *block.Addr) (bool, error) {
	if t.doubt.any() {
		return true, nil
	}
	return t.stored(hash, a)
}

// stored tells whether the address has a record. Its lock is held.
func (t *Tier) stored(hash uint64, a *block.Addr) (bool, error) {
	loaded := t.loaded() // asked first, because rows that are loaded in between are in the index
	if e, ok := t.index.get(hash); ok {
		return e.state == stateLive, nil
	}
	if loaded {
		return false, nil
	}
	_, ok, err := t.rowFound(a)
	return ok, err
}

// publish puts e into the index. The address's lock is held.
func (t *Tier) publish(a *block.Addr, e entry) {
	e.space = t.usage.add(a.Model, t.names.get(a.Model), e.bytes())
	old, _ := t.index.put(e, nil)
	t.account(&old, -1)
	t.account(&e, 1)
}

// account adds e to the live bytes of its segment, or subtracts it. When it subtracts, it also
// uncounts e in usage.
func (t *Tier) account(e *entry, sign int64) {
	if e.state != stateLive {
		return
	}
	if sign < 0 {
		t.usage.sub(e.space, e.bytes())
	}
	if s := t.segs.get(e.segment); s != nil {
		s.live.Add(sign * e.bytes())
		if e.used {
			s.used.Add(sign * e.bytes())
		}
	}
}

// budget counts the bytes written in a day.
type budget struct {
	mu   sync.Mutex
	day  int64
	used int64
}

const dayLength = int64(24 * time.Hour / time.Second)

// take counts n bytes, unless they are beyond the limit, and returns the day for giveBack.
func (b *budget) take(now time.Time, limit, n int64, force bool) (day int64, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if day = now.Unix() / dayLength; day != b.day {
		b.day, b.used = day, 0
	}
	if limit > 0 && !force && b.used+n > limit {
		return day, false
	}
	b.used += n
	return day, true
}

// giveBack uncounts n bytes that were taken on the given day.
func (b *budget) giveBack(day, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if day == b.day {
		b.used -= n
	}
}

func (b *budget) state() (day, used int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.day, b.used
}
