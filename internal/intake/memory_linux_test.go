package intake

import (
	"net"
	"testing"
	"unsafe"

	"github.com/valyala/fasthttp"
	"golang.org/x/sys/unix"
)

// memoryOf returns how many bytes of a region have memory.
func memoryOf(t *testing.T, m region) (bytes int) {
	t.Helper()
	pages := make([]byte, len(m.bytes)/page)
	if _, _, e := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&m.bytes[0])), uintptr(len(m.bytes)),
		uintptr(unsafe.Pointer(&pages[0]))); e != 0 {
		t.Fatal(e)
	}
	for _, p := range pages {
		bytes += int(p&1) * page
	}
	return bytes
}

// write writes n bytes of a region.
func write(m *region, n int) {
	for i := range m.bytes[:n] {
		m.bytes[i] = 'x'
	}
	m.resident = n
}

// TestRegions: regions take memory for written bytes, and keep little of it.
func TestRegions(t *testing.T) {
	if strict() {
		t.Skip("the system counts addresses as memory")
	}
	const size = 8 << 20
	var r regions
	m := r.take(size, 0)
	if len(m.bytes) < size || memoryOf(t, m) != 0 {
		t.Fatalf("%d bytes, of which %d take memory", len(m.bytes), memoryOf(t, m))
	}
	if m.bytes[0] = 'x'; memoryOf(t, m) != page {
		t.Errorf("one byte takes %d", memoryOf(t, m))
	}
	write(&m, size)
	r.give(m)
	if got := memoryOf(t, m); got != keptBytes {
		t.Errorf("%d bytes are kept, want %d", got, keptBytes)
	}
	small := r.take(size, 5*page-1)
	if &small.bytes[0] != &m.bytes[0] || memoryOf(t, small) != 5*page {
		t.Errorf("another region, or it has %d bytes already", memoryOf(t, small))
	}
	large := newRegion(size)
	write(&large, keptBytes)
	r.give(small)
	r.give(large)
	if m := r.take(size, 6*page); &m.bytes[0] != &small.bytes[0] {
		t.Error("memory is given back where there is a region with less")
	}
}

// TestKeptRegions: few regions are kept, and none after close.
func TestKeptRegions(t *testing.T) {
	if strict() {
		t.Skip("the system counts addresses as memory")
	}
	var r regions
	first := newRegion(page)
	r.give(first)
	for range keptRegions {
		r.give(newRegion(page))
	}
	if len(r.free) != keptRegions || &r.free[0].bytes[0] == &first.bytes[0] {
		t.Errorf("%d are kept, or not the one goes that was not used for longest", len(r.free))
	}
	used := r.take(page, 0)
	r.close()
	if r.give(used); len(r.free) != 0 {
		t.Errorf("%d are kept", len(r.free))
	}
}

// TestMemoryOfABody: the memory is given to the server that reads the body, and only that server
// releases it.
func TestMemoryOfABody(t *testing.T) {
	if strict() {
		t.Skip("the system counts addresses as memory")
	}
	b := Bodies{Limit: 1 << 20, Longest: 1 << 20}
	conn, peer := net.Pipe()
	defer conn.Close()
	defer peer.Close()
	for _, length := range []int{1 << 20, SmallBody + 1, chunked} {
		var a Body
		ctx := new(fasthttp.RequestCtx)
		ctx.Init2(conn, nil, false)
		ctx.Request.Header.SetContentLength(length)
		ctx.Request.SetBodyString("before")
		announce := func() {
			t.Helper()
			if !b.Announce(&a, ctx) || cap(ctx.Request.Body()) < int(b.Longest)+2 || !a.holds.Load() {
				t.Fatalf("%d: no memory", length)
			}
		}
		announce()
		if b.Give(&a); string(ctx.Request.Body()) != "before" || len(b.regions.free) != 1 || b.Held() != 0 {
			t.Errorf("%d: not given back, or the server has another buffer than before", length)
		}
		b.Give(&a)
		announce()
		if b.Closed(&a, peer); len(b.regions.free) != 0 {
			t.Errorf("%d: taken from the server that reads it", length)
		}
		ctx.Request.Reset()
		if b.Closed(&a, conn); len(b.regions.free) != 1 || b.Held() != 0 || a.holds.Load() {
			t.Errorf("%d: not given back when the connection was lost", length)
		}
	}
	var small Body
	ctx := new(fasthttp.RequestCtx)
	ctx.Init2(conn, nil, false)
	ctx.Request.Header.SetContentLength(SmallBody)
	if b.Announce(&small, ctx); small.holds.Load() {
		t.Error("a small body is not read into the server's own buffer")
	}
}
