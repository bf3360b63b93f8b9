//go:build linux

package lease

import (
	"log/slog"
	"time"

	"github.com/cognitora/dataplane/kv/block"
)

// Options of a Server. The zero value of each field means the default that it names.
type Options struct {
	Lease time.Duration // how long a lease lasts, and a renewal prolongs it; 5 s, at least 10 ms
	Grace time.Duration // how much longer the bytes stay; 250 ms

	AllowUIDs []uint32 // users with access besides root and the server's own
	AllowGIDs []uint32 // groups, primary or supplementary, whose members have access besides the socket file's; none

	MaxClients           int // connections; 16384. Past it a new one is told so and closed
	MaxClientsPerProcess int // connections of one process; 256
	MaxLeases            int // of one connection; 4096. Past it Get answers StatusQuota
	// bytes of the arena, whole granules, under leases of all connections of one user; half of it
	MaxLeased int64
	// bytes under leases in all, a block under two counted twice; three quarters of the arena
	MaxLeasedTotal  int64
	MaxStaging      int64 // bytes of staging of one connection; 128 MiB
	MaxStagingTotal int64 // bytes of staging in all; 1 GiB
	MaxLongFrames   int   // frames beyond 512 bytes that are read or answered at one time; 64. Others wait

	FrameTimeout time.Duration // in which a connection must say Hello, and a frame that has begun must be complete; 5 s
	WriteTimeout time.Duration // in which a client must take an answer; 5 s

	Logger *slog.Logger // nil: slog.Default()
}

// maxSegments is how many staging segments one connection may have.
const maxSegments = 16

func orDefault[T int | int64 | time.Duration](v *T, value T) {
	if *v <= 0 {
		*v = value
	}
}

func (o *Options) setDefaults(arena int64) {
	orDefault(&o.Lease, 5*time.Second)
	o.Lease = max(o.Lease, 10*time.Millisecond)
	orDefault(&o.Grace, 250*time.Millisecond)
	orDefault(&o.MaxClients, 16384)
	orDefault(&o.MaxClientsPerProcess, 256)
	orDefault(&o.MaxLeases, 4096)
	o.MaxLeases = min(o.MaxLeases, 1<<20)
	orDefault(&o.MaxLeased, arena/2)
	orDefault(&o.MaxLeasedTotal, arena/4*3)
	orDefault(&o.MaxStaging, 2*block.MaxPayload)
	orDefault(&o.MaxStagingTotal, 1<<30)
	orDefault(&o.MaxLongFrames, 64)
	orDefault(&o.FrameTimeout, 5*time.Second)
	orDefault(&o.WriteTimeout, 5*time.Second)
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
}
