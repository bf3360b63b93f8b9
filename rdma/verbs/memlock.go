//go:build linux && cgo && rdma

package verbs

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/rdma"
)

// heapSpan is the size of the address range of Go's heap. Go requests addresses from 0xc0<<32 on
// amd64 and from 0x40<<32 on arm64. The kernel places other mappings elsewhere.
const heapSpan = 1 << 40

// onHeap is a variable on the heap. onHeap's address shows where the heap is.
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
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, "VmPin:"); ok {
			kib, _ := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kib << 10
		}
	}
	return 0
}
