package intake

import (
	"bytes"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

var page = os.Getpagesize()

func wholePages(n int) int { return (n + page - 1) / page * page }

// strict means that the system counts addresses like memory. On a strict system, addresses must not
// be reserved for bytes that may never come.
var strict = sync.OnceValue(func() bool {
	mode, _ := os.ReadFile("/proc/sys/vm/overcommit_memory")
	return string(bytes.TrimSpace(mode)) == "2"
})

// newRegion maps size bytes, without huge pages, because with them the first byte would take the
// memory of many.
func newRegion(size int) region {
	if strict() {
		return region{}
	}
	b, err := unix.Mmap(-1, 0, wholePages(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		return region{}
	}
	_ = unix.Madvise(b, unix.MADV_NOHUGEPAGE) // fails if the kernel has no huge pages
	return region{bytes: b}
}

// shrink releases the memory beyond the first n bytes, and reports whether it could.
func (m *region) shrink(n int) bool {
	n, end := wholePages(n), min(wholePages(m.resident), len(m.bytes))
	if n >= end {
		return true
	}
	if unix.Madvise(m.bytes[n:end], unix.MADV_DONTNEED) != nil {
		return false
	}
	m.resident = n
	return true
}

// unmap unmaps the region. The region must not be read any more.
func (m *region) unmap() {
	if m.bytes != nil {
		_ = unix.Munmap(m.bytes)
	}
}
