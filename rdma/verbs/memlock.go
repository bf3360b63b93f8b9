//go:build linux && cgo && rdma

package verbs

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/rdma"
)

// heapSpan is the size of the address range of Go's heap. Go requests addresses from 0xc0<<32 on
// amd64 and from 0x40<<32 on arm64. The kernel places other mappings elsewhere.
const heapSpan = 1 << 40

// onHeap lies on Go's heap, so its address shows where the heap is.
var onHeap = new([64]byte)

// registrable refuses memory on Go's heap. The garbage collector returns heap pages to the kernel,
// and the card would go on writing into them.
func registrable(mem []byte) error {
	at := address(mem)
	heap := uint64(uintptr(unsafe.Pointer(onHeap)))
	switch {
	case len(mem) == 0:
		return errors.New("verbs: no memory to register")
	case at/heapSpan == heap/heapSpan:
		return errors.New("verbs: memory is on Go's heap, where it must not be: map it")
	case at%uint64(os.Getpagesize()) != 0:
		return errors.New("verbs: memory to register does not begin with a page")
	}
	return nil
}

// memlock explains why pinning size bytes failed. The kernel also returns ENOMEM for the limit,
// which applies to processes without CAP_IPC_LOCK.
func memlock(err error, size int) error {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit) != nil || limit.Cur == unix.RLIM_INFINITY {
		return err
	}
	pinned := pinnedBytes()
	if pinned+uint64(size) <= limit.Cur {
		return err
	}
	return fmt.Errorf("%w: %d bytes are pinned, %d more wanted, and the limit (ulimit -l, LimitMEMLOCK of systemd) "+
		"is %d: %w", rdma.ErrMemlock, pinned, size, limit.Cur, err)
}

// pinnedBytes returns how many bytes this process has pinned for cards.
func pinnedBytes() uint64 {
	process, err := procfs.Self()
	if err != nil {
		return 0
	}
	s, _ := process.NewStatus()
	return s.VmPin
}
