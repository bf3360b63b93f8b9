package tally

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/internal/replace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var noon = time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)

func newTally(t testing.TB, dir string) (*Tally, *bytes.Buffer) {
	t.Helper()
	log := new(bytes.Buffer)
	return New(Options{Dir: dir, KeepDays: 400, Logger: slog.New(slog.NewTextHandler(log, nil))}), log
}

// sum returns what a day's files in dir have for a subject.
func sum(t *testing.T, dir string, d Day, of Subject) (u Use) {
	t.Helper()
	files, err := ReadDay(dir, d)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		for i := range f.Rows {
			if f.Rows[i].Subject == of {
				u.Add(&f.Rows[i].Use)
			}
		}
	}
	return u
}

var acme = Subject{"acme", "8GZr5pQx", "llama"}

// TestProcessesAddUp checks that the files of two processes at a time, and of one after the other,
// add up, and what a file looks like.
func TestProcessesAddUp(t *testing.T) {
	dir, d := t.TempDir(), DayOf(noon)
	one := Use{Requests: 1, Prompt: 10, Cached: 4, Completion: 5, Estimated: 1}
	a, _ := newTally(t, dir)
	b, _ := newTally(t, dir)
	for range 3 {
		a.Add(acme, one, noon)
		b.Add(acme, one, noon)
		a.write(noon)
	}
	b.Close()
	c, _ := newTally(t, dir)
	c.Add(acme, one, noon)
	c.Close()
	if got := sum(t, dir, d, acme); got != (Use{7, 70, 28, 35, 7}) {
		t.Errorf("%+v", got)
	}
	a.Add(acme, one, noon) // not written
	files, err := a.Files(d, math.MaxInt64)
	if err != nil || len(files) != 3 {
		t.Fatal(files, err)
	}
	var all int64
	for _, f := range files {
		all += f.Requests()
		info, err := os.Stat(filepath.Join(dir, f.Name))
		if err != nil || info.Mode().Perm()&^0o640 != 0 {
			t.Error(info, err)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, c.days[0].file))
	if all != 8 || err != nil || string(text) != `{"day":"2026-11-29","tenant":"acme","key":"8GZr5pQx","model":"llama",`+
		`"requests":1,"prompt_tokens":10,"cached_tokens":4,"completion_tokens":5,"estimated_requests":1}`+"\n" {
		t.Errorf("%d requests, %v, %s", all, err, text)
	}
	if parts, _ := filepath.Glob(filepath.Join(dir, ".*")); len(parts) > 0 {
		t.Errorf("left: %v", parts)
	}
}

// TestDays checks the change of the day under Run, a clock that goes back, and that old files are
// deleted, and no others.
func TestDays(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		tl, log := newTally(t, dir)
		start := time.Now() // January 1, 2000
		old, kept := newFileName(DayOf(start)-400), newFileName(DayOf(start)-399)
		others := []string{"notes.txt", "1999-01-01.jsonl", "1999-01-01.0123.jsonl", "x.0123456789abcdef.jsonl"}
		for _, name := range append([]string{old, kept, replace.Part(newFileName(1))}, others...) {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		ctx, stop := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { _ = tl.Run(ctx) })
		for range 4 { // six hours each
			tl.Add(acme, Use{Requests: 1}, time.Now())
			time.Sleep(6 * time.Hour)
		}
		for range 2 {
			tl.Add(acme, Use{Requests: 1}, time.Now())
			time.Sleep(writeEvery + time.Second)
		}
		tl.Add(acme, Use{Requests: 1}, start) // the clock has gone back
		tl.Add(acme, Use{Requests: 1}, time.Now())
		time.Sleep(writeEvery + time.Second)
		stop()
		run.Wait()
		tl.Close()
		d := DayOf(start)
		if x, y := sum(t, dir, d, acme), sum(t, dir, d+1, acme); x.Requests != 5 || y.Requests != 3 {
			t.Errorf("%d and %d requests", x.Requests, y.Requests)
		}
		if len(tl.days) != 1 || log.Len() > 0 {
			t.Errorf("%d days are kept, log %s", len(tl.days), log)
		}
		names, err := list(dir)
		if err != nil || len(names) != len(others)+1+3 {
			t.Errorf("%v %v", names, err)
		}
		if _, err := os.Stat(filepath.Join(dir, old)); err == nil { // 400 days old and kept one day longer
			t.Error("an old file is kept")
		}
	})
}

