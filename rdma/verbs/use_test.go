//go:build linux && cgo && rdma

package verbs

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/rdma"
)

// counting returns a function for take that counts completions.
func counting[T any](_ func([]T), n *int) func([]T) {
	return func(done []T) { *n += len(done) }
}

// TestChainSaysOnce: the card reports one completion for a chain, not one for each read.
func TestChainSaysOnce(t *testing.T) {
	const reads, size = 16, 4096
	d := opened(t)
	from, into := registeredIn(t, d, reads*size), registeredIn(t, d, reads*size)
	fill(from, 9)
	r, w := connected(t, d, d, rdma.PairOptions{})
	key := granted(t, w, from)[0].Key()
	var wanted []rdma.Read
	for at := 0; at < reads*size; at += size {
		wanted = append(wanted, rdma.Read{Into: into[at:][:size], From: key, Skip: uint64(at)})
	}
	parts, err := r.parts(nil, wanted)
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	done, err := r.q.reads(0, parts)
	said := len(done)
	for ctx := within(t); err == nil && (said == 0 || !bytes.Equal(into, from)); runtime.Gosched() {
		err = errors.Join(r.cq.all(counting(r.deliver, &said)), ctx.Err())
	}
	if err != nil || said != 1 {
		t.Errorf("%d completions of a chain of %d reads, %v", said, reads, err)
	}
}

// TestBatches: several goroutines do many reads of several windows, over two pairs of a device. The
// goroutines together ask for more reads than a pair may have in progress.
func TestBatches(t *testing.T) {
	kinds(t, func(t *testing.T, d *device) {
		const size, readers, rounds, batch = 4 << 20, 6, 4, 100
		from := registeredIn(t, d, size)
		fill(from, 6)
		type side struct {
			r    *pair
			keys []rdma.Key
		}
		var sides []side
		for range 2 {
			r, w := connected(t, d, d, rdma.PairOptions{MaxReads: 32})
			s := side{r: r}
			for _, window := range granted(t, w, from[:size/2], from[size/2:]) {
				s.keys = append(s.keys, window.Key())
			}
			sides = append(sides, s)
		}
		var wait sync.WaitGroup
		for n := range readers {
			into, want := registeredIn(t, d, size), mapped(t, size)
			wait.Go(func() {
				random := rand.New(rand.NewPCG(uint64(n), 0))
				for range rounds {
					s := sides[n%2]
					var reads []rdma.Read
					clear(want)
					clear(into)
					for at := 0; at < batch*8192; at += 8192 {
						part, skip, length := random.IntN(2), random.IntN(size/2-8192), random.IntN(8192)
						reads = append(reads, rdma.Read{Into: into[at : at+length], From: s.keys[part],
							Skip: uint64(skip)})
						copy(want[at:at+length], from[part*size/2+skip:])
					}
					if err := s.r.Read(context.Background(), reads); err != nil {
						t.Error(err)
						return
					}
					if !bytes.Equal(into, want) {
						t.Error("batch is not byte for byte what the windows have")
					}
				}
			})
		}
		wait.Wait()
	})
}

func TestReadAllocates(t *testing.T) {
	kinds(t, func(t *testing.T, d *device) {
		from, into := registeredIn(t, d, 1<<20), registeredIn(t, d, 1<<20)
		r, w := connected(t, d, d, rdma.PairOptions{})
		read := []rdma.Read{{Into: into[:64], From: granted(t, w, from)[0].Key()}}
		ctx := within(t)
		if n := testing.AllocsPerRun(1000, func() {
			if err := r.Read(ctx, read); err != nil {
				t.Fatal(err)
			}
		}); n != 0 && !underASan { // under AddressSanitizer more variables are on the heap
			t.Errorf("a read allocates %v times", n)
		}
	})
}

