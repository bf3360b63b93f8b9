package ssd

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/cognitora/dataplane/kv/block"
)

// Find returns a block's Info without key, attribute and parent, from memory, or from the rows
// while the index is being loaded. It does not mark the block as used. A later read may still miss.
func (t *Tier) Find(a block.Addr) (Info, bool) {
	if !t.users.enter() {
		return Info{}, false
	}
	defer t.users.leave()
	e, ok := t.find(&a, false)
	if !ok {
		return Info{}, false
	}
	return Info{Addr: a, Namespace: t.names.get(a.Model), Expires: e.expires, Length: int(e.size), CRC: e.crc}, true
}

// Touch marks blocks as used, so that reclaim spares them.
func (t *Tier) Touch(addrs ...block.Addr) {
	for i := range addrs {
		t.use(t.index.hash(&addrs[i]), true)
	}
}

// use marks the entry of hash as used or not.
func (t *Tier) use(hash uint64, used bool) (entry, bool) {
	e, ok, changed := t.index.mark(hash, &used)
	if changed {
		if s := t.segs.get(e.segment); s != nil && used {
			s.used.Add(e.bytes())
		} else if s != nil {
			s.used.Add(-e.bytes())
		}
	}
	return e, ok
}

// find returns the live entry of a.
func (t *Tier) find(a *block.Addr, use bool) (entry, bool) {
	hash := t.index.hash(a)
	look := t.index.get
	if use {
		look = func(hash uint64) (entry, bool) { return t.use(hash, true) }
	}
	loaded := t.loaded() // asked first, because rows that are loaded in between are in the index
	e, ok := look(hash)
	if !ok && !loaded {
		r, found, err := t.rowFound(a)
		if err != nil {
			t.stats.readErrors.Add(1)
		}
		if e, ok = r.entry(hash), found; !ok {
			// The row may have been loaded in between.
			e, ok = look(hash)
		}
	}
	if !ok || e.state != stateLive || t.expired(e.expires) {
		return entry{}, false
	}
	return e, true
}

func (t *Tier) expired(at int64) bool { return at != 0 && at <= t.o.now().UnixMilli() }

// readAttempts bounds how often a read follows a record that reclaim moves.
const readAttempts = 4

// Read reads the block's payload into dst and marks the block as used. It needs no copy if dst
// begins at a multiple of 4 KiB and has capacity up to the end of the payload's last 4 KiB; it
// zeroes the rest of those. It returns ErrMiss, ErrShort (Info.Length has the needed length),
// ErrCorrupt, ErrIO, ErrClosed, or the error of ctx.
func (t *Tier) Read(ctx context.Context, a block.Addr, dst []byte) (Info, error) {
	if !t.users.enter() {
		return Info{}, ErrClosed
	}
	defer t.users.leave()
	for range readAttempts {
		e, ok := t.find(&a, true)
		if !ok {
			break
		}
		if len(dst) < int(e.size) {
			return Info{Addr: a, Expires: e.expires, Length: int(e.size), CRC: e.crc}, ErrShort
		}
		s := t.segs.acquire(e.segment)
		if s == nil {
			continue
		}
		info, err := t.readFrom(ctx, s, &a, &e, dst)
		t.release(s)
		switch {
		case err == nil:
			t.stats.reads.Add(1)
			t.stats.readBytes.Add(uint64(e.size))
			info.Expires = e.expires
			return info, nil
		case errors.Is(err, errRecord) || errors.Is(err, io.ErrUnexpectedEOF):
			if !t.dropDamaged(&a, &e, err) {
				continue
			}
			return Info{}, ErrCorrupt
		case ctx.Err() != nil:
			return Info{}, ctx.Err()
		default:
			t.stats.readErrors.Add(1)
			return Info{}, fmt.Errorf("%w: %w", ErrIO, err)
		}
	}
	t.stats.misses.Add(1)
	return Info{}, ErrMiss
}