// TestUnwritable checks that nothing is lost while the directory is away or full, that the log has
// one line, and what is forgotten at last.
func TestUnwritable(t *testing.T) {
	for what, break1 := range map[string]func(t *testing.T, dir string) (mend func()){
		"missing": func(t *testing.T, dir string) func() {
			if err := os.Rename(dir, dir+"-away"); err != nil {
				t.Fatal(err)
			}
			return func() { _ = os.Rename(dir+"-away", dir) }
		},
		"full": func(t *testing.T, dir string) func() {
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=32k"); err != nil {
				t.Skip("no file system can be mounted: ", err)
			}
			mend := func() { _ = unix.Mount("tmpfs", dir, "tmpfs", unix.MS_REMOUNT, "size=8m") }
			t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
			return mend
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "usage")
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			tl, log := newTally(t, dir)
			mend := break1(t, dir)
			for i := range 1000 {
				tl.Add(Subject{"acme", fmt.Sprint(i), "llama"}, Use{Requests: 1}, noon)
			}
			for range 3 {
				tl.write(noon)
			}
			if s := tl.Stats(); !s.Failing || s.Rows != 1000 || strings.Count(log.String(), "usage not written") != 1 {
				t.Errorf("%+v, log %s", s, log)
			}
			mend()
			tomorrow := noon.Add(24 * time.Hour)
			tl.Add(acme, Use{Requests: 1}, tomorrow)
			tl.write(tomorrow)
			files, err := ReadDay(dir, DayOf(noon))
			if err != nil || len(files) != 1 || files[0].Requests() != 1000 {
				t.Error(len(files), err)
			}
			if s := tl.Stats(); s.Failing || s.Lost > 0 || len(tl.days) != 1 {
				t.Errorf("%+v, %d days", s, len(tl.days))
			}
		})
	}
	tl, _ := newTally(t, filepath.Join(t.TempDir(), "none"))
	for i := range maxUnwritten + 2 {
		at := noon.Add(time.Duration(i) * 24 * time.Hour)
		tl.Add(acme, Use{Requests: 3}, at)
		tl.write(at)
	}
	if s := tl.Stats(); s.Lost != 6 || len(tl.days) != maxUnwritten {
		t.Errorf("%+v, %d days", s, len(tl.days))
	}
}

// TestCloseThatFails checks that Close says how many requests are lost, and that a request counted
// after it counts as lost.
func TestCloseThatFails(t *testing.T) {
	tl, _ := newTally(t, filepath.Join(t.TempDir(), "none"))
	tl.write(noon) // fails and is not logged again
	tl.Add(acme, Use{Requests: 3}, noon)
	tl.write(noon)
	tl.Add(acme, Use{Requests: 2}, noon.Add(24*time.Hour))
	if err := tl.Close(); err == nil || !strings.HasPrefix(err.Error(), "5 requests not written: ") {
		t.Error(err)
	}
	tl.Add(acme, Use{Requests: 1}, noon)
	if s := tl.Stats(); s.Lost != 6 {
		t.Errorf("%+v", s)
	}
}

