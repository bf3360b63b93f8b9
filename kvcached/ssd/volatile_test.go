package ssd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestVolatile opens a directory with its index in memory only, closes it, loses it in a crash, and
// opens it with an index on disk.
func TestVolatile(t *testing.T) {
	o := small(filepath.Join(t.TempDir(), "ssd"))
	o.Volatile = true
	for _, crash := range []bool{false, true, false} {
		tier := open(t, o)
		misses(t, tier, 1)
		for i := range 200 { // more than there is room for, so that old ones go
			write(t, tier, i, 7, 60_000, false)
		}
		holds(t, tier, 199, 7, 60_000)
		if _, err := tier.Delete(ctx, keyAddr(199)); err != nil {
			t.Fatal(err)
		}
		misses(t, tier, 199)
		if crash {
			gone, cancel := context.WithCancel(ctx)
			cancel()
			_ = tier.CloseWithin(gone)
			continue
		}
		mustClose(t, tier)
		if _, err := os.Stat(filepath.Join(o.Dir, RowsDir)); err == nil {
			t.Fatal("the index is on disk")
		}
	}
	o.Volatile = false
	tier := open(t, o)
	misses(t, tier, 198)
	write(t, tier, 1, 8, 1000, true)
	mustClose(t, tier)
	o.Volatile = true
	if _, err := Open(ctx, o); !errors.Is(err, ErrIndexed) {
		t.Fatal(err)
	}
	o.Volatile = false
	tier = open(t, o)
	holds(t, tier, 1, 8, 1000)
	mustClose(t, tier)
}
