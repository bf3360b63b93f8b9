// Package ram is the cache's first tier: one arena of shared memory, and the tables that say which
// block lies where, which of them is in use and which goes next.
//
// The arena is a memfd. Local programs get its descriptor, sealed, so that they can map and read it
// and neither write nor resize it; a block is handed to them as an offset and a length. The tables
// are in ordinary memory and hold no pointers, so that the collector has nothing to follow in them
// however many blocks there are.
//
// Nothing here but Arena locks: the store's lock guards Tier. Payloads are copied, summed and
// zeroed outside of it.
package ram

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Granule is what offsets and capacities in the arena are multiples of, in bytes: what O_DIRECT
// asks for.
const Granule = 4096

// MinArena and MaxArena bound the size of an arena, in bytes.
const (
	MinArena = 16 * Granule
	MaxArena = 8 << 40
)

const hugePage = 2 << 20

// ErrArena says that there can be no arena of the size asked for.
var ErrArena = errors.New("ram: no arena")

// Backing says what pages an arena is made of.
type Backing string

// The backings, best first. Advised is ordinary shared memory that the kernel may turn into huge
// pages.
const (
	HugePages Backing = "hugetlb"
	Advised   Backing = "thp"
	Pages     Backing = "4k"
)

// ArenaOptions say how an arena is made.
type ArenaOptions struct {
	Size int64 // bytes, rounded down to pages; required, MinArena to MaxArena
	// fault pages in ahead of their first use, in the background, so that no write pays for it;
	// false: as they are used
	Populate bool
	Huge     bool         // take hugetlb pages if the host has enough free ones; false: never
	Logger   *slog.Logger // nil: slog.Default()
}

// Arena is a piece of shared memory that others can map but not write.
type Arena struct {
	file    *os.File
	memory  []byte
	backing Backing
	stop    chan struct{}
	done    sync.WaitGroup
	closed  sync.Once
	kept    atomic.Bool
}

// NewArena makes an arena, maps it and seals it.
func NewArena(o ArenaOptions) (*Arena, error) {
	if o.Size < MinArena || o.Size > MaxArena {
		return nil, fmt.Errorf("%w of %d bytes: give %d KiB to %d TiB", ErrArena, o.Size, MinArena>>10,
			int64(MaxArena)>>40)
	}
	log := o.Logger
	if log == nil {
		log = slog.Default()
	}
	if o.Huge && o.Size >= hugePage {
		a, err := newArena(o.Size&^(hugePage-1), unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
		if err == nil {
			a.backing = HugePages
			a.populate(o.Populate, log)
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
	a.populate(o.Populate, log)
	return a, nil
}

// newArena makes, maps and then seals: the mapping made before F_SEAL_FUTURE_WRITE stays writable,
// no later one is.
func newArena(size int64, flags int) (*Arena, error) {
	fd, err := unix.MemfdCreate("cgn-kv-arena", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|flags)
	if err != nil {
		return nil, fmt.Errorf("%w: memfd_create: %w", ErrArena, err)
	}
	a := &Arena{file: os.NewFile(uintptr(fd), "cgn-kv-arena"), stop: make(chan struct{})}
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

// mayAdvise tells whether the host allows huge pages in shared memory that asks for them.
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

// populateStep is how much is faulted in per system call, in bytes.
const populateStep = 4 << 20

func (a *Arena) populate(wanted bool, log *slog.Logger) {
	if !wanted {
		return
	}
	a.done.Go(func() {
		for at := 0; at < len(a.memory); at += populateStep {
			select {
			case <-a.stop:
				return
			default:
			}
			if err := unix.Madvise(a.memory[at:min(at+populateStep, len(a.memory))],
				unix.MADV_POPULATE_WRITE); err != nil {
				log.Info("the arena's pages are faulted in as they are used", "reason", err)
				return
			}
		}
	})
}

// File is the memfd, for SCM_RIGHTS. Whoever gets it can map it for reading only. It stays the
// arena's: do not close it.
func (a *Arena) File() *os.File { return a.file }

// Size is in bytes.
func (a *Arena) Size() int64 { return int64(len(a.memory)) }

// Backing says what pages the arena is made of.
func (a *Arena) Backing() Backing { return a.backing }

// Slice is the n bytes at offset. It is valid until Close.
func (a *Arena) Slice(offset int64, n int) []byte {
	return a.memory[offset : offset+int64(n) : offset+int64(n)]
}

// Keep has Close leave the memory mapped: a device may read and write it until the process ends.
func (a *Arena) Keep() { a.kept.Store(true) }

// Close unmaps the arena, unless it is kept: no slice of it may be used any more. Mappings of other
// programs stay.
func (a *Arena) Close() error {
	var err error
	a.closed.Do(func() {
		close(a.stop)
		a.done.Wait()
		if a.kept.Load() {
			return
		}
		err = errors.Join(unix.Munmap(a.memory), a.file.Close())
	})
	return err
}
