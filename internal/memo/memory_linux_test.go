package memo

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"
)

// TestOutsideTheHeap checks that a table is no part of Go's heap, and that its memory goes with it.
func TestOutsideTheHeap(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	m := New(64<<20, 20)
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc - before.HeapAlloc); grown > 1<<20 {
		t.Errorf("the heap grew by %d bytes", grown)
	}
	m.Put(1, make([]uint64, 20))
	at := uintptr(unsafe.Pointer(&m.sets[0]))
	if !mapped(t, at) {
		t.Errorf("no mapping has %x", at)
	}
	runtime.KeepAlive(m)
	for begun := time.Now(); mapped(t, at); time.Sleep(time.Millisecond) {
		if runtime.GC(); time.Since(begun) > 20*time.Second {
			t.Fatal("the memory of a table that is gone is still mapped")
		}
	}
}

// mapped says whether a mapping of this process has an address.
func mapped(t *testing.T, at uintptr) bool {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(maps)) {
		var from, to uintptr
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err == nil && from <= at && at < to {
			return true
		}
	}
	return false
}
