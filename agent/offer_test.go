package agent

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
)

// TestOfferAllocates: what routers are told of is put together without new memory, however many engines there are; GPUs and power are read by others.
func TestOfferAllocates(t *testing.T) {
	for _, engines := range []int{1, 3} {
		dir := t.TempDir()
		doc := fmt.Sprintf("[agent]\nadmin = \"unix://%s\"\n[etcd]\nendpoints = [%q]\n[telemetry]\nkernel = \"off\"\n", filepath.Join(dir, "admin"), shared.url)
		for i := range engines {
			doc += fmt.Sprintf("[[engine]]\nid = \"%d\"\nlisten = \"unix://%s\"\nurl = \"http://127.0.0.1:%d\"\n", i, filepath.Join(dir, fmt.Sprint(i)), i+1)
		}
		c, err := loaded(t, doc)
		if err != nil {
			t.Fatal(err)
		}
		c.Logger = slog.New(slog.DiscardHandler)
		a, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Close()
		if n := testing.AllocsPerRun(100, func() { a.offer() }); n != 0 {
			t.Errorf("%d engines: %g allocations", engines, n)
		}
		if len(a.readings) != engines {
			t.Errorf("%d readings of %d engines", len(a.readings), engines)
		}
	}
}
