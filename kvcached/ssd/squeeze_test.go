package ssd

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// narrow is a simFS with room for only size bytes of segments.
type narrow struct {
	*simFS
	size *atomic.Int64
}

func (n narrow) Free(string) (int64, error) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	free := n.size.Load()
	for _, f := range n.files {
		size, _ := f.Size()
		free -= size
	}
	return max(free, 0), nil
}

// TestSqueeze: the filesystem has less room than the cap. Durable writes and deletions go on, no
// segment number is used up in vain, and the tier grows when there is more room.
func TestSqueeze(t *testing.T) {
	size := &atomic.Int64{}
	size.Store(rowRoom) // Open needs this much
	start := time.Unix(1e9, 0)
	var passed atomic.Int64
	o := simOptions(newSimFS(), vfs.NewMem())
	o.fs = narrow{o.fs.(*simFS), size}
	o.now = func() time.Time { return start.Add(time.Duration(passed.Load())) }
	tier := open(t, o)
	<-tier.Ready()
	size.Store(ballastSize + 1<<20)
	for i := range 500 {
		write(t, tier, i, 1, 20000, true)
		holds(t, tier, i, 1, 20000)
		if i%10 == 0 {
			if n, err := tier.Delete(ctx, keyAddr(i)); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
	}
	s := tier.Stats()
	t.Logf("%d bytes in %d segments, limit %d; full %d times, %d segments freed", s.SegmentBytes, s.Segments,
		s.SegmentLimit, s.Squeezes, s.Reclaimed)
	if s.SegmentLimit == 0 || s.SegmentLimit >= 2<<20 || s.SegmentBytes > 1<<20 || s.Reclaimed == 0 || s.Records == 0 {
		t.Errorf("%+v", s)
	}
	if used := uint64(tier.log.segment); used > s.Reclaimed+uint64(s.Segments)+2 {
		t.Errorf("%d numbers of segments used up", used)
	}
	size.Store(1 << 30)
	for i := 0; tier.Stats().SegmentLimit > 0; i++ {
		passed.Add(int64(quotaFor))
		tier.look()
		if i > 1000 {
			t.Fatalf("it does not grow: %+v", tier.Stats())
		}
	}
	for i := range 500 {
		write(t, tier, i, 2, 20000, true)
	}
	if again := tier.Stats(); again.SegmentBytes <= s.SegmentBytes || again.SegmentLimit != 0 {
		t.Errorf("%+v", again)
	}
	mustClose(t, tier)
	tier = open(t, o)
	holds(t, tier, 499, 2, 20000)
	mustClose(t, tier)
}

// TestNoRoomAtAll: if nothing can be freed, a write fails instead of waiting.
func TestNoRoomAtAll(t *testing.T) {
	size := &atomic.Int64{}
	o := simOptions(newSimFS(), vfs.NewMem())
	o.fs = narrow{o.fs.(*simFS), size}
	size.Store(rowRoom + 64<<10) // Open needs this much
	tier := open(t, o)
	<-tier.Ready()
	size.Store(ballastSize + 64<<10)
	if err := tier.Write(ctx, record(1), content(1, 1, 5000), true); !errors.Is(err, syscall.ENOSPC) ||
		!errors.Is(err, ErrIO) {
		t.Fatal(err)
	}
	mustClose(t, tier)
}

// TestUnderOneSegment: on a filesystem smaller than one segment of normal size, segments are
// smaller. A larger durable block gets a larger one.
func TestUnderOneSegment(t *testing.T) {
	o := Options{Dir: filepath.Join(smallFilesystem(t, "60m"), "d"), Cap: 1 << 30, Logger: quiet}
	for _, size := range []int{1 << 20, 4 << 20} {
		tier := open(t, o)
		<-tier.Ready()
		const n = 40
		for i := range n {
			write(t, tier, i, 1, size, true)
			holds(t, tier, i, 1, size)
		}
		s := tier.Stats()
		t.Logf("%d bytes in %d segments, limit %d; full %d times, %d segments freed, %d blocks", s.SegmentBytes,
			s.Segments, s.SegmentLimit, s.Squeezes, s.Reclaimed, s.Records)
		if s.Records*int64(size) < 12<<20 {
			t.Errorf("%d blocks of %d bytes are kept", s.Records, size)
		}
		mustClose(t, tier)
		tier = open(t, o)
		holds(t, tier, n-1, 1, size)
		mustClose(t, tier)
	}
}

// smallFilesystem mounts a tmpfs of the given size.
func smallFilesystem(t *testing.T, size string) (dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount a filesystem of its own")
	}
	dir = t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+size, "none", dir).CombinedOutput(); err != nil {
		t.Skipf("tmpfs cannot be mounted here: %s", out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	return dir
}

// TestSmallFilesystem writes ten times the size of a filesystem that has a third of the cap.
func TestSmallFilesystem(t *testing.T) {
	dir := smallFilesystem(t, "64m")
	var said lines
	o := Options{Dir: filepath.Join(dir, "d"), Cap: 192 << 20, segmentSize: 2 << 20,
		Logger: slog.New(slog.NewTextHandler(&said, nil))}
	tier := open(t, o)
	<-tier.Ready()
	const n, size = 300, 300 << 10
	for i := range n {
		write(t, tier, i, 1, size, i%4 == 0)
		holds(t, tier, i, 1, size)
	}
	// Another program takes the room that is free now, but not the room that the tier frees later.
	filler, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = filler.Close() }()
	b := make([]byte, 4096)
	for left := tier.o.free(); err == nil && left > 0; left -= int64(len(b)) {
		_, err = filler.Write(b)
	}
	for i := range n {
		write(t, tier, i, 2, size, i%4 == 0)
	}
	s := tier.Stats()
	t.Logf("%d bytes in %d segments, limit %d; full %d times, %d segments freed, %d blocks", s.SegmentBytes, s.Segments,
		s.SegmentLimit, s.Squeezes, s.Reclaimed, s.Records)
	holds(t, tier, n-1, 2, size)
	if s.SegmentLimit == 0 || tier.rows.broken.Load() || s.Records == 0 {
		t.Errorf("%+v", s)
	}
	mustClose(t, tier)
	if log := said.all(); strings.Contains(log, "the disk failed") || !strings.Contains(log, "level=WARN") {
		t.Errorf("a full filesystem is told of as %s", log)
	}
	tier = open(t, o)
	holds(t, tier, n-1, 2, size)
	mustClose(t, tier)
}

