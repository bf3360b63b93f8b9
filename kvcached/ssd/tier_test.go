package ssd

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/kv/block"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		child(dir)
		return
	}
	if dir := os.Getenv(fillDir); dir != "" {
		fillChild(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

var (
	ctx   = context.Background()
	space = block.Namespace{Space: "resp.0"}.String()
)

// keyAddr returns the address of test key i.
func keyAddr(i int) block.Addr {
	return block.OfKey(block.IDOf(space), binary.AppendUvarint(nil, uint64(i)))
}

func record(i int) Record {
	return Record{Addr: keyAddr(i), Namespace: space, Key: fmt.Appendf(nil, "key %d", i), Attr: []byte("attr"),
		Parent: block.Digest{byte(i)}}
}

// content returns version v of block i, which differs from every other one.
func content(i int, v uint64, size int) []byte {
	b := make([]byte, size)
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], uint64(i))
	binary.LittleEndian.PutUint64(seed[8:], v)
	_, _ = rand.NewChaCha8(seed).Read(b)
	return b
}

func open(t testing.TB, o Options) *Tier {
	t.Helper()
	tier, err := Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	return tier
}

func mustClose(t testing.TB, tier *Tier) {
	t.Helper()
	if err := tier.Close(); err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, tier *Tier, i int, v uint64, size int, durable bool) {
	t.Helper()
	if err := tier.Write(ctx, record(i), content(i, v, size), durable); err != nil {
		t.Fatal(err)
	}
}

// holds checks that the tier has version v of block i.
func holds(t testing.TB, tier *Tier, i int, v uint64, size int) {
	t.Helper()
	dst := alignedBytes(roundUp(size))[:size]
	info, err := tier.Read(ctx, keyAddr(i), dst)
	if err != nil {
		t.Fatalf("block %d: %v", i, err)
	}
	if !bytes.Equal(dst, content(i, v, size)) {
		t.Fatalf("block %d holds other bytes than version %d", i, v)
	}
	want := record(i)
	if info.Length != size || info.Namespace != space || !bytes.Equal(info.Key, want.Key) ||
		!bytes.Equal(info.Attr, want.Attr) || info.Parent != want.Parent ||
		info.CRC != block.Sum(dst) {
		t.Fatalf("block %d: %+v", i, info)
	}
}

func misses(t testing.TB, tier *Tier, i int) {
	t.Helper()
	if _, err := tier.Read(ctx, keyAddr(i), make([]byte, 64<<20)); !errors.Is(err, ErrMiss) {
		t.Fatalf("block %d: %v, want a miss", i, err)
	}
}

// sizes are of every kind: inline, a page, several pages, odd.
var sizes = []int{0, 1, 100, 3000, 4095, 4096, 4097, 10000, 65536, 200001}

func small(dir string) Options {
	return Options{Dir: dir, Cap: 64 << 20, segmentSize: 2 << 20, rowShare: 16 << 20}
}

func eachKind(t *testing.T, fn func(t *testing.T, o Options)) {
	t.Run("open", func(t *testing.T) { fn(t, small(t.TempDir())) })
	t.Run("sealed", func(t *testing.T) {
		o := small(t.TempDir())
		o.Key = bytes.Repeat([]byte{7}, 32)
		fn(t, o)
	})
}

func TestWriteReadReopen(t *testing.T) {
	eachKind(t, func(t *testing.T, o Options) {
		tier := open(t, o)
		for i, size := range sizes {
			write(t, tier, i, 1, size, i%2 == 0)
		}
		for i, size := range sizes {
			holds(t, tier, i, 1, size)
		}
		write(t, tier, 3, 2, 5000, false)
		if n, err := tier.Delete(ctx, keyAddr(4), keyAddr(4), keyAddr(999)); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		misses(t, tier, 4)
		check := func() {
			t.Helper()
			for i, size := range sizes {
				switch i {
				case 3:
					holds(t, tier, 3, 2, 5000)
				case 4:
					misses(t, tier, 4)
				default:
					holds(t, tier, i, 1, size)
				}
			}
		}
		check()
		for range 3 {
			mustClose(t, tier)
			tier = open(t, o)
			check()
			<-tier.Ready()
			check()
			if s := tier.Stats(); s.Records != int64(len(sizes)-1) || s.Corrupt+s.Torn+s.Lost != 0 {
				t.Fatalf("%+v", s)
			}
		}
		mustClose(t, tier)
		private(t, o.Dir)
	})
}