func TestMisuse(t *testing.T) {
	kinds(t, func(t *testing.T, d *device) {
		mem := registeredIn(t, d, 1<<20)
		r, w := paired(t, d, rdma.PairOptions{}), paired(t, d, rdma.PairOptions{MaxWindows: 4})
		ctx := context.Background()
		if err := r.Read(ctx, []rdma.Read{{Into: mem[:64], From: rdma.Key{}}}); !errors.Is(err, ErrOrder) {
			t.Errorf("a read before Connect: %v", err)
		}
		if d.limit.Windows {
			if _, err := w.Grant(ctx, [][]byte{mem}); !errors.Is(err, ErrOrder) {
				t.Errorf("a grant before Connect: %v", err)
			}
		}
		for _, bad := range []rdma.Endpoint{{}, {MTU: 1000, MaxReads: 1}, {MTU: 1024}, {QPN: 1 << 24, MTU: 1024,
			MaxReads: 1}} {
			if r.Connect(bad) == nil {
				t.Errorf("connected to %+v", bad)
			}
		}
		connect(t, r, w)
		if err := r.Connect(w.Local()); !errors.Is(err, ErrOrder) {
			t.Errorf("connected twice: %v", err)
		}
		if err := r.Read(ctx, []rdma.Read{{Into: mapped(t, 4096)}}); !errors.Is(err, rdma.ErrNotRegistered) {
			t.Errorf("a read into memory that is not registered: %v", err)
		}
		if _, err := w.Grant(ctx, [][]byte{mem, mapped(t, 4096)}); !errors.Is(err, rdma.ErrNotRegistered) {
			t.Errorf("a grant of memory that is not registered: %v", err)
		}
		if _, err := w.Grant(ctx, [][]byte{mem, mem, mem, mem, mem}); !errors.Is(err, rdma.ErrFull) {
			t.Errorf("five windows of four: %v", err)
		}
		four := granted(t, w, mem, mem, mem, mem)
		if _, err := w.Grant(ctx, [][]byte{mem}); !errors.Is(err, rdma.ErrFull) {
			t.Errorf("a fifth window of four: %v", err)
		}
		if err := w.Revoke(ctx, four); err != nil {
			t.Error(err)
		}
		if err := r.Read(ctx, []rdma.Read{{Into: mem[:64], From: granted(t, w, mem)[0].Key()}, {}}); err != nil {
			t.Errorf("after all that: %v", err)
		}
		for name, mem := range map[string][]byte{"none": nil, "heap": make([]byte, 1<<20), "half a page": mem[8:]} {
			if d.Register(mem) == nil {
				t.Errorf("memory was registered: %s", name)
			}
		}
	})
}

func TestRevokeOfABrokenPair(t *testing.T) {
	d := opened(t)
	mem := registeredIn(t, d, 1<<20)
	_, w := connected(t, d, d, rdma.PairOptions{})
	windows := granted(t, w, mem)
	w.fail(rdma.ErrUnreachable)
	if err := w.Revoke(context.Background(), windows); !errors.Is(err, rdma.ErrUnreachable) {
		t.Errorf("revoked: %v", err)
	}
	if w.q.live {
		t.Error("the pair is not closed, and its windows may be open")
	}
}

func TestExponent(t *testing.T) {
	for _, c := range []struct {
		total time.Duration
		want  int
	}{{time.Nanosecond, 1}, {2 * time.Second, 16}, {time.Second, 15}, {1000 * time.Hour, 31}} {
		if got := exponent(c.total); got != c.want {
			t.Errorf("%v is 2^%d, want 2^%d", c.total, got, c.want)
		}
	}
}

func TestPreference(t *testing.T) {
	a := netip.MustParseAddr
	order := []netip.Addr{a("::"), a("fe80::1"), a("2001:db8::1"), a("192.0.2.1")}
	for i := 1; i < len(order); i++ {
		if preference(order[i-1], netip.Addr{}) >= preference(order[i], netip.Addr{}) {
			t.Errorf("%v does not come after %v", order[i-1], order[i])
		}
	}
	if preference(a("192.0.2.1"), a("192.0.2.2")) != 0 || preference(a("192.0.2.1"), a("::ffff:192.0.2.1")) == 0 {
		t.Error("an address that is wanted is the only one that will do")
	}
	d := opened(t)
	if _, err := d.card.roce(d.port, a("203.0.113.9")); err == nil {
		t.Error("an address that the card does not have was found")
	}
	if _, err := open(d.name, Options{Port: 9}); err == nil {
		t.Error("a port that the card does not have was opened")
	}
}

// TestReaderRegistersAtOnce: a pair with its own domain and the option Reads registers all regions
// when it is made. Without the option, the pair registers no region when it is made.
func TestReaderRegistersAtOnce(t *testing.T) {
	d := opened(t)
	d.limit.Windows = false
	registeredIn(t, d, 1<<20)
	for reads, want := range map[bool]int{true: 1, false: 0} {
		p, err := d.pair(rdma.PairOptions{Reads: reads})
		if err != nil {
			t.Fatal(err)
		}
		if n := len(p.own.of); n != want {
			t.Errorf("reads %v: %d regions", reads, n)
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}
