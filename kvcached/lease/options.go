//go:build linux

package lease

import (
	"cmp"
	"context"
	"log/slog"
	"time"

	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
)

// Options configure a Server. Zero means the default in each field's comment.
type Options struct {
	Lease time.Duration // time of a lease and of a renewal; 5 s, at least 10 ms
	Grace time.Duration // time that the bytes stay after the lease; 250 ms

	AllowUIDs []uint32 // users with access, besides root and the server's own user
	AllowGIDs []uint32 // groups with access, besides the socket file's group; none

	MaxClients           int // connections; 16384. A further one gets the reason and is closed
	MaxClientsPerProcess int // connections of one process; 256
	MaxLeases            int // leases of one connection; 4096. Beyond that Get answers StatusQuota
	// bytes of the arena, in whole granules, under leases of one user; half of the arena
	MaxLeased int64
	// bytes under all leases, counted twice for a block under two leases; three quarters of the
	// arena
	MaxLeasedTotal  int64
	MaxStaging      int64 // bytes of staging of one connection; 128 MiB
	MaxStagingTotal int64 // bytes of staging in all; 1 GiB
	MaxLongFrames   int   // frames of more than 512 bytes at one time; 64. Others wait

	FrameTimeout time.Duration // for Hello, and for the rest of a begun frame; 5 s
	WriteTimeout time.Duration // for a client to take an answer; 5 s

	Audit *audit.Log // of refused processes; nil: none

	// Find describes blocks as Store.StatAll, also those that only other hosts have; nil:
	// Store.StatAll
	Find Describe

	Readers Readers // notes what engines can read; nil: nothing is noted

	Logger *slog.Logger // nil: slog.Default()
}

// Describe fills in out[i] with the Info of addrs[i], without Tiers if there is no such block.
type Describe func(ctx context.Context, addrs []block.Addr, out []store.Info) error

// maxSegments is the highest number of staging segments of one connection.
const maxSegments = 16

func (o *Options) setDefaults(arena int64) {
	o.Lease = max(cmp.Or(o.Lease, 5*time.Second), 10*time.Millisecond)
	o.Grace = cmp.Or(o.Grace, 250*time.Millisecond)
	o.MaxClients = cmp.Or(o.MaxClients, 16384)
	o.MaxClientsPerProcess = cmp.Or(o.MaxClientsPerProcess, 256)
	o.MaxLeases = min(cmp.Or(o.MaxLeases, 4096), 1<<20)
	o.MaxLeased = cmp.Or(o.MaxLeased, arena/2)
	o.MaxLeasedTotal = cmp.Or(o.MaxLeasedTotal, arena/4*3)
	o.MaxStaging = cmp.Or(o.MaxStaging, 2*block.MaxPayload)
	o.MaxStagingTotal = cmp.Or(o.MaxStagingTotal, 1<<30)
	o.MaxLongFrames = cmp.Or(o.MaxLongFrames, 64)
	o.FrameTimeout = cmp.Or(o.FrameTimeout, 5*time.Second)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 5*time.Second)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.Readers == nil {
		o.Readers = noReaders{}
	}
}