// private checks that others cannot read the directory.
func private(t *testing.T, dir string) {
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		info, _ := d.Info()
		if info.Mode().Perm()&0o077 != 0 && path != dir {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

func TestReadBuffers(t *testing.T) {
	tier := open(t, small(t.TempDir()))
	defer mustClose(t, tier)
	write(t, tier, 1, 1, 5000, false)
	if info, err := tier.Read(ctx, keyAddr(1), make([]byte, 4999)); !errors.Is(err, ErrShort) || info.Length != 5000 {
		t.Fatal(info, err)
	}
	odd := make([]byte, 9001)[1:5001]
	rest := odd[:9000][5000:]
	rest[0] = 9
	if _, err := tier.Read(ctx, keyAddr(1), odd); err != nil || !bytes.Equal(odd, content(1, 1, 5000)) || rest[0] != 9 {
		t.Fatal("read into memory that is not aligned:", err)
	}
	b := alignedBytes(8192)
	b[6000] = 9
	if _, err := tier.Read(ctx, keyAddr(1), b[:5000]); err != nil || b[6000] != 0 {
		t.Fatal("what follows the payload in its last page is not zero")
	}
}

func TestExpiry(t *testing.T) {
	o := small(t.TempDir())
	tier := open(t, o)
	now := tier.o.now().UnixMilli()
	write(t, tier, 1, 1, 100, false)
	write(t, tier, 2, 1, 100, false)
	for i, at := range map[int]int64{1: now - 1, 2: now + 1e7} {
		if ok, err := tier.SetExpiry(keyAddr(i), at); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	misses(t, tier, 1)
	if ok, err := tier.SetExpiry(keyAddr(1), 0); ok || err != nil {
		t.Fatal("a block that has expired was prolonged", err)
	}
	mustClose(t, tier)
	tier = open(t, o)
	defer mustClose(t, tier)
	misses(t, tier, 1)
	if info, ok := tier.Find(keyAddr(2)); !ok || info.Expires != now+1e7 {
		t.Fatal(info, ok)
	}
}

func TestScanAndPurge(t *testing.T) {
	tier := open(t, small(t.TempDir()))
	defer mustClose(t, tier)
	other := block.Namespace{Space: "s3.b", Tenant: "x"}
	for i := range 300 {
		write(t, tier, i, 1, 10, false)
		r := record(i)
		r.Namespace, r.Addr.Model = other.String(), other.ID()
		if err := tier.Write(ctx, r, content(i, 2, 10), false); err != nil {
			t.Fatal(err)
		}
	}
	count := func() (n int) {
		for cursor := uint64(0); ; {
			next, err := tier.Scan(ctx, cursor, func(i Info) bool {
				n++
				return i.Length == 10 && i.Namespace != "" && len(i.Key) > 0
			})
			if err != nil {
				t.Fatal(err)
			}
			if cursor = next; cursor == 0 {
				return n
			}
		}
	}
	if n := count(); n != 600 {
		t.Fatal(n, "blocks seen")
	}
	if n, err := removeAll(tier, func(ns string) bool { return ns == other.String() }); n != 300 || err != nil {
		t.Fatal(n, err)
	}
	if n := count(); n != 300 {
		t.Fatal(n, "blocks seen after the purge")
	}
}

func TestRefusals(t *testing.T) {
	o := small(t.TempDir())
	tier := open(t, o)
	if _, err := Open(ctx, o); !errors.Is(err, ErrLocked) ||
		!bytes.Contains([]byte(err.Error()), fmt.Append(nil, os.Getpid())) {
		t.Fatal("opened twice:", err)
	}
	r := record(1)
	r.Addr.Model[0]++
	if err := tier.Write(ctx, r, nil, false); !errors.Is(err, ErrInvalid) {
		t.Fatal("namespace of another:", err)
	}
	if err := tier.Write(ctx, record(1), make([]byte, 3<<20), false); !errors.Is(err, ErrTooLarge) {
		t.Fatal("larger than a segment:", err)
	}
	mustClose(t, tier)
	if err := tier.Write(ctx, record(1), nil, false); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	sealed := o
	sealed.Key = make([]byte, 32)
	if _, err := Open(ctx, sealed); !errors.Is(err, ErrKey) {
		t.Fatal("opened with a key:", err)
	}
	text := append(fmt.Appendf(nil, "cgn-kvcached ssd\nversion %d\nkey none\n", formatVersion+1),
		make([]byte, page)...)[:page]
	if err := os.WriteFile(filepath.Join(o.Dir, formatFile), text, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(ctx, o); !errors.Is(err, ErrFormat) {
		t.Fatal("a newer version was opened:", err)
	}
}

// TestVerify checks a sound directory and damaged ones.
func TestVerify(t *testing.T) {
	eachKind(t, func(t *testing.T, o Options) {
		tier := open(t, o)
		for i, size := range sizes {
			write(t, tier, i, 1, size, true)
		}
		if _, err := Verify(ctx, VerifyOptions{Dir: o.Dir, Key: o.Key}); !errors.Is(err, ErrLocked) {
			t.Fatal("verified while open:", err)
		}
		mustClose(t, tier)
		var done, total int64
		v, err := Verify(ctx, VerifyOptions{Dir: o.Dir, Key: o.Key, Progress: func(d, n int64) { done, total = d, n }})
		if err != nil || v.Records != len(sizes) || v.Live != len(sizes) || v.Bad+v.Lost+v.Unsealed != 0 ||
			done != total || v.Segments != 1 {
			t.Fatalf("%+v %v, %d of %d bytes", v, err, done, total)
		}
		name := segmentName(o.Dir, 1)
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 1
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		var found []Damage
		v, err = Verify(ctx, VerifyOptions{Dir: o.Dir, Key: o.Key, Bad: func(d Damage) { found = append(found, d) }})
		if err != nil || v.Lost != 1 || v.Bad != len(found) || len(found) == 0 || found[0].Page == 0 ||
			found[0].File != name {
			t.Fatalf("%+v %v %v", v, err, found)
		}
	})
}

// removeAll drops the blocks of some namespaces, and counts them.
func removeAll(tier *Tier, match func(namespace string) bool) (n int, err error) {
	for cursor := uint64(0); ; {
		var found []block.Addr
		next, err := tier.Scan(ctx, cursor, func(i Info) bool {
			if match(i.Namespace) {
				found = append(found, i.Addr)
			}
			return true
		})
		if n += len(found); err == nil {
			err = tier.Drop(found...)
		}
		if err != nil || next == 0 {
			tier.ForgetNames()
			return n, err
		}
		cursor = next
	}
}
