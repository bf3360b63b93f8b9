package ssd

import (
	"cmp"
	"fmt"
	"log/slog"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/cognitora/dataplane/kv/block"
)

// page is the unit of segments. Records begin at a multiple of it, because direct I/O needs that.
const page = 4096

// MinCap is the smallest disk cap.
const MinCap = 32 << 20

// Bounds and defaults of Options.
const (
	segmentMax  = 256 << 20
	segmentMin  = 1 << 20
	rowShareMin = 16 << 20
	readsMax    = 64 // reads in the kernel at a time; further ones wait
	buffersMax  = 16 // payloads in unaligned memory at a time, each way; further ones wait
	keyBytes    = 32
)

// Options are the options of Open.
type Options struct {
	// Dir is the directory of the tier. Open makes it with mode 0700 if it is missing. Required.
	Dir string
	// Cap bounds the bytes of all files in Dir together, at least MinCap. Required.
	Cap int64
	// ReclaimRate bounds reclaim's copies, in bytes per second. 0: no bound.
	ReclaimRate int64
	// DailyWrites bounds the bytes written in a day (UTC). Beyond it only durable writes succeed,
	// and others fail with ErrBudget. 0: no bound.
	DailyWrites int64
	// Quota returns the account of a namespace, and the account's limit in bytes of segments; 0: no
	// limit. An empty account is the namespace's own. Writes beyond the limit fail with ErrQuota.
	// nil: no limits.
	Quota func(namespace string) (account string, bytes int64)
	// Key, of 32 bytes, seals payloads at rest with AES-256-GCM. It does not seal names (addresses,
	// namespaces, keys, attributes) and checksums. A directory is sealed as a whole or not at all.
	// nil: payloads are not sealed.
	Key []byte
	// Volatile keeps the rows of the index in memory only. Open then drops all blocks of an earlier
	// Open, and refuses a directory with an index. So no block survives, durable ones neither.
	Volatile bool
	// Evicted is called for each block that reclaim drops, that a read finds damaged, or that has
	// expired, under the lock of its address. It must be quick and not call the tier. nil: no
	// calls.
	Evicted func(block.Addr)
	// Logger gets messages for the operator. nil: slog.Default().
	Logger *slog.Logger

	fs    fileSystem       // nil: the operating system's
	rowFS vfs.FS           // nil: the operating system's
	now   func() time.Time // nil: time.Now

	// segmentSize is the size of a segment file in bytes, rounded down to 4 KiB. It bounds the
	// payload of a record. 0: a sixteenth of Cap, from 1 MiB to 256 MiB.
	segmentSize int64
	// rowShare is the part of Cap, in bytes, that is kept for the rows of the index. Segments get
	// smaller if rows grow beyond it. 0: a sixteenth of Cap, at least 16 MiB.
	rowShare int64

	evicting        func(block.Addr) // called before reclaim drops a block; nil: no calls
	checkpointBytes int64            // bytes written between two checkpoints; 0: 64 MiB
}

// fill checks o and sets the defaults.
func (o Options) fill() (Options, error) {
	bad := func(field string, value any, hint string) (Options, error) {
		return o, fmt.Errorf("ssd: %s is %v: %s", field, value, hint)
	}
	switch {
	case o.Dir == "":
		return bad("Dir", `""`, "name a directory")
	case o.Cap < MinCap:
		return bad("Cap", o.Cap, fmt.Sprintf("at least %d bytes are needed", MinCap))
	case o.Key != nil && len(o.Key) != keyBytes:
		return bad("Key", fmt.Sprintf("%d bytes long", len(o.Key)), "give 32 bytes")
	}
	o.rowShare = cmp.Or(o.rowShare, max(rowShareMin, o.Cap/16))
	o.segmentSize = cmp.Or(o.segmentSize, min(max(segmentMin, o.Cap/16), segmentMax)) &^ (page - 1)
	o.checkpointBytes = cmp.Or(o.checkpointBytes, 64<<20)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	o.fs = cmp.Or[fileSystem](o.fs, osFS{})
	if o.Volatile {
		o.rowFS = vfs.NewMem()
	}
	o.rowFS = cmp.Or[vfs.FS](o.rowFS, privateFS{vfs.Default})
	if o.now == nil {
		o.now = time.Now
	}
	return o, nil
}
