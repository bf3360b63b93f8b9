//go:build linux

package client

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/frame"
)

// View is a block in the daemon's memory. Close each View. The daemon cannot reuse the memory of an
// unclosed View until its lease ends.
type View struct {
	socket   *socket
	arena    *arena
	bytes    []byte
	lease    uint64
	deadline int64 // CLOCK_MONOTONIC, ns
	closed   atomic.Bool
	crc      uint32
}

// Bytes returns the block's payload as read-only memory. The memory is the block's until the lease
// ends. Do not touch the memory after Close.
func (v *View) Bytes() []byte { return v.bytes }

// CRC returns the payload's CRC32C at the time of the put.
func (v *View) CRC() uint32 { return v.crc }

// Verify reads the whole payload and compares its checksum. Verify returns ErrCorrupt if the
// checksums differ.
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

// Remaining returns the rest of the lease; 0 or less if it has ended.
func (v *View) Remaining() time.Duration {
	if v.socket.dead.Load() {
		return 0
	}
	return time.Duration(v.deadline - frame.Monotonic())
}

// Err returns nil if everything read so far is the block's. Otherwise Err returns ErrLeaseExpired.
func (v *View) Err() error {
	if v.Remaining() <= 0 {
		return ErrLeaseExpired
	}
	return nil
}

// Close ends the lease. Nil means that everything read from the View was the block's.
// ErrLeaseExpired means that the lease had ended before; do not use the bytes after an expired
// lease. A second Close does nothing and returns ErrLeaseExpired.
func (v *View) Close() error {
	if !v.closed.CompareAndSwap(false, true) {
		return ErrLeaseExpired
	}
	err := v.Err()
	v.socket.giveBack(v.lease)
	v.arena.drop()
	return err
}
