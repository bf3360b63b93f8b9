package ssd

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// copied is the directory of o as a process that is killed now leaves it.
func copied(t *testing.T, o Options) Options {
	t.Helper()
	from := o.Dir
	o.Dir = filepath.Join(t.TempDir(), "d")
	if err := os.CopyFS(o.Dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return o
}

func writeTokens(t *testing.T, tier *Tier, i int, v uint64, durable bool) {
	t.Helper()
	if err := tier.Write(ctx, tokens(i), content(i, v, 3000+i), durable); err != nil {
		t.Fatal(err)
	}
}

// remove deletes a key and a block of tokens.
func remove(t *testing.T, tier *Tier, i int) {
	t.Helper()
	if n, err := tier.Delete(ctx, keyAddr(i), tokens(i).Addr); err != nil || n != 2 {
		t.Fatal(n, err)
	}
}

// isNewest checks that block i, of each kind, is version v (0: deleted) or a miss, and tells which
// are there.
func isNewest(t *testing.T, tier *Tier, i int, v uint64) (key, token bool) {
	t.Helper()
	dst := make([]byte, 8192)
	info, err := tier.Read(ctx, keyAddr(i), dst)
	if key = err == nil; key && (v == 0 || !bytes.Equal(dst[:info.Length], content(i, v, 2000))) {
		t.Fatalf("key %d is not version %d", i, v)
	}
	if _, found := tier.Find(keyAddr(i)); found && v == 0 {
		t.Fatalf("key %d is found", i)
	}
	if !key && !errors.Is(err, ErrMiss) && !errors.Is(err, ErrCorrupt) {
		t.Fatal(err)
	}
	if info, err = tier.Read(ctx, tokens(i).Addr, dst); err == nil &&
		(v == 0 || !bytes.Equal(dst[:info.Length], content(i, v, 3000+i))) {
		t.Fatalf("block %d is not version %d", i, v)
	}
	return key, err == nil
}

// TestEndOfRowsLost flips bits near the end of the rows' log, where Pebble takes damage for the end
// that a crash left: what was deleted or replaced stays so, and what was written last is there.
func TestEndOfRowsLost(t *testing.T) {
	seed := seedOf(t)
	rng := rand.New(rand.NewPCG(seed, 3))
	eachKind(t, func(t *testing.T, o Options) {
		o.Logger = quiet
		tier := open(t, o)
		<-tier.Ready()
		const n = 90
		for i := range n {
			write(t, tier, i, 1, 2000, true)
			writeTokens(t, tier, i, 1, true)
		}
		tier.checkpoint()
		want := func(i int) uint64 { return [...]uint64{1, 2, 0, 0, 3}[i%5] }
		for i := range n {
			switch i % 5 {
			case 1, 3, 4:
				write(t, tier, i, 2, 2000, i%2 == 0)
				writeTokens(t, tier, i, 2, i%2 == 0)
			}
			if i%5 >= 2 {
				remove(t, tier, i)
			}
			if i%5 == 4 {
				write(t, tier, i, 3, 2000, true)
				writeTokens(t, tier, i, 3, true)
			}
		}
		lost, remade := 0, 0
		for range rounds(10, 300) {
			c := copied(t, o)
			logs := rowFiles(t, c.Dir, ".log")
			b, err := os.ReadFile(logs[len(logs)-1])
			if err != nil {
				t.Fatal(err)
			}
			end := bytes.TrimRight(b, "\x00")
			b[len(end)-1-rng.IntN(min(len(end), 32<<10))] ^= 1 << rng.IntN(8)
			if err := os.WriteFile(logs[len(logs)-1], b, 0o600); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				again := open(t, c)
				rebuilt := again.rebuilding.Load()
				for i := range n {
					isNewest(t, again, i, want(i))
				}
				<-again.Ready()
				for i := range n {
					key, token := isNewest(t, again, i, want(i))
					if there := want(i) > 0; token != there || key != there && !rebuilt && remade == 0 {
						t.Fatalf("block %d: %v, its tokens %v", i, key, token)
					}
				}
				if rebuilt {
					remade++
				}
				mustClose(t, again)
			}
			lost++
		}
		t.Logf("%d logs damaged, rows made again %d times", lost, remade)
		mustClose(t, tier)
	})
}

