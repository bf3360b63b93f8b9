package ssd

import (
	"context"
	"unsafe"

	"golang.org/x/sys/unix"
)

// aligned tells whether b may be used for direct I/O of size bytes: it begins at a page and has
// room for whole pages.
func aligned(b []byte, size int) bool {
	return cap(b) >= size && uintptr(unsafe.Pointer(unsafe.SliceData(b)))%page == 0
}

// alignedBytes returns size bytes that begin at a page.
func alignedBytes(size int) []byte {
	b := make([]byte, size+page)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (page - 1)
	return b[skip : skip+size : skip+size]
}

// roundUp rounds n up to a whole page.
func roundUp[T int | int64](n T) T { return (n + page - 1) &^ (page - 1) }

// buffers hold aligned memory for payloads that are not aligned. A buffer is mapped at its first
// use, grows for a longer payload, and is kept. The channel bounds the number of buffers; get waits
// for a free one.
type buffers struct{ free chan []byte }

func newBuffers(n int) *buffers {
	p := &buffers{free: make(chan []byte, n)}
	for range n {
		p.free <- nil
	}
	return p
}

// get returns size bytes with unknown content.
func (p *buffers) get(ctx context.Context, size int) ([]byte, error) {
	select {
	case b := <-p.free:
		if cap(b) >= size {
			return b[:size], nil
		}
		if b != nil {
			_ = unix.Munmap(b[:cap(b)])
		}
		grown := max(roundUp(size), 64<<10)
		b, err := unix.Mmap(-1, 0, grown, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			p.free <- nil
			return nil, err
		}
		return b[:size:grown], nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (p *buffers) put(b []byte) { p.free <- b[:cap(b)] }

// close waits for all buffers and unmaps them.
func (p *buffers) close() {
	for range cap(p.free) {
		if b := <-p.free; b != nil {
			_ = unix.Munmap(b)
		}
	}
}
