// Package rdma says what a network card that reads other hosts' memory is asked to do, without
// saying how: package rdma/verbs does it with libibverbs, in builds with the tag rdma. It imports
// nothing of this module, and needs no C.
//
// One side, the reader, asks the other, the owner, over a connection that is authenticated, for the
// Endpoint of a Pair and for Windows; then it reads through its own Pair, and the owner's processor
// has nothing to do for the bytes. RoCE, which carries them, neither encrypts nor authenticates: it
// is for trusted networks.
package rdma

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Errors of devices, regions, pairs and windows; what is returned wraps one of these where the
// caller can do something about it.
var (
	// ErrNotBuilt says that this program was built without the tag rdma.
	ErrNotBuilt = errors.New("rdma: built without rdma")
	// ErrGone says that the device was taken away, or its context closed on request.
	ErrGone = errors.New("rdma: device is gone")
	// ErrMemlock says that the limit of locked memory does not allow the registration; the text
	// names the limit and how much was wanted.
	ErrMemlock = errors.New("rdma: limit of locked memory is too low")
	// ErrBroken says that a pair is of no use any more: a peer that is gone, an operation that
	// failed. It is to be closed, and made anew.
	ErrBroken = errors.New("rdma: queue pair is broken")
	// ErrAccess says that the owner's card refused a read: a wrong key, or a window that was
	// revoked. It wraps ErrBroken, for that ends the pair.
	ErrAccess = fmt.Errorf("%w: the other side refused access", ErrBroken)
	// ErrUnreachable says that the other side's card has not answered within the retries. It wraps
	// ErrBroken likewise.
	ErrUnreachable = fmt.Errorf("%w: the other side does not answer", ErrBroken)
	// ErrNotRegistered says that memory lies in no region of the device.
	ErrNotRegistered = errors.New("rdma: memory is not registered")
	// ErrFull says that as many windows or operations as there may be are in use.
	ErrFull = errors.New("rdma: too many at a time")
)

// Endpoint is what the other side must know of a Pair to connect its own to it.
type Endpoint struct {
	GID [16]byte // of the port, RoCE v2
	QPN uint32   // 24 bits
	PSN uint32   // 24 bits
	MTU int      // bytes of payload in a packet: 256 to 4096, a power of two
	// MaxReads is Limits.MaxReads of its card: the other side's has no more under way.
	MaxReads int
}

// Key is what the other side must know of a Window to read through it.
type Key struct {
	Addr uint64 // of the first byte, as the owner's card counts
	RKey uint32
}

// Read is one read from the other side's memory into ours.
type Read struct {
	Into []byte // lies in a registered region of the device
	From Key
	Skip uint64 // bytes of the window before those wanted
}

// Device is an opened port of a card. It is safe for concurrent use.
type Device interface {
	Name() string // as the kernel has it, "mlx5_0"
	// Register makes mem known to the card, once: as what is read into, and as what windows are
	// parts of. No other side can read it by that alone. mem is off Go's heap, and stays mapped
	// until Close. All of it is pinned: the limit of locked memory applies (ErrMemlock).
	Register(mem []byte) error
	// Pair makes one side of a connection; PairOptions say how much it may have under way.
	Pair(o PairOptions) (Pair, error)
	// Limits are the card's own.
	Limits() Limits
	// Gone is closed when the device is of no use any more: taken away, its port down for good, or
	// closed. What is under way ends with ErrGone.
	Gone() <-chan struct{}
	// Close ends all pairs, unpins and closes the card's context, in this order. It waits for what
	// is under way, which it ends.
	Close() error
}

// Limits of a card and its port.
type Limits struct {
	MaxMessage int // bytes of one read; Pair.Read splits what is longer
	MaxReads   int // reads of a pair that the card has under way at a time
	// Windows: the card has memory windows of type 2, each of which one pair only can read through.
	// Without, a grant is a registration of its own, and each pair that reads registers all regions
	// once more (PairOptions.Reads).
	Windows bool
	MTU     int // bytes
}

// PairOptions bound what a pair has under way. Zero fields stand for the defaults.
type PairOptions struct {
	MaxReads   int // work requests at a time; further Reads wait. 0: 64
	MaxWindows int // windows at a time; further grants are ErrFull. 0: 256
	// until the other side counts as gone: the card's retries end in about so much; it may take
	// four times that. 0: 2 s
	Timeout time.Duration
	// Reads: it is going to read into any of the device's regions. Where it has to register them
	// for that once more it does so at once, which may take long and counts as pinned once more
	// (ErrMemlock), not with the first read.
	Reads bool
}

// Pair is one of the two ends of a connection between cards. Its owner closes it; methods are safe
// for concurrent use.
type Pair interface {
	Local() Endpoint
	// Connect makes it ready to read, and to be read through. It is called once.
	Connect(remote Endpoint) error
	// Read fills all of reads, in any order, split as the card needs it, with one wait for all: it
	// parks, and does not spin. When it returns, whatever the error, nothing is written into their
	// memory any more: where ctx ends before, the pair is broken for that, and ErrBroken and the
	// context's cause are wrapped. Where it ends before anything was asked of the card, the pair
	// stays whole.
	Read(ctx context.Context, reads []Read) error
	// Grant makes windows, one for each of mems, which lie in registered memory, all with one wait.
	// The other side of this pair can read through them until they are revoked or the pair is
	// closed, and nobody else can. With an error nobody reads through any of them: where the card
	// cannot say so, or ctx ends before it has, the pair is closed, as it is broken by Read.
	Grant(ctx context.Context, mems [][]byte) ([]Window, error)
	// Revoke ends windows of this pair, all with one wait. When it returns, whatever the error,
	// nobody reads through them any more: where the card cannot say so before ctx ends, or one of
	// them is no window of the pair, or was revoked before, the pair is closed.
	Revoke(ctx context.Context, windows []Window) error
	// Broken is closed when the pair is of no use any more.
	Broken() <-chan struct{}
	// Close ends what is under way, revokes all windows and waits for both. The other side finds
	// out by its next read.
	Close() error
}

// Window is a part of a region that the other side of one pair can read.
type Window interface{ Key() Key }