// TestDeletedStaysWithoutRows takes the rows away: blocks of tokens that were deleted or replaced
// stay so although reclaim has moved and freed segments since, one of which is used so much that it
// always stays.
func TestDeletedStaysWithoutRows(t *testing.T) {
	o := small(t.TempDir())
	o.SegmentSize, o.Logger = 1<<20, quiet
	tier := open(t, o)
	<-tier.Ready()
	const n = 200
	for i := range n {
		writeTokens(t, tier, i, 1, true)
	}
	var gone []int
	payload := alignedBytes(100 << 10)
	for i := range 2000 {
		for j := range n / 2 { // reclaim passes over what is used
			tier.Touch(tokens(2 * j).Addr)
		}
		if err := tier.Write(ctx, record(i), payload, false); err != nil {
			t.Fatal(err)
		}
		if i%20 == 0 && i/20*2+1 < n {
			k := i/20*2 + 1
			if _, err := tier.Delete(ctx, tokens(k).Addr); err != nil {
				t.Fatal(err)
			}
			gone = append(gone, k)
		}
	}
	awaitRoom(t, tier)
	s := tier.Stats()
	crashed := copied(t, o)
	mustClose(t, tier)
	for _, c := range []Options{o, crashed} {
		if err := os.RemoveAll(filepath.Join(c.Dir, rowsDir)); err != nil {
			t.Fatal(err)
		}
		tier := open(t, c)
		<-tier.Ready()
		there := 0
		for i := range n {
			dst := make([]byte, 8192)
			_, err := tier.Read(ctx, tokens(i).Addr, dst)
			if err == nil && slices.Contains(gone, i) {
				t.Errorf("block %d was deleted and is there", i)
			}
			if err == nil {
				there++
			}
		}
		t.Logf("%d blocks there; %d deleted, %d graves written; %d segments freed, %d records moved", there, len(gone),
			s.Graves, s.Reclaimed, s.Moved)
		if there == 0 || s.Reclaimed == 0 {
			t.Errorf("nothing was tested: %+v", s)
		}
		mustClose(t, tier)
	}
}

// TestGravesAreBounded deletes without end under a segment that is always used: the graves do not
// fill the disk.
func TestGravesAreBounded(t *testing.T) {
	sim := newSimFS()
	o := simOptions(sim, vfs.NewMem())
	tier := open(t, o)
	<-tier.Ready()
	for i := range 20 {
		writeTokens(t, tier, i, 1, false)
	}
	for i := range 4000 {
		for j := range 20 {
			tier.Touch(tokens(j).Addr)
		}
		write(t, tier, i%50, 1, 100, false)
		if _, err := tier.Delete(ctx, keyAddr(i%50)); err != nil {
			t.Fatal(err)
		}
	}
	awaitRoom(t, tier)
	s := tier.Stats()
	t.Logf("%d deletes, %d graves written, %d segments freed", s.Deletes, s.Graves, s.Reclaimed)
	if s.Deletes != 4000 || s.Graves > 10*s.Deletes || s.Reclaimed == 0 {
		t.Errorf("%+v", s)
	}
	mustClose(t, tier)
}

// TestFailedWriteStaysDeletedWithoutRows: the record of a write that failed is not taken for one
// when the rows are made again, be the segment sealed or not.
func TestFailedWriteStaysDeletedWithoutRows(t *testing.T) {
	for _, sealed := range []bool{true, false} {
		sim := newSimFS()
		var failing, written atomic.Int32
		sim.fault = func(op string) error {
			if op == "write" {
				written.Add(1)
			}
			if op == "sync" && failing.Load() > 0 || op == "write" && failing.Load() > 1 {
				return syscall.EIO
			}
			return nil
		}
		tier := open(t, simOptions(sim, vfs.NewMem()))
		<-tier.Ready()
		writeTokens(t, tier, 1, 1, true)
		failing.Store(1)
		before := written.Load()
		if err := tier.Write(ctx, tokens(2), content(2, 1, 3002), true); !errors.Is(err, ErrIO) ||
			written.Load() == before {
			t.Fatal(err, "and no record in the log")
		}
		tier.log.mu.Lock()
		tier.log.active.full, tier.log.active = true, nil
		tier.log.mu.Unlock()
		if !sealed {
			failing.Store(2)
		}
		tier.sealFull()
		failing.Store(0)
		if !tier.checkpoint() || tier.Doubtful(tokens(2).Addr) {
			t.Fatal("the doubt does not end")
		}
		if n, err := tier.Delete(ctx, tokens(2).Addr); err != nil || n != 0 {
			t.Fatal(n, err)
		}
		mustClose(t, tier)
		tier = open(t, simOptions(sim, vfs.NewMem()))
		<-tier.Ready()
		if _, there := tier.Find(tokens(2).Addr); there {
			t.Error("sealed", sealed, ": a write that failed, and was deleted, is there")
		}
		if _, there := tier.Find(tokens(1).Addr); there != sealed {
			t.Error("sealed", sealed, ": the block that was written before it is there:", there)
		}
		mustClose(t, tier)
	}
}

