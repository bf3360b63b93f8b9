package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/ram"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	ctx   = context.Background()
	llama = block.Namespace{Model: "llama", Revision: "1", DType: "bf16", Layout: "vllm.NHD", Tokens: 16, TP: 1,
		PP: 1}.String()
	space = block.Namespace{Space: "resp.0"}.String()
)

func open(t testing.TB, o Options) *Store {
	t.Helper()
	if o.RAM == 0 {
		o.RAM = 4 << 20
	}
	o.Logger = slog.New(slog.DiscardHandler)
	s, err := Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if held := s.tier.Usage().Held; held != 0 {
			t.Errorf("%d bytes are still held", held)
		}
	})
	return s
}

// item is block n of a model; it is the child of block n-1 if parent is set.
func item(n int, parent bool) Item {
	it := Item{Addr: block.Addr{Model: block.IDOf(llama)}, Namespace: llama}
	binary.BigEndian.PutUint64(it.Addr.Digest[:], uint64(n))
	if parent && n > 1 {
		binary.BigEndian.PutUint64(it.Parent[:], uint64(n-1))
	}
	return it
}

func keyed(key string) Item {
	return Item{Addr: block.OfKey(block.IDOf(space), []byte(key)), Namespace: space, Key: []byte(key)}
}

func put(t testing.TB, s *Store, it Item, payload []byte) Info {
	t.Helper()
	info, err := s.Put(ctx, it, payload, false)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func fill(n int, c byte) []byte { return bytes.Repeat([]byte{c}, n) }

func has(s *Store, a block.Addr) bool {
	_, err := s.Stat(ctx, a)
	return err == nil
}

func TestRoundTrip(t *testing.T) {
	s := open(t, Options{})
	for _, n := range []int{0, 1, 4095, 4096, 4097, 100_000, 300_001, 1 << 20} {
		it := keyed(fmt.Sprint("key ", n))
		it.Attr, it.Parent = []byte("text/plain"), block.Digest{7}
		payload := fill(n, byte(n))
		if info := put(t, s, it, payload); info.Length != n || info.CRC != block.Sum(payload) || info.Tiers != RAM {
			t.Errorf("put %d: %+v", n, info)
		}
		b, err := s.Get(ctx, it.Addr)
		if err != nil {
			t.Fatal(err)
		}
		info := b.Info()
		if !bytes.Equal(b.Bytes(), payload) || string(info.Item.Key) != string(it.Key) ||
			string(info.Item.Attr) != "text/plain" ||
			info.Item.Namespace != space || info.Item.Addr != it.Addr || info.Item.Parent != it.Parent ||
			info.Uses != 1 {
			t.Errorf("get %d: %+v", n, info)
		}
		if b.Offset()%ram.Granule != 0 || cap(b.Bytes()) != n {
			t.Errorf("offset %d, capacity %d of %d", b.Offset(), cap(b.Bytes()), n)
		}
		tail := s.Arena().Slice(b.Offset(), int(ram.Granules(ram.PieceSize(n, 50)))*ram.Granule)[ram.PieceSize(n,
			len(it.Key)+len(it.Attr)):]
		if !bytes.Equal(tail, make([]byte, len(tail))) {
			t.Error("padding is not zero")
		}
		b.Release()
		b.Release()
	}
	if st := s.Stats(); st.ReleasedTwice != 8 || st.Hits != 8 || st.Puts != 8 {
		t.Errorf("%+v", st)
	}
	if _, err := s.Get(ctx, keyed("none").Addr); !errors.Is(err, ErrMiss) {
		t.Error(err)
	}
}

// TestDescriptor maps the arena as another program would.
func TestDescriptor(t *testing.T) {
	s := open(t, Options{})
	fd := int(s.Arena().File().Fd())
	if _, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
		t.Error("a client can map the arena for writing")
	}
	if _, err := unix.Pwrite(fd, []byte("x"), 0); err == nil {
		t.Error("a client can write to the arena")
	}
	for _, size := range []int64{4096, 64 << 20} {
		if err := unix.Ftruncate(fd, size); err == nil {
			t.Error("a client can resize the arena to", size)
		}
	}
	memory, err := unix.Mmap(fd, 0, int(s.Arena().Size()), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(memory)
	if err := unix.Mprotect(memory, unix.PROT_READ|unix.PROT_WRITE); err == nil {
		t.Error("a client can make its mapping writable")
	}
	put(t, s, item(1, false), fill(10_000, 'a'))
	b, err := s.Get(ctx, item(1, false).Addr)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	if !bytes.Equal(memory[b.Offset():][:10_000], fill(10_000, 'a')) {
		t.Error("a client sees other bytes")
	}
}

func TestRefused(t *testing.T) {
	s := open(t, Options{Quota: func(ns string) (string, int64) {
		if ns == space {
			return "tenant", 1 << 20
		}
		return "", 0
	}})
	long := item(1, false)
	long.Key = fill(block.MaxKey+1, 'k')
	wordy := item(1, false)
	wordy.Attr = fill(block.MaxAttr+1, 'k')
	other := item(1, false)
	other.Namespace = space
	unknown := item(1, false)
	unknown.Namespace = ""
	for _, c := range []struct {
		it     Item
		length int
		want   error
	}{
		{item(1, false), -1, ErrTooLarge}, {item(1, false), block.MaxPayload + 1, ErrTooLarge}, {item(1, false), 5 << 20, ErrTooLarge},
		{long, 1, ErrTooLarge}, {wordy, 1, ErrTooLarge}, {other, 1, block.ErrNamespace}, {unknown, 1, block.ErrNamespace},
		{keyed("k"), 2 << 20, ErrQuota},
	} {
		if _, err := s.Create(ctx, c.it, c.length); !errors.Is(err, c.want) {
			t.Errorf("%d bytes: %v, not %v", c.length, err, c.want)
		}
	}
	d, err := s.Create(ctx, item(1, false), 3<<20)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(ctx, item(2, false), 2<<20); !errors.Is(err, ErrFull) {
		t.Error(err)
	}
	if _, err := d.Commit(ctx, CommitOptions{CheckCRC: true, CRC: 1}); !errors.Is(err, ErrCorrupt) {
		t.Error(err)
	}
	d.Abort()
	if has(s, item(1, false).Addr) {
		t.Error("a corrupt draft is visible")
	}
	if _, err := s.Put(ctx, item(1, false), nil, true); !errors.Is(err, ErrNotDurable) {
		t.Error(err)
	}
	if u := s.Stats().RAM; u.Free != u.Size || u.Largest != u.Size || u.Namespaces != 0 {
		t.Errorf("%+v", u)
	}
}

func TestQuotaEvictsItsOwn(t *testing.T) {
	s := open(t, Options{Quota: func(ns string) (string, int64) {
		if ns == space {
			return "tenant", 1 << 20
		}
		return "", 0
	}})
	put(t, s, item(1, false), fill(1<<20, 'a'))
	for i := range 10 {
		put(t, s, keyed(fmt.Sprint(i)), fill(250<<10, 'b'))
	}
	if !has(s, item(1, false).Addr) {
		t.Error("another's block was evicted")
	}
	for i := range 10 {
		if has(s, keyed(fmt.Sprint(i)).Addr) != (i >= 6) {
			t.Error("block", i)
		}
	}
	for _, u := range s.Namespaces() {
		if u.Namespace == space && (u.Blocks != 4 || u.Bytes > 1<<20) {
			t.Errorf("%+v", u)
		}
	}
}

func TestReplaceAndDelete(t *testing.T) {
	s := open(t, Options{})
	it := item(1, false)
	put(t, s, it, fill(10_000, 'a'))
	old, err := s.Get(ctx, it.Addr)
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, it, fill(20_000, 'b'))
	d, err := s.Create(ctx, it, 5)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := d.Commit(ctx, CommitOptions{IfAbsent: true}); !errors.Is(err, ErrExists) || info.Length != 20_000 {
		t.Error(info, err)
	}
	if there, err := s.Delete(ctx, it.Addr); !there || err != nil {
		t.Error(there, err)
	}
	if there, err := s.Delete(ctx, it.Addr); there || err != nil {
		t.Error(there, err)
	}
	put(t, s, item(2, false), fill(100_000, 'c'))
	if !bytes.Equal(old.Bytes(), fill(10_000, 'a')) {
		t.Error("a reader's bytes changed")
	}
	old.Release()
}

