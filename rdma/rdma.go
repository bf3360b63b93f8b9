// Package rdma is the interface to network cards that read memory of other hosts. Package
// rdma/verbs implements it with libibverbs, in builds with the tag rdma. Package rdma imports
// nothing of this module, and needs no C.
//
// A read has two sides: the reader, and the owner of the memory. The reader asks the owner for the
// Endpoint of a Pair and for Windows, over an authenticated connection. Then the reader reads
// through its own Pair, and the owner's processor does no work for the bytes. RoCE carries the
// bytes. RoCE neither encrypts nor authenticates, so package rdma is for trusted networks.
package rdma

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Errors of devices, regions, pairs and windows. A returned error wraps one of these errors if the
// caller can handle it.
var (
	// ErrNotBuilt means that this program was built without the tag rdma.
	ErrNotBuilt = errors.New("rdma: built without rdma")
	// ErrGone means that the device was removed, or that its context was closed on request.
	ErrGone = errors.New("rdma: device is gone")
	// ErrMemlock means that the limit of locked memory does not allow the registration. The text
	// names the limit and the wanted size.
	ErrMemlock = errors.New("rdma: limit of locked memory is too low")
	// ErrBroken means that a pair no longer works: its peer is gone, or an operation failed. Close
	// a broken pair, and make a new one.
	ErrBroken = errors.New("rdma: queue pair is broken")
	// ErrAccess means that the owner's card refused a read, because of a wrong key or a revoked
	// window. The pair is broken after a refusal, so ErrAccess wraps ErrBroken.
	ErrAccess = fmt.Errorf("%w: the other side refused access", ErrBroken)
	// ErrUnreachable means that the other side's card has not answered within the retries.
	// ErrUnreachable wraps ErrBroken too.
	ErrUnreachable = fmt.Errorf("%w: the other side does not answer", ErrBroken)
	// ErrNotRegistered means that memory lies in no region of the device.
	ErrNotRegistered = errors.New("rdma: memory is not registered")
	// ErrFull means that the largest allowed number of windows or operations is in use.
	ErrFull = errors.New("rdma: too many at a time")
)

// Endpoint holds the data of a Pair that the other side needs to connect its own Pair.
type Endpoint struct {
	GID [16]byte // GID of the port, for RoCE v2
	QPN uint32   // 24 bits
	PSN uint32   // 24 bits
	MTU int      // bytes of payload in a packet: 256 to 4096, a power of two
	// MaxReads is the Limits.MaxReads of its card. The other side must not have more reads in
	// progress.
	MaxReads int
}

// Key holds the data of a Window that the other side needs to read through it.
type Key struct {
	Addr uint64 // address of the first byte, as the owner's card counts
	RKey uint32
}

// Read is one read from the other side's memory into local memory.
type Read struct {
	Into []byte // must lie in a registered region of the device
	From Key
	Skip uint64 // offset in the window, in bytes
}

// Device is an opened port of a card. A Device is safe for concurrent use.
type Device interface {
	Name() string // the kernel's name, such as "mlx5_0"
	// Register registers mem with the card once, as a target of reads and as memory for windows.
	// The registration alone lets no other side read it. mem must not be on Go's heap, and must
	// stay mapped until Close. All of mem is pinned, so the limit of locked memory applies
	// (ErrMemlock).
	Register(mem []byte) error
	// Pair makes one side of a connection. PairOptions bound its work in progress.
	Pair(o PairOptions) (Pair, error)
	// Limits returns the limits of the card and its port.
	Limits() Limits
	// Gone is closed when the device no longer works: it was removed or closed, or its port stayed
	// down. Operations in progress end with ErrGone.
	Gone() <-chan struct{}
	// Close closes all pairs, then unpins the memory, then closes the card's context. Close ends
	// the operations in progress and waits for them.
	Close() error
}

// Limits of a card and its port.
type Limits struct {
	MaxMessage int // bytes of one read; Pair.Read splits longer reads
	MaxReads   int // reads of a pair that the card processes at a time
	// Windows means that the card has memory windows of type 2. Only one pair can read through such
	// a window. Without such windows, each grant is a registration of its own, and each pair that
	// reads registers all regions once more (PairOptions.Reads).
	Windows bool
	MTU     int // bytes
}

// PairOptions bound a pair's work in progress. A zero field means its default.
type PairOptions struct {
	MaxReads   int // work requests at a time; further Reads wait. 0: 64
	MaxWindows int // windows at a time; further grants fail with ErrFull. 0: 256
	// time until the other side counts as gone, by the card's retries; cards may take four times as
	// long. 0: 2 s
	Timeout time.Duration
	// Reads means that the pair will read into any of the device's regions. If the pair must
	// register the regions again to read into them, it registers them when it is made, and not with
	// the first read. The registration may take long. The memory then counts as pinned twice
	// (ErrMemlock).
	Reads bool
}

// Pair is one of the two ends of a connection between cards. A Pair's owner closes it. A Pair's
// methods are safe for concurrent use.
type Pair interface {
	Local() Endpoint
	// Connect connects the pair with the remote pair, so that both sides can read. Connect is
	// called once.
	Connect(remote Endpoint) error
	// Read fills all of reads, in any order, and splits them as the card needs. Read parks once for
	// all of them, and does not spin. When it returns, even with an error, the card no longer
	// writes into their memory. If ctx ends first, Read breaks the pair, and its error wraps
	// ErrBroken and the context's cause. If ctx ends before any request was posted to the card, the
	// pair stays usable.
	Read(ctx context.Context, reads []Read) error
	// Grant makes one window for each of mems, which lie in registered memory. Grant waits once for
	// all. Only the other side of this pair can read through the windows, until they are revoked or
	// the pair is closed. After an error nobody can read through any of the windows. If the card
	// has not confirmed the windows' end, or ctx ends before the confirmation, Grant closes the
	// pair.
	Grant(ctx context.Context, mems [][]byte) ([]Window, error)
	// Revoke revokes windows of this pair. Revoke waits once for all. When Revoke returns, even
	// with an error, nobody can read through the windows any more. Revoke closes the pair if the
	// card cannot confirm the revocation before ctx ends, or if windows has an element that is not
	// a window of this pair or was revoked before.
	Revoke(ctx context.Context, windows []Window) error
	// Broken is closed when the pair no longer works.
	Broken() <-chan struct{}
	// Close ends the operations in progress, revokes all windows, and waits for both. The other
	// side notices at its next read.
	Close() error
}

// Window is a part of a region. Only the other side of one pair can read a Window.
type Window interface{ Key() Key }
