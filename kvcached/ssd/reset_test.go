package ssd

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/kv/block"
)

var tokenSpace = block.Namespace{Model: "m", Revision: "1", DType: "bf16", Layout: "l", Tokens: 16, TP: 1,
	PP: 1}.String()

// tokens returns the record of a block of tokens.
func tokens(i int) Record {
	return Record{Addr: block.Addr{Digest: block.Digest{1, byte(i), byte(i >> 8)}, Model: block.IDOf(tokenSpace)},
		Namespace: tokenSpace, Parent: block.Digest{byte(i)}}
}

// rowFiles returns the non-empty files of Pebble whose names contain part.
func rowFiles(t *testing.T, dir, part string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(dir, RowsDir), func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.Contains(filepath.Base(path), part) {
			if info, err := d.Info(); err == nil && info.Size() > 0 {
				names = append(names, path)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func flipFile(t *testing.T, rng *rand.Rand, name string, n int) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
	}
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// copied copies the directory of o, as a process that is killed now would leave it.
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
// ones exist.
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

// filled writes n keys and n blocks of tokens. It replaces every third of each, and deletes every
// third.
func filled(t *testing.T, o Options, n int) *Tier {
	t.Helper()
	tier := open(t, o)
	<-tier.Ready()
	for i := range n {
		write(t, tier, i, 1, 2000, true)
		writeTokens(t, tier, i, 1, true)
		switch i % 3 {
		case 1:
			write(t, tier, i, 2, 2000, false)
			writeTokens(t, tier, i, 2, false)
		case 2:
			remove(t, tier, i)
		}
	}
	return tier
}

// newest counts the blocks of filled that exist. Each of them must be the newest version.
func newest(t *testing.T, tier *Tier, n int) (there int) {
	t.Helper()
	for i := range n {
		key, token := isNewest(t, tier, i, [...]uint64{1, 2, 0}[i%3])
		for _, b := range []bool{key, token} {
			if b {
				there++
			}
		}
	}
	return there
}

// TestRowsGone: without rows, or with rows that an older program was still making, a start is
// empty, logs that, frees the disk, and works.
func TestRowsGone(t *testing.T) {
	for name, spoil := range map[string]func(dir string) error{
		"rows":   func(dir string) error { return os.RemoveAll(filepath.Join(dir, RowsDir)) },
		"marked": func(dir string) error { return os.WriteFile(filepath.Join(dir, resetFile), nil, 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			eachKind(t, func(t *testing.T, o Options) {
				const n = 60
				var said lines
				o.Logger = slog.New(slog.NewTextHandler(&said, nil))
				mustClose(t, filled(t, o, n))
				if err := spoil(o.Dir); err != nil {
					t.Fatal(err)
				}
				for round := range uint64(3) {
					tier := open(t, o)
					<-tier.Ready()
					s := tier.Stats()
					if there := newest(t, tier, n); there != 0 || s.Resets != [...]uint64{1, 0, 0}[round] ||
						round == 0 && s.SegmentBytes != 0 {
						t.Fatalf("%d blocks: %+v", there, s)
					}
					write(t, tier, n+int(round), 1, 500, true)
					for i := range int(round) + 1 {
						holds(t, tier, n+i, 1, 500)
					}
					mustClose(t, tier)
				}
				if log := said.all(); strings.Count(log, "all blocks are dropped") != 1 {
					t.Error(log)
				}
			})
		})
	}
}

// TestSkip: after a run without the tier, the next start drops all blocks, once.
func TestSkip(t *testing.T) {
	eachKind(t, func(t *testing.T, o Options) {
		if there, err := Skip(filepath.Join(o.Dir, "none")); there || err != nil {
			t.Error(there, err)
		}
		if there, err := Skip(o.Dir); there || err != nil {
			t.Error("an empty directory:", there, err)
		}
		var said lines
		o.Logger = slog.New(slog.NewTextHandler(&said, nil))
		mustClose(t, filled(t, o, 9))
		for range 2 {
			if there, err := Skip(o.Dir); !there || err != nil {
				t.Error(there, err)
			}
		}
		if v, err := Verify(ctx, VerifyOptions{Dir: o.Dir, Key: o.Key}); err != nil || !v.Skipped || v.Dropped ||
			v.Bad != 0 || v.Live != 0 || v.Records == 0 {
			t.Errorf("%+v, %v", v, err)
		}
		for round := range 2 {
			tier := open(t, o)
			<-tier.Ready()
			if there := newest(t, tier, 9); there != 0 || tier.Stats().Resets != 0 {
				t.Errorf("%d blocks: %+v", there, tier.Stats())
			}
			if round > 0 {
				holds(t, tier, 100, 1, 500)
			}
			write(t, tier, 100, 1, 500, true)
			mustClose(t, tier)
		}
		if log := said.all(); strings.Count(log, "has run without this tier") != 1 ||
			strings.Contains(log, "level=ERROR") {
			t.Error(log)
		}
	})
}

// TestDamagedRowsAreToldOnce damages a table of the rows. The start that drops the blocks says so
// in one line. Verify reports one finding and logs nothing.
func TestDamagedRowsAreToldOnce(t *testing.T) {
	o := small(t.TempDir())
	tier := filled(t, o, 60)
	if err := tier.rows.db.Flush(); err != nil {
		t.Fatal(err)
	}
	mustClose(t, tier)
	tables := rowFiles(t, o.Dir, ".sst")
	if len(tables) == 0 {
		t.Fatal("there is no table")
	}
	for _, name := range tables {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(b); i += 97 {
			b[i] ^= 0x55
		}
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var said lines
	old := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&said, nil)))
	defer slog.SetDefault(old)
	var bad []string
	v, err := Verify(ctx, VerifyOptions{Dir: o.Dir, Bad: func(d Damage) { bad = append(bad, d.Err.Error()) }})
	if err != nil || !v.Dropped || len(bad) != 1 || strings.Contains(bad[0], "\n") || said.all() != "" {
		t.Errorf("%+v, %v, %q, log %s", v, err, bad, said.all())
	}
	o.Logger = slog.Default()
	tier = open(t, o)
	<-tier.Ready()
	write(t, tier, 1, 1, 100, true)
	mustClose(t, tier)
	if log := said.all(); strings.Count(log, "level=ERROR") != 1 || strings.Count(log, "level=WARN") != 0 ||
		!strings.Contains(log, "all blocks are dropped") || strings.Contains(log, "stack trace") {
		t.Error(log)
	}
}