func TestExpiry(t *testing.T) {
	now := int64(1000)
	var mu sync.Mutex
	s := open(t, Options{Now: func() int64 { mu.Lock(); defer mu.Unlock(); return now }})
	at := func(ms int64) { mu.Lock(); now = ms; mu.Unlock() }
	it := item(1, false)
	it.Expires = 2000
	put(t, s, it, nil)
	put(t, s, item(2, false), nil)
	if there, err := s.SetExpiry(ctx, item(2, false).Addr, 3000); !there || err != nil {
		t.Error(there, err)
	}
	at(2000)
	if has(s, it.Addr) || !has(s, item(2, false).Addr) {
		t.Error("expiry")
	}
	if there, err := s.SetExpiry(ctx, it.Addr, 0); there || err != nil {
		t.Error(there, err)
	}
	at(3000)
	s.sweepSome()
	if u := s.Stats(); u.RAM.Blocks != 0 || u.Expired != 2 || u.RAM.Namespaces != 0 {
		t.Errorf("%+v", u)
	}
}

func TestPins(t *testing.T) {
	now := int64(0)
	s := open(t, Options{Now: func() int64 { return now }, Pins: 2})
	for i := range 4 {
		put(t, s, item(i+1, false), fill(1<<20, byte(i)))
	}
	if err := errors.Join(s.Pin(t.Context(), item(1, false).Addr, "a", 10), s.Pin(t.Context(), item(2, false).Addr, "b",
		20)); err != nil {
		t.Fatal(err)
	}
	if err := s.Pin(t.Context(), item(3, false).Addr, "a", 10); !errors.Is(err, ram.ErrPins) {
		t.Error(err)
	}
	if err := s.Pin(t.Context(), item(9, false).Addr, "a", 10); !errors.Is(err, ErrMiss) {
		t.Error(err)
	}
	put(t, s, item(5, false), fill(2<<20, 'x'))
	if _, err := s.Create(ctx, item(6, false), 3<<20); !errors.Is(err, ErrFull) {
		t.Error(err)
	}
	if !has(s, item(1, false).Addr) || !has(s, item(2, false).Addr) || has(s, item(3, false).Addr) {
		t.Error("pins do not hold")
	}
	s.Unpin(item(2, false).Addr, "a")
	s.Unpin(item(2, false).Addr, "b")
	now = 10
	put(t, s, item(6, false), fill(4<<20, 'x'))
	if u := s.Stats().RAM; u.Pinned != 0 || u.Pins != 0 {
		t.Errorf("%+v", u)
	}
}

