package ssd

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"

	"github.com/cognitora/dataplane/kv/block"
)

// scanBuckets is the number of parts into which Scan divides the addresses, by the first bits of
// their digests.
const (
	scanBits    = 12
	scanBuckets = 1 << scanBits
)

// Scan calls visit with the blocks in one part of the addresses, and returns the cursor of the next
// part; 0: the end. cursor names the part; 0 is the first. A block that exists during all calls is
// seen at least once. visit must not call methods of the tier that wait for Scan. If visit returns
// false, the part ends, and next is the same cursor again.
func (t *Tier) Scan(ctx context.Context, cursor uint64, visit func(Info) bool) (next uint64, err error) {
	if cursor >= scanBuckets {
		return 0, nil
	}
	if err := ctx.Err(); err != nil {
		return cursor, err
	}
	if !t.users.enter() {
		return cursor, ErrClosed
	}
	defer t.users.leave()
	lower := binary.BigEndian.AppendUint16([]byte{rowRecord}, uint16(cursor)<<(16-scanBits))
	upper := []byte{rowRecord + 1}
	if next = (cursor + 1) % scanBuckets; next != 0 {
		upper = binary.BigEndian.AppendUint16([]byte{rowRecord}, uint16(next)<<(16-scanBits))
	}
	err = t.rows.each(lower, upper, func(key, value []byte) bool {
		var r row
		a, ok := parseAddr(key[1:])
		if !ok || r.decode(bytes.Clone(value)) != nil {
			return true
		}
		info, ok := t.infoOf(&a, &r)
		if ok && !visit(info) {
			next = cursor
			return false
		}
		return true
	})
	if err != nil {
		t.stats.readErrors.Add(1)
		return cursor, fmt.Errorf("%w: %w", ErrIO, err)
	}
	return next, nil
}

// Describe returns all fields of a block, with key and attribute, without marking it as used. It
// returns ErrMiss, ErrIO or ErrClosed.
func (t *Tier) Describe(a block.Addr) (Info, error) {
	if !t.users.enter() {
		return Info{}, ErrClosed
	}
	defer t.users.leave()
	for range readAttempts { // while a block is replaced, its row is newer than its entry
		r, ok, err := t.rows.get(&a)
		if err != nil {
			t.stats.readErrors.Add(1)
			return Info{}, fmt.Errorf("%w: %w", ErrIO, err)
		}
		if info, live := t.infoOf(&a, &r); ok && live {
			return info, nil
		}
	}
	return Info{}, ErrMiss
}

// infoOf returns the Info of a row, if its block is live.
func (t *Tier) infoOf(a *block.Addr, r *row) (Info, bool) {
	e, ok := t.find(a, false)
	if !ok || e.seq != r.seq {
		return Info{}, false
	}
	return Info{Addr: *a, Namespace: t.names.get(a.Model), Key: r.key, Attr: r.attr, Parent: r.parent,
		Expires: e.expires,
		Length:  int(r.size), CRC: r.crc}, true
}