// readFrom reads and verifies the record of e.
func (t *Tier) readFrom(ctx context.Context, s *segment, a *block.Addr, e *entry, dst []byte) (Info, error) {
	if err := t.startRead(ctx); err != nil {
		return Info{}, err
	}
	defer func() { <-t.reading }()
	head := t.pages.Get().(*[page]byte)
	defer t.pages.Put(head)
	var h header
	payload, err := t.readRecord(ctx, s, &h, head[:], e.place, int(e.size), e.flags, dst)
	if err != nil {
		return Info{}, err
	}
	if h.Addr != *a || h.seq != e.seq || h.crc != e.crc {
		return Info{}, fmt.Errorf("%w: it is another block's", errRecord)
	}
	if room := roundUp(len(payload)); aligned(dst, room) {
		clear(dst[:room][len(payload):])
	}
	return Info{Addr: *a, Namespace: h.Namespace, Key: append([]byte(nil), h.Key...),
		Attr: append([]byte(nil), h.Attr...), Parent: h.Parent, Length: h.size, CRC: h.crc}, nil
}

func (t *Tier) startRead(ctx context.Context) error {
	select {
	case t.reading <- struct{}{}:
		return nil
	default:
	}
	select {
	case t.reading <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// readRecord reads the record at p, whose payload has the given size and flags, into dst. It checks
// place, salt and checksums, but not the address.
func (t *Tier) readRecord(ctx context.Context, s *segment, h *header, head []byte, p place, size int, flags uint16,
	dst []byte) ([]byte, error) {
	off := int64(p.page) * page
	if off+int64(recordPages(size, flags))*page > s.size.Load() {
		return nil, io.ErrUnexpectedEOF
	}
	stored := storedSize(size, flags)
	bufs := [][]byte{head, nil}
	var b []byte
	switch room := roundUp(stored); {
	case flags&flagInline != 0 || room == 0:
		bufs = bufs[:1]
	case stored == size && aligned(dst, room):
		b = dst[:room]
	default:
		own, err := t.readBuffers.get(ctx, room)
		if err != nil {
			return nil, err
		}
		defer t.readBuffers.put(own)
		b = own
	}
	if b != nil {
		bufs[1] = b
	}
	if err := s.f.ReadAt(bufs, off); err != nil {
		return nil, err
	}
	if err := h.decode(head); err != nil {
		return nil, err
	}
	if h.place != p || h.salt != s.salt || h.size != size || h.flags != flags {
		return nil, fmt.Errorf("%w: it belongs elsewhere", errRecord)
	}
	if flags&flagInline != 0 {
		b = head[recordFixed+h.names():]
	}
	return t.unseal(s, h, head, b[:stored], dst[:size])
}

// unseal copies the stored bytes to dst, unless they are there already. It decrypts sealed bytes
// and verifies the checksum.
func (t *Tier) unseal(s *segment, h *header, head, stored, dst []byte) ([]byte, error) {
	switch {
	case h.flags&flagSealed != 0 && s.seal != nil:
		if _, err := s.seal.Open(dst[:0], nonce(h.page), stored, authenticated(head, h.names())); err != nil {
			return nil, fmt.Errorf("%w: the seal is broken", errRecord)
		}
	case h.flags&flagSealed != 0 || s.seal != nil:
		return nil, fmt.Errorf("%w: sealed or open against the directory's rule", errRecord)
	case len(dst) > 0 && &stored[0] != &dst[0]:
		copy(dst, stored)
	}
	if block.Sum(dst) != h.crc {
		return nil, fmt.Errorf("%w: the payload's checksum is wrong", errRecord)
	}
	return dst, nil
}

// dropDamaged drops the record of e for good. false: the address has got another record.
func (t *Tier) dropDamaged(a *block.Addr, e *entry, why error) bool {
	t.addrs.lock(e.hash)
	defer t.addrs.unlock(e.hash)
	if now, ok := t.find(a, false); !ok || !now.same(e) {
		return false
	}
	t.stats.corrupt.Add(1)
	t.o.Logger.Error("ssd: a stored block is damaged and dropped", "segment", e.segment, "page", e.page, "err", why)
	t.forget(e.hash, e.seq)
	c := t.rows.change()
	c.bury(a, e.seq, t.end())
	if err := c.commit(false); err != nil {
		t.writeFailed("row", err)
	}
	if t.o.Evicted != nil {
		t.o.Evicted(*a)
	}
	return true
}

// forget removes the entry of hash from the index. The address's lock is held.
func (t *Tier) forget(hash, seq uint64) {
	if !t.loaded() {
		old, _ := t.index.put(entry{hash: hash, seq: seq, state: stateDead}, nil)
		t.account(&old, -1)
		return
	}
	old, _ := t.index.remove(hash)
	t.account(&old, -1)
}
