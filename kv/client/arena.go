//go:build linux

package client

import (
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// arena is the memory of one incarnation of the daemon, mapped read-only. arena is unmapped when
// its last reference is dropped.
type arena struct {
	instance uint64
	data     []byte
	refs     atomic.Int64
}

const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE

// mapFile maps size bytes of f and closes f. f must be sealed against shrinking.
func mapFile(f *os.File, size uint64, protection, wanted int) ([]byte, error) {
	defer f.Close()
	has, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || has&wanted != wanted {
		return nil, fmt.Errorf("%w: memory without seals", ErrProtocol)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || size == 0 || uint64(st.Size) < size {
		return nil, fmt.Errorf("%w: memory of another size than said", ErrProtocol)
	}
	data, err := unix.Mmap(int(f.Fd()), 0, int(size), protection, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("kv: mapping the daemon's memory: %w", err)
	}
	_ = unix.Madvise(data, unix.MADV_HUGEPAGE) // works without huge pages as well
	return data, nil
}

// drop drops one reference.
func (a *arena) drop() {
	if a != nil && a.refs.Add(-1) == 0 {
		_ = unix.Munmap(a.data)
	}
}