// TestLessAndLessRoomIsTold: a limit that has halved since the last line is logged, at most once a
// minute. A filesystem without room for a segment has a line of its own.
func TestLessAndLessRoomIsTold(t *testing.T) {
	var said lines
	now := time.Unix(1e9, 0)
	tier := &Tier{o: Options{Logger: slog.New(slog.NewTextHandler(&said, nil)),
		now: func() time.Time { return now }}}
	for i, step := range []struct {
		limit int64
		after time.Duration
		lines int // in all
	}{
		{0, 0, 0}, {400 << 20, 0, 1}, {300 << 20, time.Hour, 1}, {200 << 20, time.Second, 2}, {90 << 20, time.Second, 2},
		{80 << 20, time.Minute, 3}, {200 << 20, time.Second, 3}, {1, time.Hour, 4}, {1, time.Hour, 4}, {0, time.Second, 5},
		{0, time.Hour, 5}, {50 << 20, 0, 6},
	} {
		now = now.Add(step.after)
		tier.tellLimit(step.limit)
		if n := strings.Count(said.all(), "\n"); n != step.lines {
			t.Errorf("step %d: %d lines, want %d", i, n, step.lines)
		}
	}
	if log := said.all(); strings.Count(log, "has no room for the tier") != 1 || strings.Count(log, "level=WARN") != 5 {
		t.Error(log)
	}
}

// TestAFullFilesystemIsNoFailedDisk: a full filesystem and a failed disk have different messages,
// and neither suppresses the other.
func TestAFullFilesystemIsNoFailedDisk(t *testing.T) {
	var said lines
	tier := &Tier{o: Options{Logger: slog.New(slog.NewTextHandler(&said, nil))}}
	for range 2 {
		tier.writeFailed("create", fmt.Errorf("segment: %w", syscall.ENOSPC))
	}
	if log := said.all(); strings.Count(log, "level=WARN") != 1 || strings.Contains(log, "failed") {
		t.Error(log)
	}
	tier.writeFailed("write", syscall.EIO)
	if log := said.all(); !strings.Contains(log, "level=ERROR msg=\"ssd: the disk failed") {
		t.Error(log)
	}
	if n, other := tier.stats.noSpace.Load(), tier.stats.writeErrors.Load(); n != 2 || other != 1 {
		t.Errorf("%d without space, %d failed", n, other)
	}
}