// remade is how many blocks TestServesWhileRebuilding has; isRemade checks them: the first 20 were
// replaced, the next 20 deleted. all says that those from before are to be there.
const remade = 300

func isRemade(t *testing.T, tier *Tier, all bool) {
	t.Helper()
	dst := make([]byte, 8192)
	for i := range remade {
		info, err := tier.Read(ctx, tokens(i).Addr, dst)
		v := uint64(1)
		switch {
		case i < 20:
			v = 2
		case i < 40:
			v = 0
		}
		if v == 0 && err == nil || v > 0 && err == nil && !bytes.Equal(dst[:info.Length], content(i, v, 3000+i)) {
			t.Fatalf("block %d is not version %d: %v", i, v, err)
		}
		if (all || v == 2) && v > 0 && err != nil {
			t.Fatalf("block %d: %v", i, err)
		}
	}
	holds(t, tier, 1, 1, 2000)
}

// TestServesWhileRebuilding: while the rows are made again what was there before is a miss, and
// what is written, replaced and deleted meanwhile stays so, also if the process dies in between.
func TestServesWhileRebuilding(t *testing.T) {
	o := small(t.TempDir())
	o.Logger, o.SegmentSize = quiet, 1<<20
	const n = remade
	tier := open(t, o)
	for i := range n {
		writeTokens(t, tier, i, 1, true)
	}
	mustClose(t, tier)
	if err := os.RemoveAll(filepath.Join(o.Dir, rowsDir)); err != nil {
		t.Fatal(err)
	}
	hold := make(chan struct{})
	o.scanning = func() { <-hold }
	tier = open(t, o)
	purged := make(chan int, 1)
	for i := range n {
		if _, there := tier.Find(tokens(i).Addr); there || !tier.Doubtful(tokens(i).Addr) {
			t.Fatalf("block %d: found %v before it is", i, there)
		}
	}
	for i := range 30 {
		writeTokens(t, tier, i, 2, true)
	}
	write(t, tier, 1, 1, 2000, true)
	for i := 20; i < 40; i++ {
		if _, err := tier.Delete(ctx, tokens(i).Addr); err != nil {
			t.Fatal(err)
		}
	}
	go func() {
		seen := 0
		for cursor := uint64(0); ; {
			next, err := tier.Scan(ctx, cursor, func(Info) bool { seen++; return true })
			if cursor = next; cursor == 0 || err != nil {
				break
			}
		}
		purged <- seen
	}()
	isRemade(t, tier, false)
	crashed := copied(t, o)
	close(hold)
	<-tier.Ready()
	isRemade(t, tier, true)
	if seen := <-purged; seen != n-20+1 {
		t.Errorf("a scan has seen %d blocks", seen)
	}
	mustClose(t, tier)
	for range 2 {
		tier := open(t, crashed)
		isRemade(t, tier, false)
		<-tier.Ready()
		isRemade(t, tier, true)
		mustClose(t, tier)
	}
	closedWhileRebuilding(t, o)
}

// closedWhileRebuilding closes the tier before the rows are complete.
func closedWhileRebuilding(t *testing.T, o Options) {
	t.Helper()
	if err := os.RemoveAll(filepath.Join(o.Dir, rowsDir)); err != nil {
		t.Fatal(err)
	}
	begun := make(chan struct{}, 100)
	o.scanning = func() { begun <- struct{}{} }
	tier := open(t, o)
	<-begun
	mustClose(t, tier)
	o.scanning = nil
	tier = open(t, o)
	<-tier.Ready()
	for i := range remade {
		if _, there := tier.Find(tokens(i).Addr); there == (i >= 20 && i < 40) {
			t.Fatalf("block %d: found %v", i, there)
		}
	}
	mustClose(t, tier)
}
