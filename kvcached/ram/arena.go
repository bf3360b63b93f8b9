// Package ram is the cache's first tier: one arena of shared memory, and tables that say where each
// block lies, which blocks are in use and which block is evicted next.
//
// The arena is a memfd. Local programs get its sealed descriptor, which they can map and read, but
// neither write nor resize. They get a block as an offset and a length. The tables are in ordinary
// memory and hold no pointers, so that the garbage collector has nothing to follow in them.
//
// Only Arena has a lock. The store's lock guards Tier. Payloads are copied, summed and zeroed
// outside of that lock.
package ram

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Granule is the unit of offsets and capacities in the arena, in bytes. O_DIRECT asks for it.
const Granule = 4096

// MinArena and MaxArena bound the size of an arena, in bytes.
const (
	MinArena = 16 * Granule
	MaxArena = 8 << 40
)

const hugePage = 2 << 20

// ErrArena says that no arena of that size can be made.
var ErrArena = errors.New("ram: no arena")

// Backing is the kind of pages that an arena is made of.
type Backing string

// The backings, best first. Advised is ordinary shared memory, which the kernel may turn into huge
// pages.
const (
	HugePages Backing = "hugetlb"
	Advised   Backing = "thp"
	Pages     Backing = "4k"
)

// ArenaOptions say how an arena is made.
type ArenaOptions struct {
	Size   int64        // bytes, rounded down to pages; required, MinArena to MaxArena
	Huge   bool         // use hugetlb pages if the host has enough free ones; false: never
	Logger *slog.Logger // nil: slog.Default()
}

// Arena is a piece of shared memory that others can map but not write.
type Arena struct {
	file    *os.File
	memory  []byte
	backing Backing
	closed  sync.Once
	kept    atomic.Bool
}

// NewArena makes an arena, maps it and seals it.
func NewArena(o ArenaOptions) (*Arena, error) {
	if o.Size < MinArena || o.Size > MaxArena {
		return nil, fmt.Errorf("%w of %d bytes: give %d KiB to %d TiB", ErrArena, o.Size, MinArena>>10,
			int64(MaxArena)>>40)
	}
	log := cmp.Or(o.Logger, slog.Default())
	if o.Huge && o.Size >= hugePage {
		a, err := newArena(o.Size&^(hugePage-1), unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
		if err == nil {
			a.backing = HugePages
			return a, nil
		}
	}
	a, err := newArena(o.Size&^(Granule-1), 0)
	if err != nil {
		return nil, err
	}
	a.backing = Pages
	if mayAdvise() && unix.Madvise(a.memory, unix.MADV_HUGEPAGE) == nil {
		a.backing = Advised
	}
	if o.Huge {
		log.Info("huge pages not available, using 4 KiB pages", "bytes", o.Size, "kernel_may_join_them",
			a.backing == Advised)
	}
	return a, nil
}

// newArena makes, maps and seals an arena. The mapping made before F_SEAL_FUTURE_WRITE stays
// writable. No later mapping is.
func newArena(size int64, flags int) (*Arena, error) {
	fd, err := unix.MemfdCreate("cgn-kv-arena", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|flags)
	if err != nil {
		return nil, fmt.Errorf("%w: memfd_create: %w", ErrArena, err)
	}
	a := &Arena{file: os.NewFile(uintptr(fd), "cgn-kv-arena")}
	if err := a.file.Truncate(size); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %w", ErrArena, err), a.file.Close())
	}
	if a.memory, err = unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: mmap of %d bytes: %w", ErrArena, size, err), a.file.Close())
	}
	seals := unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: sealing: %w", ErrArena, err), unix.Munmap(a.memory), a.file.Close())
	}
	return a, nil
}

// mayAdvise tells whether the host allows huge pages in shared memory on request.
func mayAdvise() bool {
	text, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
	if err != nil {
		return false
	}
	for _, mode := range []string{"[always]", "[within_size]", "[advise]", "[force]"} {
		if strings.Contains(string(text), mode) {
			return true
		}
	}
	return false
}

// File is the memfd, for SCM_RIGHTS. Its receivers can map it for reading only. The arena owns it:
// do not close it.
func (a *Arena) File() *os.File { return a.file }

// Size is in bytes.
func (a *Arena) Size() int64 { return int64(len(a.memory)) }

// Backing returns the kind of pages that the arena is made of.
func (a *Arena) Backing() Backing { return a.backing }

// Slice is the n bytes at offset. It is valid until Close.
func (a *Arena) Slice(offset int64, n int) []byte {
	return a.memory[offset : offset+int64(n) : offset+int64(n)]
}

// Keep makes Close leave the memory mapped, because a device may use it until the process ends.
func (a *Arena) Keep() { a.kept.Store(true) }

// Close unmaps the arena, unless Keep was called. Slices of it must not be used afterwards.
// Mappings of other programs stay.
func (a *Arena) Close() error {
	var err error
	a.closed.Do(func() {
		if a.kept.Load() {
			return
		}
		err = errors.Join(unix.Munmap(a.memory), a.file.Close())
	})
	return err
}
