package ssd

import (
	"context"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// TestBrokenWhileFull: writers that wait for space get an error when the rows cannot be written any
// more.
func TestBrokenWhileFull(t *testing.T) {
	f := &faults{rng: rand.New(rand.NewPCG(1, 7)), err: syscall.ENOSPC, some: 1}
	o := simOptions(newSimFS(), errorfs.Wrap(vfs.NewMem(), f))
	o.ReclaimRate = 1
	tier := open(t, o)
	<-tier.Ready()
	limited, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	ended := waitForSpace(limited, t, tier, 50<<10, ErrReadOnly)
	f.armed.Store(true)
	var err error
	for i := 0; i < 10_000 && err == nil; i++ {
		_, err = tier.Delete(ctx, keyAddr(i))
	}
	if err == nil || !tier.rows.broken.Load() {
		t.Error("rows can be written:", err)
	}
	ended()
	f.armed.Store(false)
	_ = tier.Close()
}
