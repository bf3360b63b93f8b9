package ssd

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// crashed copies the directory of an open tier, as a crash would leave it.
func crashed(t *testing.T, dir string) (copied string) {
	t.Helper()
	copied = filepath.Join(t.TempDir(), "d")
	if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return copied
}

// TestVerifyAfterCrash: Verify counts as live the blocks that a start finds. A missing or truncated
// segment is damage, even the newest one.
func TestVerifyAfterCrash(t *testing.T) {
	o := Options{Dir: filepath.Join(t.TempDir(), "d"), Cap: 256 << 20, segmentSize: 8 << 20, Logger: quiet}
	tier := open(t, o)
	<-tier.Ready()
	const n, size = 16, 1 << 20
	for i := range n {
		write(t, tier, i, 1, size, true)
	}
	write(t, tier, 0, 2, size, true)
	for i := range 2 {
		if _, err := tier.Delete(ctx, keyAddr(n-1-i)); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name    string
		spoil   func(dir string) error
		segment uint32
	}{
		{"nothing", func(string) error { return nil }, 0},
		{"the first is missing", func(dir string) error { return os.Remove(segmentName(dir, 1)) }, 1},
		{"the newest is missing", func(dir string) error { return os.Remove(segmentName(dir, 3)) }, 3},
		{"cut within a page", func(dir string) error { return os.Truncate(segmentName(dir, 1), 3_000_000) }, 1},
		{"cut within a record", func(dir string) error { return os.Truncate(segmentName(dir, 1), 100*page) }, 1},
		{"cut between records", func(dir string) error { return os.Truncate(segmentName(dir, 1), page*(1+257*3)) }, 1},
		{"the newest is cut", func(dir string) error { return os.Truncate(segmentName(dir, 3), page*(1+200)) }, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			again := o
			again.Dir = crashed(t, o.Dir)
			if err := c.spoil(again.Dir); err != nil {
				t.Fatal(err)
			}
			named := c.segment == 0
			v, err := Verify(ctx, VerifyOptions{Dir: again.Dir, Bad: func(d Damage) {
				t.Logf("%s, page %d: %v", filepath.Base(d.File), d.Page, d.Err)
				named = named || d.File == segmentName(again.Dir, c.segment)
			}})
			if err != nil || !v.Unclean || !named || (v.Bad > 0) != (c.segment > 0) {
				t.Errorf("%+v %v", v, err)
			}
			started := open(t, again)
			<-started.Ready()
			if live := started.Stats().Records; int64(v.Live-v.Lost) != live || c.segment == 0 && live != n-2 {
				t.Errorf("%+v, and a start finds %d", v, live)
			}
			mustClose(t, started)
			if v, err := Verify(ctx, VerifyOptions{Dir: again.Dir}); err != nil || v.Unclean || v.Bad > 0 {
				t.Errorf("after a start: %+v %v", v, err)
			}
		})
	}
	mustClose(t, tier)
	// The last checkpoint has passed all segments, so the index knows what is missing.
	if err := os.Remove(segmentName(o.Dir, 2)); err != nil {
		t.Fatal(err)
	}
	if v, err := Verify(ctx, VerifyOptions{Dir: o.Dir}); err != nil || v.Unclean || v.Bad != 1 || v.Lost == 0 {
		t.Errorf("%+v %v", v, err)
	}
}

// TestRemovedSegment removes a segment of a tier that was closed well. The next start says so.
func TestRemovedSegment(t *testing.T) {
	var said lines
	o := Options{Dir: filepath.Join(t.TempDir(), "d"), Cap: 256 << 20, segmentSize: 8 << 20,
		Logger: slog.New(slog.NewTextHandler(&said, nil))}
	tier := open(t, o)
	<-tier.Ready()
	for i := range 16 {
		write(t, tier, i, 1, 1<<20, true)
	}
	mustClose(t, tier)
	if err := os.Remove(segmentName(o.Dir, 1)); err != nil {
		t.Fatal(err)
	}
	tier = open(t, o)
	<-tier.Ready()
	mustClose(t, tier)
	if got := said.all(); strings.Count(got, "missing_segments=1") != 1 || !strings.Contains(got, "level=WARN") {
		t.Errorf("a removed segment: %s", got)
	}
}

