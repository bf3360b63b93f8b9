package events

import (
	"cmp"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/residency"
)

// publisher is an engine's two sockets. The test decides what the sockets send.
type publisher struct {
	t           testing.TB
	pub, router net.Listener
	wg          sync.WaitGroup

	mu      sync.Mutex
	kept    []message
	next    uint64
	subs    map[net.Conn]bool
	conns   map[net.Conn]bool
	arrived int
	asked   []uint64
	bare    bool // replies have no topic
}

type message struct {
	seq     uint64
	payload []byte
}

// publish starts a publisher. The addresses may have belonged to an earlier publisher.
func publish(t testing.TB, pub, router string) *publisher {
	t.Helper()
	p := &publisher{t: t, subs: map[net.Conn]bool{}, conns: map[net.Conn]bool{}}
	listen := func(at string, serve func(net.Conn)) net.Listener {
		l, err := net.Listen("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		p.wg.Go(func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				p.mu.Lock()
				p.conns[conn] = true
				p.mu.Unlock()
				p.wg.Go(func() {
					defer conn.Close()
					serve(conn)
				})
			}
		})
		return l
	}
	p.pub = listen(pub, p.serveSub)
	if router != "" {
		p.router = listen(router, p.serveReplay)
	}
	t.Cleanup(p.close)
	return p
}

func (p *publisher) serveSub(conn net.Conn) {
	s, err := open(conn, "PUB", "SUB")
	if err != nil {
		return
	}
	for {
		parts, err := s.message()
		p.mu.Lock()
		if err != nil {
			delete(p.subs, conn)
			p.mu.Unlock()
			return
		}
		if len(parts) == 1 && len(parts[0]) > 0 && parts[0][0] == 1 {
			p.subs[conn] = true
			p.arrived++
		}
		p.mu.Unlock()
	}
}

func (p *publisher) serveReplay(conn net.Conn) {
	s, err := open(conn, "ROUTER", "DEALER")
	if err != nil {
		return
	}
	for {
		parts, err := s.message()
		if err != nil || len(parts) != 2 || len(parts[0]) != 0 || len(parts[1]) != 8 {
			return
		}
		start := binary.BigEndian.Uint64(parts[1])
		p.mu.Lock()
		p.asked = append(p.asked, start)
		var out []byte
		for _, m := range append(p.kept[:len(p.kept):len(p.kept)], message{endOfReplay, nil}) {
			if m.seq < start {
				continue
			}
			out = appendFrame(out, flagMore, nil)
			if !p.bare {
				out = appendFrame(out, flagMore, nil)
			}
			out = appendFrame(appendFrame(out, flagMore, binary.BigEndian.AppendUint64(nil, m.seq)), 0, m.payload)
		}
		p.mu.Unlock()
		if _, err := conn.Write(out); err != nil {
			return
		}
	}
}

// keep puts a batch into the replay only, as if it had been lost on the way.
func (p *publisher) keep(payload []byte) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	seq := p.next
	p.next++
	p.kept = append(p.kept, message{seq, payload})
	return seq
}

// send publishes any message.
func (p *publisher) send(seq uint64, payload []byte) {
	b := appendFrame(nil, flagMore, []byte("kv"))
	p.raw(appendFrame(appendFrame(b, flagMore, binary.BigEndian.AppendUint64(nil, seq)), 0, payload))
}

func (p *publisher) raw(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.subs {
		_, _ = conn.Write(b)
	}
}

// say keeps a batch for replays and also publishes it.
func (p *publisher) say(payload []byte) { p.send(p.keep(payload), payload) }

// forget drops the oldest batches of the replay.
func (p *publisher) forget(batches int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kept = p.kept[batches:]
}

func (p *publisher) close() {
	_ = p.pub.Close()
	if p.router != nil {
		_ = p.router.Close()
	}
	p.cut()
	p.wg.Wait()
}

// cut breaks all connections.
func (p *publisher) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		_ = conn.Close()
	}
	clear(p.subs)
}

func (p *publisher) subscribers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.subs)
}

// sink is an index that can fail or block on demand.
type sink struct {
	*residency.Index
	mu    sync.Mutex
	fail  error
	gate  chan struct{}
	fresh int
	gone  int
}

var errAway = errors.New("away")

func (s *sink) Report(r *residency.Report) error {
	s.mu.Lock()
	gate, fail := s.gate, s.fail
	if r.Fresh {
		s.fresh++
	}
	if r.Gone {
		s.gone++
	}
	s.mu.Unlock()
	if gate != nil {
		<-gate
	}
	if fail != nil {
		return fail
	}
	return s.Index.Report(r)
}

func (s *sink) set(fail error, gate chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail, s.gate = fail, gate
}

// followed is a follower with its publisher.
type followed struct {
	*Follower
	t    testing.TB
	sink *sink
	stop func()
}

func follow(t testing.TB, o Options) *followed {
	t.Helper()
	s := &sink{Index: residency.New(residency.Options{})}
	o.Engine, o.Sink, o.Logger = "e", s, cmp.Or(o.Logger, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if o.Model == nil {
		o.Model = func() string { return "m" }
	}
	f := &followed{Follower: New(o), t: t, sink: s}
	f.stale = time.Millisecond
	ctx, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		f.Run(until(ctx))
	}()
	f.stop = sync.OnceFunc(func() {
		close(ctx)
		<-done
	})
	t.Cleanup(f.stop)
	return f
}

func (p *publisher) endpoints() (o Options) {
	o.Endpoint = Endpoint{Network: "tcp", Addr: p.pub.Addr().String()}
	if p.router != nil {
		o.Replay = Endpoint{Network: "tcp", Addr: p.router.Addr().String()}
	}
	return o
}

const patience = time.Minute // limit of a wait for an event

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline, tick := time.After(patience), time.Tick(2*time.Millisecond); !ok(); {
		select {
		case <-tick:
		case <-deadline:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// awaits waits until the sink knows exactly the first n blocks of a chain in the engine's memory;
// -1: until nothing is known.
func (f *followed) awaits(what string, tokens []uint32, n int) {
	f.t.Helper()
	f.awaitsOf("m", what, tokens, n)
}

// awaitsOf is awaits for a model other than m.
func (f *followed) awaitsOf(model, what string, tokens []uint32, n int) {
	f.t.Helper()
	all := chainOf(model, "", "", tokens)
	eventually(f.t, what, func() bool {
		out := make([]residency.Tiers, len(all))
		f.sink.Held(spaceOf(model).ID(), block.LayerAll, all, out)
		got := 0
		for _, tiers := range out {
			if tiers == residency.Device {
				got++
			}
		}
		if n < 0 {
			return f.sink.Index.Stats().Engines == 0
		}
		return f.sink.Index.Stats().Engines == 1 && got == n && (n == 0 || out[n-1] != 0)
	})
}

func spaceOf(model string) block.Namespace {
	n, err := block.ParseNamespace(namespaceOf(block.Namespace{}, model))
	if err != nil {
		panic(err)
	}
	return n
}