// TestPinnedBytes checks that pins hold at most half of the arena, and a quarter for one owner.
// Pinned blocks that were replaced count as well.
func TestPinnedBytes(t *testing.T) {
	s := open(t, Options{RAM: 16 << 20})
	for i := range 12 {
		put(t, s, item(i, false), fill(1<<20, byte(i)))
	}
	var pinned int
	for i := range 12 {
		switch err := s.Pin(t.Context(), item(i, false).Addr, string(rune('a'+i/5)), 1<<60); {
		case err == nil:
			pinned++
		case !errors.Is(err, ram.ErrPins):
			t.Error(err)
		}
	}
	if u := s.Stats().RAM; pinned != 8 || u.Pinned != 8<<20 {
		t.Errorf("%d pins: %+v", pinned, u)
	}
	put(t, s, item(0, false), fill(4<<20, 'x'))
	if u := s.Stats().RAM; u.Pins != 7 || u.Pinned != 7<<20 {
		t.Errorf("a pinned block has grown: %+v", u)
	}
}

func TestScan(t *testing.T) {
	s := open(t, Options{RAM: 16 << 20})
	want := map[string]bool{}
	for i := range 500 {
		want[fmt.Sprint(i)] = true
		it := keyed(fmt.Sprint(i))
		it.Attr = []byte("attr")
		put(t, s, it, nil)
	}
	steps := 0
	for cursor := uint64(0); ; steps++ {
		next, err := s.Scan(ctx, cursor, func(info Info) bool {
			delete(want, string(info.Item.Key))
			if info.Item.Key[0] != 'n' && string(info.Item.Attr) != "attr" ||
				info.Item.Addr != keyed(string(info.Item.Key)).Addr {
				t.Errorf("%q", info.Item.Key)
			}
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
		if next == 0 {
			break
		}
		cursor = next
		put(t, s, keyed(fmt.Sprint("new ", steps)), nil)
	}
	if len(want) > 0 {
		t.Error("not seen:", want)
	}
	if n, err := s.Purge(ctx, func(ns string, _ []byte) bool { return ns == space }); n != 500+steps || err != nil {
		t.Error(n, err)
	}
}

func TestClosed(t *testing.T) {
	s, err := Open(ctx, Options{RAM: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, item(1, false), fill(10, 'a'))
	b, err := s.Get(ctx, item(1, false).Addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(s.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(b.Bytes(), fill(10, 'a')) {
		t.Error("bytes are gone")
	}
	b.Release()
	if _, err := s.Get(ctx, item(1, false).Addr); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
	if _, err := s.Put(ctx, item(1, false), nil, false); !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}