// TestPartsOfCrashes checks that old parts of files of any day are deleted, whatever keep_days is,
// and no part that somebody may be writing.
func TestPartsOfCrashes(t *testing.T) {
	for _, keep := range []int{0, 400} {
		dir, now := t.TempDir(), time.Now()
		old, fresh, whole := replace.Part(newFileName(DayOf(now))), replace.Part(newFileName(DayOf(now))),
			newFileName(DayOf(now))
		for _, name := range []string{old, fresh, whole} {
			if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{old, whole} {
			if err := os.Chtimes(filepath.Join(dir, name), now, now.Add(-2*partAge)); err != nil {
				t.Fatal(err)
			}
		}
		tl := New(Options{Dir: dir, KeepDays: keep, Logger: slog.Default()})
		if err := tl.Close(); err != nil {
			t.Fatal(err)
		}
		if names, err := list(dir); err != nil || len(names) != 2 || names[0] != fresh || names[1] != whole {
			t.Errorf("keep %d: %v, %v", keep, names, err)
		}
	}
}

// TestFilesThatAreTooLarge checks that files are not read beyond the bound.
func TestFilesThatAreTooLarge(t *testing.T) {
	dir := t.TempDir()
	for range 2 {
		tl, _ := newTally(t, dir)
		tl.Add(acme, Use{Requests: 1}, noon)
		if err := tl.Close(); err != nil {
			t.Fatal(err)
		}
	}
	names, _ := list(dir)
	info, err := os.Stat(filepath.Join(dir, names[0]))
	if err != nil {
		t.Fatal(err)
	}
	bad := bytes.Repeat([]byte("x"), int(info.Size()))
	if err := os.WriteFile(filepath.Join(dir, names[1]), bad, 0o600); err != nil {
		t.Fatal(err)
	}
	tl, _ := newTally(t, dir)
	if _, err := tl.Files(DayOf(noon), 2*info.Size()-1); !errors.Is(err, ErrTooLarge) { // a line is not read
		t.Error(err)
	}
	if _, err := tl.Files(DayOf(noon), 2*info.Size()); err == nil || errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
}

// TestBounds checks the rows and the numbers that a flood can make.
func TestBounds(t *testing.T) {
	dir := t.TempDir()
	tl, _ := newTally(t, dir)
	one := Use{Requests: 1, Prompt: 1}
	for i := range 3 * maxRows {
		tl.Add(Subject{"acme", fmt.Sprint(i), "llama"}, one, noon)
	}
	if s := tl.Stats(); s.Rows != maxRows+1 || s.Folded != 2*maxRows {
		t.Errorf("%+v", s)
	}
	for i := range 3 * maxRows {
		tl.Add(Subject{fmt.Sprint("t", i), "", "llama"}, one, noon)
	}
	tl.Add(acme, one, noon)
	tl.Add(Subject{"acme", "5", "llama"}, one, noon)
	tl.Close()
	d := DayOf(noon)
	if s := tl.Stats(); s.Rows != maxOfFile {
		t.Errorf("%+v", s)
	}
	for of, want := range map[Subject]int64{
		{"acme", Other, Other}: 2*maxRows + 1, {"acme", "5", "llama"}: 2, {"t5", Other, Other}: 1,
		{Other, Other, Other}: 3*maxRows - (maxRows - 1),
	} {
		if got := sum(t, dir, d, of); got.Requests != want || got.Prompt != want {
			t.Errorf("%v: %+v, want %d", of, got, want)
		}
	}
	tl, _ = newTally(t, dir)
	for range 2 { // the same long name has one row
		tl.Add(Subject{"long", "", strings.Repeat("x", 2*maxName)}, Use{Requests: 1, Prompt: math.MaxInt64, Cached: -1,
			Completion: -5}, noon)
	}
	if r := tl.days[0].rows; len(r) != 1 || len(r[0].Model) != maxName || r[0].Use != (Use{2, 2 * maxTokens, 0, 0, 0}) {
		t.Errorf("%d rows, %+v", len(r), r[0].Use)
	}
	u := Use{Requests: math.MaxInt64}
	if u.Add(&Use{Requests: 5}); u.Requests != math.MaxInt64 {
		t.Errorf("%+v", u)
	}
}

// TestAddAllocatesNothing holds requests after the first of a row to no allocation.
func TestAddAllocatesNothing(t *testing.T) {
	tl, _ := newTally(t, t.TempDir())
	var none *Tally
	if n := testing.AllocsPerRun(100, func() {
		tl.Add(acme, Use{Requests: 1, Prompt: 5}, noon)
		none.Add(acme, Use{Requests: 1}, noon)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestBadFiles(t *testing.T) {
	const good = `{"day":"2026-11-29","tenant":"a","key":"","model":"m","requests":1}` + "\n"
	for text, want := range map[string]string{
		good + `{"day":"2026-11-29"`:            "line 2: unexpected end",
		good + good + "\n":                      "line 3:",
		`{"day":"2026-11-28","tenant":"a"}`:     "line 1: day 2026-11-28 in a file of 2026-11-29",
		`{"day":"yesterday","tenant":"a"}`:      "line 1:",
		`{"day":"2026-11-29"}`:                  "no tenant",
		strings.Replace(good, "1}", "-1}", 1):   "below 0",
		strings.Replace(good, "1}", "1e99}", 1): "line 1:",
		strings.Repeat("x", maxLine+1):          "line 1: ",
		strings.Repeat(good, maxOfFile+1):       "more than 20001 lines",
	} {
		dir := t.TempDir()
		name := newFileName(DayOf(noon))
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadDay(dir, DayOf(noon)); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.Contains(err.Error(), name) {
			t.Errorf("%.60q: %v, want %q", text, err, want)
		}
	}
}

// FuzzRows checks that rows that are read are valid, and are written as they were read.
func FuzzRows(f *testing.F) {
	f.Add([]byte(`{"day":"2026-11-29","tenant":"acme","key":"8GZr5pQx","model":"a/b","requests":1,"prompt_tokens":2}`))
	f.Add([]byte(`{"day":"2026-11-29","tenant":"(other)","cached_tokens":9223372036854775807}` + "\n\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		rows, err := readRows(bytes.NewReader(text), DayOf(noon))
		if err != nil {
			return
		}
		var again bytes.Buffer
		var total Use
		for i := range rows {
			if err := json.NewEncoder(&again).Encode(&rows[i]); err != nil {
				t.Fatal(err)
			}
			if total.Add(&rows[i].Use); min(total.Requests, total.Prompt, total.Cached) < 0 {
				t.Fatalf("%+v", total)
			}
		}
		same, err := readRows(&again, DayOf(noon))
		if err != nil || len(same) != len(rows) {
			t.Fatalf("%d rows, then %d: %v", len(rows), len(same), err)
		}
		for i := range rows {
			if rows[i] != same[i] {
				t.Fatalf("%+v, then %+v", rows[i], same[i])
			}
		}
	})
}

// BenchmarkAdd counts requests of 1,000 rows, on all processors.
func BenchmarkAdd(b *testing.B) {
	tl, _ := newTally(b, b.TempDir())
	var all []Subject
	for i := range 1000 {
		all = append(all, Subject{fmt.Sprint("tenant-", i%50), fmt.Sprintf("%08d", i), "org/a-model-with-a-name"})
	}
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			tl.Add(all[i%len(all)], Use{Requests: 1, Prompt: 500, Completion: 100}, noon)
		}
	})
}