// TestVerifyAfterKill: blocks behind the checkpoint count as live, although no row names them. A
// missing segment there is damage, and a start warns about it. Without rows the start drops all
// blocks.
func TestVerifyAfterKill(t *testing.T) {
	o := Options{Dir: filepath.Join(t.TempDir(), "d"), Cap: 256 << 20, segmentSize: 8 << 20, Logger: quiet}
	tier := open(t, o)
	<-tier.Ready()
	const n, size = 16, 1 << 20
	for i := range n {
		write(t, tier, i, 1, size, true)
	}
	for _, c := range []struct {
		spoil     func(dir string) error
		live, bad int
		dropped   bool
		warned    string
	}{
		{func(string) error { return nil }, n, 0, false, ""},
		{func(dir string) error { return os.Remove(segmentName(dir, 2)) }, n - 7, 1, false, "segment is missing"},
		{func(dir string) error { return os.RemoveAll(filepath.Join(dir, RowsDir)) }, 0, 1, true, "all blocks are dropped"},
		{func(dir string) error { return os.WriteFile(filepath.Join(dir, resetFile), nil, 0o600) }, 0, 1, true,
			"all blocks are dropped"},
	} {
		var said lines
		again := o
		again.Dir, again.Logger = crashed(t, o.Dir), slog.New(slog.NewTextHandler(&said, nil))
		if err := c.spoil(again.Dir); err != nil {
			t.Fatal(err)
		}
		v, err := Verify(ctx, VerifyOptions{Dir: again.Dir})
		if err != nil || v.Live != c.live || v.Lost != 0 || v.Bad != c.bad || v.Dropped != c.dropped {
			t.Errorf("%+v %v, want %+v", v, err, c)
		}
		started := open(t, again)
		<-started.Ready()
		mustClose(t, started)
		if got := said.all(); started.Stats().Records != int64(c.live) || !strings.Contains(got, c.warned) ||
			strings.Contains(got, "missing_segments=1") != (c.warned == "segment is missing") {
			t.Errorf("a start of %+v finds %d:\n%s", c, started.Stats().Records, got)
		}
	}
	mustClose(t, tier)
}

// lines records the log.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) all() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// TestVerifyCountsDamagedRecordsOnce damages the payloads of records in a sealed segment, whose
// footer names them as well.
func TestVerifyCountsDamagedRecordsOnce(t *testing.T) {
	o := small(filepath.Join(t.TempDir(), "d"))
	tier := open(t, o)
	for i := range 5 {
		write(t, tier, i, 1, 20000, true)
	}
	mustClose(t, tier)
	f, err := os.OpenFile(segmentName(o.Dir, 1), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(3) {
		if _, err := f.WriteAt([]byte{0xff, 0, 0xff, 0}, (1+6*i)*page+page+100); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.WriteAt(make([]byte, page), (1+6*3)*page); err != nil { // a header
		t.Fatal(err)
	}
	_ = f.Close()
	v, err := Verify(ctx, VerifyOptions{Dir: o.Dir})
	if err != nil || v.Bad != 4 || v.Lost != 4 || v.Live != 5 || v.Records != 1 {
		t.Errorf("%+v, %v", v, err)
	}
}

// TestDamageIsWarnedAbout: a start after a crash logs the place of a damaged record, whether or not
// the index names it.
func TestDamageIsWarnedAbout(t *testing.T) {
	o := small(filepath.Join(t.TempDir(), "d"))
	o.Logger = quiet
	tier := open(t, o)
	<-tier.Ready()
	for i := range 3 {
		write(t, tier, i, 1, 20000, true)
	}
	for _, named := range []bool{false, true} {
		if named {
			if err := tier.rows.db.Flush(); err != nil {
				t.Fatal(err)
			}
		}
		again := o
		again.Dir = crashed(t, o.Dir)
		f, err := os.OpenFile(segmentName(again.Dir, 1), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{0xff, 0, 0xff, 0}, (1+6)*page+page+100); err != nil {
			t.Fatal(err)
		}
		_ = f.Close()
		var said lines
		again.Logger = slog.New(slog.NewTextHandler(&said, nil))
		started := open(t, again)
		<-started.Ready()
		mustClose(t, started)
		want := fmt.Sprintf("segment=1 offset=%d", 7*page)
		if got := said.all(); strings.Count(got, want) != 1 || !strings.Contains(got, "level=WARN") {
			t.Errorf("index names it: %v: no %q in\n%s", named, want, got)
		}
	}
	mustClose(t, tier)
}
