//go:build linux

package client

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/frame"
)

// View is a block in the daemon's memory. Close it; a View that is forgotten keeps the daemon from
// using its memory until the lease ends.
type View struct {
	socket   *socket
	arena    *arena
	bytes    []byte
	lease    uint64
	deadline atomic.Int64 // CLOCK_MONOTONIC, ns
	closed   atomic.Bool
	crc      uint32
}

// Bytes is the block's payload: memory that cannot be written, the block's until the lease ends,
// not to be touched after Close.
func (v *View) Bytes() []byte { return v.bytes }

// CRC is the CRC32C that the payload had when it was put.
func (v *View) CRC() uint32 { return v.crc }

// Verify reads all of the payload and compares its checksum; ErrCorrupt if it is another one.
func (v *View) Verify() error {
	sum := block.Sum(v.bytes)
	if err := v.Err(); err != nil {
		return err
	}
	if sum != v.crc {
		return fmt.Errorf("%w: %08x, not %08x", ErrCorrupt, sum, v.crc)
	}
	return nil
}

// Remaining is how long the lease still lasts; 0 or less if it has ended.
func (v *View) Remaining() time.Duration {
	if v.socket.dead.Load() {
		return 0
	}
	return time.Duration(v.deadline.Load() - frame.Monotonic())
}

// Err is nil if all that has been read up to now is the block, and ErrLeaseExpired if it need not
// be.
func (v *View) Err() error {
	if v.Remaining() <= 0 {
		return ErrLeaseExpired
	}
	return nil
}

// Renew prolongs the lease to a full one from now. ErrLeaseExpired if it has ended already.
func (v *View) Renew(ctx context.Context) error {
	if v.closed.Load() {
		return ErrLeaseExpired
	}
	s := v.socket
	if err := s.client.pool.take(ctx, s); err != nil {
		return err
	}
	defer s.client.pool.put(s)
	if err := v.Err(); err != nil {
		return err
	}
	s.begin(frame.OpRenew, 1)
	s.out = binary.LittleEndian.AppendUint64(s.out, v.lease)
	h, body, err := s.exchange(ctx)
	if err != nil {
		return err
	}
	if h.Count != 1 {
		return s.nonsense()
	}
	deadline := int64(frame.Lease(body, 0))
	if deadline == 0 {
		return ErrLeaseExpired
	}
	v.deadline.Store(deadline)
	return nil
}

// Close ends the lease. Nil means that everything read from the View was the block; ErrLeaseExpired
// that the lease had ended before, and what was read must not be used. A second Close does nothing
// and returns ErrLeaseExpired.
func (v *View) Close() error {
	if !v.closed.CompareAndSwap(false, true) {
		return ErrLeaseExpired
	}
	err := v.Err()
	v.socket.giveBack(v.lease)
	v.arena.drop()
	return err
}