// TestIncompleteRows: rows that an older program had not finished making are not used.
func TestIncompleteRows(t *testing.T) {
	o := small(t.TempDir())
	o.Logger = quiet
	tier := filled(t, o, 6)
	c := tier.rows.change()
	_ = c.batch.Set([]byte{rowRebuild}, make([]byte, 8), nil)
	if err := c.commit(true); err != nil {
		t.Fatal(err)
	}
	mustClose(t, tier)
	tier = open(t, o)
	<-tier.Ready()
	if there := newest(t, tier, 6); there != 0 || tier.Stats().Resets != 1 {
		t.Errorf("%d blocks: %+v", there, tier.Stats())
	}
	mustClose(t, tier)
}

// TestRowFlips flips bits in each kind of the rows' files. All blocks exist or none, after one or
// two starts. A deleted or replaced block never comes back.
func TestRowFlips(t *testing.T) {
	seed := seedOf(t)
	rng := rand.New(rand.NewPCG(seed, 3))
	const n, all = 120, 160
	base := small(t.TempDir())
	base.Logger = quiet
	mustClose(t, filled(t, base, n))
	whole, emptied := 0, 0
	for round := range rounds(12, 600) {
		o := copied(t, base)
		part := [...]string{".sst", ".log", "MANIFEST", "OPTIONS", "marker", ""}[round%6]
		if files := rowFiles(t, o.Dir, part); len(files) > 0 {
			flipFile(t, rng, files[rng.IntN(len(files))], 1+rng.IntN(3))
		}
		if _, err := Verify(ctx, VerifyOptions{Dir: o.Dir}); err != nil {
			t.Fatal(part, err)
		}
		resets, there := uint64(0), 0
		for range 2 {
			tier := open(t, o)
			newest(t, tier, n)
			<-tier.Ready()
			there = newest(t, tier, n)
			resets += tier.Stats().Resets
			write(t, tier, n, 1, 500, true)
			holds(t, tier, n, 1, 500)
			mustClose(t, tier)
		}
		switch {
		case resets == 0 && there == all:
			whole++
		case resets > 0 && there == 0:
			emptied++
		default:
			t.Fatalf("%s: %d of %d blocks after two starts, %d resets", part, there, all, resets)
		}
	}
	if t.Logf("%d whole, %d emptied", whole, emptied); emptied == 0 {
		t.Error("nothing was emptied")
	}
}

// TestEndOfRowsDamaged flips bits in the rows' log of a killed process. Synced changes behind the
// damage prove the damage. So a start is empty, or lacks only the last changes.
func TestEndOfRowsDamaged(t *testing.T) {
	seed := seedOf(t)
	rng := rand.New(rand.NewPCG(seed, 3))
	eachKind(t, func(t *testing.T, o Options) {
		o.Logger = quiet
		const n, last = 90, 5
		tier := filled(t, o, n)
		tier.checkpoint()
		for i := range last {
			write(t, tier, n+i, 1, 2000, true)
		}
		emptied := 0
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
			again := open(t, c)
			<-again.Ready()
			there, resets := newest(t, again, n), again.Stats().Resets
			if there != [...]int{n / 3 * 4, 0}[resets] {
				t.Fatalf("%d blocks, %d resets", there, resets)
			}
			emptied += int(resets)
			mustClose(t, again)
		}
		t.Logf("emptied %d times", emptied)
		mustClose(t, tier)
	})
}
