package ssd

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/kv/block"
)

var tokenSpace = block.Namespace{Model: "m", Revision: "1", DType: "bf16", Layout: "l", Tokens: 16, TP: 1,
	PP: 1}.String()

// tokens is the record of a block of tokens.
func tokens(i int) Record {
	return Record{Addr: block.Addr{Digest: block.Digest{1, byte(i), byte(i >> 8)}, Model: block.IDOf(tokenSpace)},
		Namespace: tokenSpace, Parent: block.Digest{byte(i)}}
}

// rowFiles are the files of Pebble whose names contain part, without the empty ones.
func rowFiles(t *testing.T, dir, part string) (names []string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(dir, rowsDir), func(path string, d fs.DirEntry, err error) error {
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

// rowsLost fills a directory: blocks of tokens, some deleted; blocks of keys, of which every third
// was replaced and every third deleted.
func rowsLost(t *testing.T, o Options, n int) {
	t.Helper()
	tier := open(t, o)
	for i := range n {
		if err := tier.Write(ctx, tokens(i), content(i, 7, 3000+i), false); err != nil {
			t.Fatal(err)
		}
		write(t, tier, i, 1, 2000, false)
		switch i % 3 {
		case 1:
			write(t, tier, i, 2, 2000, false)
		case 2:
			if _, err := tier.Delete(ctx, keyAddr(i)); err != nil {
				t.Fatal(err)
			}
		}
	}
	mustClose(t, tier)
}

// neverOld checks that keys hold the last that was written or nothing, and tokens what they must or
// nothing.
func neverOld(t *testing.T, tier *Tier, n int) (keys, blocks int) {
	t.Helper()
	dst := make([]byte, 8192)
	for i := range n {
		info, err := tier.Read(ctx, keyAddr(i), dst)
		switch want := [...]uint64{1, 2, 0}[i%3]; {
		case errors.Is(err, ErrMiss) || errors.Is(err, ErrCorrupt):
		case err != nil:
			t.Fatal(err)
		case want == 0 || !bytes.Equal(dst[:info.Length], content(i, want, 2000)):
			t.Fatalf("key %d holds what was deleted or replaced", i)
		default:
			keys++
		}
		info, err = tier.Read(ctx, tokens(i).Addr, dst)
		switch {
		case errors.Is(err, ErrMiss) || errors.Is(err, ErrCorrupt):
		case err != nil || !bytes.Equal(dst[:info.Length], content(i, 7, 3000+i)) || info.Namespace != tokenSpace ||
			info.Parent != tokens(i).Parent:
			t.Fatal(info, err)
		default:
			blocks++
		}
	}
	return keys, blocks
}

// TestRowsGone opens a directory whose rows are gone: blocks of tokens are there, those of keys are
// not.
func TestRowsGone(t *testing.T) {
	eachKind(t, func(t *testing.T, o Options) {
		const n = 300
		rowsLost(t, o, n)
		if err := os.RemoveAll(filepath.Join(o.Dir, rowsDir)); err != nil {
			t.Fatal(err)
		}
		for round := range 3 {
			tier := open(t, o)
			<-tier.Ready()
			keys, blocks := neverOld(t, tier, n)
			s := tier.Stats()
			if keys != 0 || blocks != n || round == 0 && (s.Rebuilt != n || s.Unproven != n+n/3) ||
				round > 0 && s.Rebuilt != 0 || s.Corrupt > 0 {
				t.Fatalf("%d keys, %d blocks: %+v", keys, blocks, s)
			}
			write(t, tier, n+round, 1, 500, true)
			for i := range round + 1 {
				holds(t, tier, n+i, 1, 500)
			}
			mustClose(t, tier)
		}
	})
}

// TestRowFlips flips bits in the files of the rows, of each kind.
func TestRowFlips(t *testing.T) {
	seed := seedOf(t)
	rng := rand.New(rand.NewPCG(seed, 3))
	const n = 120
	rebuilt, kept := 0, 0
	base := small(t.TempDir())
	base.Logger = quiet
	rowsLost(t, base, n)
	for round := range rounds(12, 600) {
		o := base
		o.Dir = filepath.Join(t.TempDir(), "d")
		if err := os.CopyFS(o.Dir, os.DirFS(base.Dir)); err != nil {
			t.Fatal(err)
		}
		part := [...]string{".sst", ".log", "MANIFEST", "OPTIONS", "marker", ""}[round%6]
		files := rowFiles(t, o.Dir, part)
		if len(files) > 0 {
			flipFile(t, rng, files[rng.IntN(len(files))], 1+rng.IntN(3))
		}
		if _, err := Verify(ctx, VerifyOptions{Dir: o.Dir}); err != nil {
			t.Fatal(part, err)
		}
		var blocks int
		for range 2 {
			tier := open(t, o)
			neverOld(t, tier, n)
			<-tier.Ready()
			_, blocks = neverOld(t, tier, n)
			rebuilt += int(tier.Stats().Rebuilt)
			write(t, tier, n, 1, 500, true)
			holds(t, tier, n, 1, 500)
			mustClose(t, tier)
		}
		if blocks != n {
			t.Fatalf("%s: %d of %d blocks after two starts", part, blocks, n)
		}
		kept += blocks
	}
	if t.Logf("%d blocks there, %d rebuilt", kept, rebuilt); rebuilt == 0 {
		t.Error("nothing was rebuilt")
	}
}
