package fleet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/purge"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/kvcached/wire"
)

// TestDoubts checks that a host stays left out, and that a restarted host is asked again.
func TestDoubts(t *testing.T) {
	a := start(t, "a", Options{})
	one := Member{ID: "b", Instance: "1", Address: "127.0.0.1:1", Lane: transport.TLS}
	a.SetMembers([]Member{one})
	eventually(t, "it is left out", func() bool {
		a.suspect(a.healthOf(&one), true)
		return a.doubts.about("b")
	})
	a.SetMembers([]Member{one})
	if !a.doubts.about("b") {
		t.Error("it is not left out any more")
	}
	two := one
	two.Instance = "2"
	a.doubts.retain(newRoster("a", []Member{two}))
	if a.doubts.about("b") {
		t.Error("it has started anew, and is left out")
	}
}

// counting is a log handler that counts warnings.
type counting struct {
	slog.Handler
	warnings *atomic.Int64
}

func (c counting) Handle(_ context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn {
		c.warnings.Add(1)
	}
	return nil
}

func (c counting) Enabled(context.Context, slog.Level) bool { return true }

// path is a route to a host that can be blocked. A blocked path accepts connections and forwards
// nothing.
type path struct {
	net.Listener
	to       string
	taken    atomic.Int64
	mu       sync.Mutex
	blocked  chan struct{} // nil: the path is not blocked
	wg       sync.WaitGroup
	conns    []net.Conn
	finished bool
}

func newPath(t *testing.T, to string) *path {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &path{Listener: l, to: to}
	p.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.taken.Add(1)
			p.wg.Go(func() { p.carry(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		p.open()
		p.mu.Lock()
		p.finished = true
		for _, c := range p.conns {
			c.Close()
		}
		p.mu.Unlock()
		p.wg.Wait()
	})
	return p
}

func (p *path) block() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.blocked = make(chan struct{})
}

func (p *path) open() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.blocked != nil {
		close(p.blocked)
		p.blocked = nil
	}
}

func (p *path) carry(c net.Conn) {
	d, err := net.Dial("tcp", p.to)
	if err != nil {
		c.Close()
		return
	}
	p.mu.Lock()
	p.conns = append(p.conns, c, d)
	if p.finished {
		c.Close()
		d.Close()
	}
	p.mu.Unlock()
	p.wg.Go(func() { p.copy(c, d) })
	p.copy(d, c)
}

func (p *path) copy(to, from net.Conn) {
	defer to.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		p.mu.Lock()
		blocked := p.blocked
		p.mu.Unlock()
		if blocked != nil {
			<-blocked
		}
		if _, failed := to.Write(buf[:n]); err != nil || failed != nil {
			return
		}
	}
}

// TestAHostThatDoesNotAnswer checks that a silent host is left out once for all readers and
// writers. A silent host gets probes only, and no caller waits for the host. Keys that are set
// meanwhile reach the host once it answers.
func TestAHostThatDoesNotAnswer(t *testing.T) {
	var warnings atomic.Int64
	a := start(t, "a", Options{AnswerTimeout: 200 * time.Millisecond,
		Logger: slog.New(counting{slog.DiscardHandler, &warnings})})
	b := start(t, "b", Options{})
	p := newPath(t, b.member.Address)
	b.SetMembers([]Member{a.member, b.member})
	b.member.Address = p.Addr().String()
	a.SetMembers([]Member{a.member, b.member})
	for i := range 20 {
		k := key(fmt.Sprint(i))
		a.put(keys, k, "old")
		eventually(t, "b has pulled it", func() bool { return b.text(k) == "old" })
	}
	// on a busy machine b may have seemed silent already
	eventually(t, "b is asked", func() bool { return a.Stats().LeftOut == 0 })
	times := a.Stats().TimesLeftOut
	p.block()
	eventually(t, "b is left out", func() bool {
		a.put(keys, key("first"), "x")
		return a.doubts.about("b")
	})
	before, taken := a.Stats(), p.taken.Load()
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			for i := range 100 {
				a.put(keys, key(fmt.Sprint(i%20)), "new")
				a.text(addr(100*w + i))
			}
		})
	}
	wg.Wait()
	if there, err := a.Delete(t.Context(), key("19")); err != nil || !there {
		t.Error("DEL:", there, err)
	}
	if err := a.Pull(t.Context(), addr(5000), "b"); !errors.Is(err, errDoubted) || !errors.Is(err, store.ErrMiss) {
		t.Error(err)
	}
	after := a.Stats()
	if n, probes := p.taken.Load()-taken, after.Probes-before.Probes; n > int64(probes)+1 {
		t.Errorf("%d connections and %d probes", n, probes)
	}
	if after.TimesLeftOut != times+1 || after.LeftOut != 1 {
		t.Errorf("%+v, left out %d times before", after, times)
	}
	eventually(t, "all notices were given up", func() bool { return a.Stats().Notices == 0 })
	if a.Stats().NoticesLost == 0 {
		t.Error("no notice is lost")
	}
	if n := warnings.Load(); n > 20 {
		t.Errorf("%d warnings", n)
	}
	if b.text(key("1")) != "old" {
		t.Error("b cannot know")
	}
	p.open()
	eventually(t, "b is asked again", func() bool { return a.Stats().LeftOut == 0 })
	for i := range 20 {
		a.put(keys, key(fmt.Sprint(i)), "newer")
		eventually(t, "b has the value", func() bool { return b.text(key(fmt.Sprint(i))) == "newer" })
	}
}

