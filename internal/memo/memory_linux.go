package memo

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// memory returns zeroed words outside Go's heap, for as long as of is reachable. On the heap, a
// table that is still empty would count as live, and the collector would let as much garbage pile
// up beside it.
func memory(words int, of *Table) []uint64 {
	b, err := unix.Mmap(-1, 0, 8*words, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return make([]uint64, words)
	}
	runtime.AddCleanup(of, func(b []byte) { _ = unix.Munmap(b) }, b)
	return unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), words)
}