// TestAPurgeOfAHungHost purges a fleet with a silent host. The host is left out, the request to it
// ends, and this host is purged.
func TestAPurgeOfAHungHost(t *testing.T) {
	all := &lists{}
	a := start(t, "a", Options{AnswerTimeout: 200 * time.Millisecond, Register: &shelf{lists: all}})
	b := start(t, "b", Options{Register: &shelf{lists: all}})
	p := newPath(t, b.member.Address)
	b.SetMembers([]Member{a.member, b.member})
	b.member.Address = p.Addr().String()
	a.SetMembers([]Member{a.member, b.member})
	a.put(keys, key("k"), "x")
	eventually(t, "b is reached", func() bool { return b.text(key("k")) == "x" })
	p.block()
	done, err := a.PurgeAll(t.Context(), purge.Selector{Everything: true})
	if err != nil || len(done) != 2 || done[0].Err != nil || done[0].Blocks != 1 || done[1].Err == nil {
		t.Error(done, err)
	}
	if _, err := a.Store.Stat(t.Context(), key("k")); !errors.Is(err, store.ErrMiss) {
		t.Error("this host was not purged:", err)
	}
	if s := a.Stats(); s.LeftOut != 1 {
		t.Errorf("a hung host is not left out: %+v", s)
	}
}

// TestAHostThatIsGone checks that a host that refuses connections is left out at the first try.
func TestAHostThatIsGone(t *testing.T) {
	a, b := start(t, "a", Options{}), start(t, "b", Options{})
	meet(a, b)
	b.put(blocks, addr(1), "x")
	eventually(t, "b is reached", func() bool { return a.text(addr(1)) == "x" })
	b.stop()
	for i := 0; !a.doubts.about("b"); i++ {
		if i == 100 {
			t.Fatal("b is asked on and on")
		}
		a.text(addr(10 + i))
	}
	if err := a.Pull(t.Context(), addr(50), "b"); !errors.Is(err, errDoubted) {
		t.Error(err)
	}
	if a.text(addr(1)) != "x" {
		t.Error("what was pulled is gone")
	}
}

// TestASlowQuestion checks that a host which answers probes may use the full time limit of a
// request.
func TestASlowQuestion(t *testing.T) {
	a, b := start(t, "a", Options{AnswerTimeout: 2 * time.Second}), start(t, "b", Options{})
	meet(a, b)
	b.put(blocks, addr(1), "x")
	eventually(t, "b is reached", func() bool { return a.text(addr(1)) == "x" })
	m := a.roster.Load().member("b")
	probes := a.Stats().Probes
	err := a.watch(t.Context(), time.Minute, a.healthOf(m), func(ctx context.Context, _ *health) error {
		eventually(t, "b is probed twice", func() bool { return a.Stats().Probes >= probes+2 })
		return ctx.Err()
	})
	if err != nil || a.doubts.about("b") {
		t.Error(err)
	}
	eventually(t, "the prober ends", func() bool {
		a.doubts.mu.Lock()
		defer a.doubts.mu.Unlock()
		return !a.doubts.hosts["b"].probing || a.doubts.hosts["b"].asking.Load() > 0
	})
}

// TestManyLargePulls pulls many blocks from a host that serves a few at a time. None of the pulls
// is a miss.
func TestManyLargePulls(t *testing.T) {
	const n, size = 40, 1 << 20
	for _, bound := range []int64{0, 4 * size} {
		a := startWith(t, "a", Options{}, func(o *transport.ServerOptions) {
			o.MaxInFlight = 4 * size * transport.HostShare
		})
		b := start(t, "b", Options{PeerBytes: bound, PullTimeout: time.Minute})
		meet(a, b)
		payload := make([]byte, size)
		for i := range n {
			a.put(blocks, addr(i), string(payload))
		}
		for i := range n {
			eventually(t, "it is known", func() bool {
				info, err := b.Stat(t.Context(), addr(i))
				return err == nil && info.Tiers == store.Remote
			})
		}
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				if got := b.text(addr(i)); len(got) != size {
					t.Errorf("block %d: %d bytes", i, len(got))
				}
			})
		}
		wg.Wait()
		if s := b.Stats(); s.Pulled != n || s.PullsBusy+s.PullMisses+s.PullsFailed != 0 {
			t.Errorf("%+v", s)
		} else {
			t.Logf("bound %d: asked again %d times", bound, s.PullRetries)
		}
		a.stop()
		b.stop()
	}
}

// busy refuses every Get as busy.
type busy struct{ transport.Handler }

func (busy) Get(context.Context, block.Addr) (transport.Block, error) { return nil, wire.Busy }

// TestBusyForTooLong checks that a Get from a busy host is a miss after the timeout, and is counted
// in PullsBusy. The time limit doubles until the host has been asked twice, because the machine may
// be slow.
func TestBusyForTooLong(t *testing.T) {
	a := startWith(t, "a", Options{}, func(o *transport.ServerOptions) { o.Handler = busy{o.Handler} })
	a.put(blocks, addr(1), "x")
	for limit := 300 * time.Millisecond; ; limit *= 2 {
		b := start(t, "b", Options{PullTimeout: limit})
		meet(a, b)
		eventually(t, "it is known", func() bool {
			info, err := b.Stat(t.Context(), addr(1))
			return err == nil && info.Tiers == store.Remote
		})
		if got := b.text(addr(1)); got != "" {
			t.Error(got)
		}
		s := b.Stats()
		b.stop()
		if s.PullRetries == 0 && limit < time.Minute {
			continue
		}
		if s.PullsBusy != 1 || s.PullRetries == 0 || s.PullErrors > 1 { // 1 if the time limit ended during a request
			t.Errorf("%+v", s)
		}
		return
	}
}

// about tells whether a host is left out.
func (d *doubts) about(id string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.hosts[id]
	return h != nil && h.life == nil
}
