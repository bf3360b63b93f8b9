package transport

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
	"github.com/cognitora/dataplane/rdma"
)

func TestReadFromMemory(t *testing.T) {
	l := newGrantSite(t, grantSiteOptions{})
	p := l.grantee(Trusted)
	l.ready(p)
	const blocks = 64
	for i := range blocks {
		l.offer(fmt.Sprint("b", i), 60_000+i)
	}
	var all sync.WaitGroup
	for i := range blocks {
		all.Go(func() {
			key := fmt.Sprint("b", i)
			got, f, err := l.read(t.Context(), p, key)
			if err != nil || f.Length != 60_000+i || f.CRC != block.Sum(got) || string(f.Item.Key) != key ||
				string(f.Item.Attr) != "attr of "+key || f.Item.Expires != 12345 || f.Item.Addr != addr(key) {
				t.Errorf("%s: %+v, %v", key, f, err)
			}
			same(t, key, got, randomBytes(key, 60_000+i))
		})
	}
	all.Wait()
	l.settled()
	r, s := l.pool.Stats().RDMA, l.server.GrantStats()
	if r.Reads != blocks || r.Wanted != blocks || r.Asked > blocks/4 || s.Asked != r.Asked || s.Blocks != blocks ||
		s.Granted != 0 || s.Expired != 0 {
		t.Errorf("%+v %+v", r, s)
	}
	t.Logf("%d blocks with %d messages, and %d that gave them back", blocks, r.Asked, r.Releases)
	if sent := l.server.Stats().Sent; sent != 0 || l.server.Stats().InFlight != 0 {
		t.Errorf("%d bytes went by streams, %d are in flight", sent, l.server.Stats().InFlight)
	}
	if _, _, err := l.read(t.Context(), p, "none"); !errors.Is(err, wire.Miss) {
		t.Error("a block that is not there:", err)
	}
	l.offer("empty", 0)
	if _, f, err := l.read(t.Context(), p, "empty"); err != nil || f.Length != 0 {
		t.Error("an empty block:", err)
	}
	status := p.status()
	if !status.RDMA || status.Cards[0] != "near0" || status.Carried[overRDMA].Pulls != blocks+1 {
		t.Errorf("%+v", status)
	}
	if out := l.server.Granted(); len(out) != 1 || out[0].Cards[0] != "far0" {
		t.Errorf("%+v", out)
	}
}

// TestBySize: parts of blocks, and small blocks, come by streams. That is no fallback.
func TestBySize(t *testing.T) {
	l := newGrantSite(t, grantSiteOptions{pool: PoolOptions{MinBlock: 10_000}})
	p := l.grantee(Trusted)
	l.ready(p)
	want := l.offer("b", 9_999)
	got, _, err := l.read(t.Context(), p, "b")
	if err != nil {
		t.Fatal(err)
	}
	same(t, "of unknown length", got, want)
	if got, _, err = getOf(t.Context(), p, "b", len(want)); err != nil {
		t.Fatal(err)
	}
	same(t, "small", got, want)
	var part []byte
	_, err = p.Get(t.Context(), Get{Addr: addr("b"), Namespace: namespace, Offset: 5, Length: 100,
		Alloc: func(_ Found, n int) ([]byte, error) {
			part = make([]byte, n)
			return part, nil
		}})
	same(t, "range", part, want[5:105])
	s := l.pool.Stats().RDMA
	if err != nil || s.Reads != 1 {
		t.Errorf("%v %+v", err, s)
	}
	for why, n := range s.Fallbacks {
		if n != 0 {
			t.Errorf("%d fallbacks because of %s", n, why)
		}
	}
}

// TestOldPeer: a peer that does not know RDMA is asked once. Its blocks come by streams.
func TestOldPeer(t *testing.T) {
	l := newGrantSite(t, grantSiteOptions{old: true})
	p := l.grantee(Trusted)
	want := l.offer("b", 100_000)
	for range 10 {
		got, _, err := l.read(t.Context(), p, "b")
		if err != nil {
			t.Fatal(err)
		}
		same(t, "pulled", got, want)
		eventually(t, "it is known", func() bool { return p.status().Why != "" })
	}
	s := l.server.Stats()
	if n := s.Ops[wire.Connect]; n != 1 || p.status().Why != reasonOf(wire.UnknownOp) ||
		s.Statuses[wire.UnknownOp] != 1 {
		t.Errorf("asked %d times: %s", n, p.status().Why)
	}
	if n := l.pool.Stats().RDMA.Fallbacks["no_session"]; n != 10 {
		t.Errorf("%d fallbacks", n)
	}
}

// TestTrustedNetworks: RDMA needs both sides to trust the network, unless RDMA is demanded. A
// reader that does not trust the network does not ask for RDMA.
func TestTrustedNetworks(t *testing.T) {
	other := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}
	for name, c := range map[string]struct {
		near, far []netip.Prefix
		anyone    bool
		how       OneSided
		why       string // empty: RDMA is used
	}{
		"none is":           {how: Trusted, why: "rdma.trusted_networks is empty; give"},
		"the reader's is":   {near: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}, how: Trusted, why: reasonOf(wire.ByStream)},
		"the owner's is":    {far: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}, how: Trusted, why: "rdma.trusted_networks is empty; give"},
		"other networks":    {near: other, far: other, how: Trusted, why: "no card here has an address in rdma.trusted_networks ("},
		"the owner is not":  {near: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/32")}, anyone: true, how: Trusted, why: errStranger.Error()},
		"demanded":          {anyone: true, how: Demanded},
		"demanded, refused": {how: Demanded, why: reasonOf(wire.ByStream)},
	} {
		t.Run(name, func(t *testing.T) {
			l := newGrantSite(t, grantSiteOptions{rails: func(near, far *RailsOptions) {
				near.Trusted, far.Trusted, far.GrantAny = c.near, c.far, c.anyone
			}})
			p := l.grantee(c.how)
			want := l.offer("b", 100_000)
			got, _, err := l.read(t.Context(), p, "b")
			if err != nil {
				t.Fatal(err)
			}
			same(t, "pulled", got, want)
			if c.why == "" {
				l.ready(p)
				return
			}
			eventually(t, "the reason", func() bool { return p.status().Why != "" })
			if why := p.status().Why; !strings.HasPrefix(why, c.why) || p.status().RDMA {
				t.Error(why)
			}
		})
	}
}

// TestSessionsBelongToPeers: a host with another certificate may neither use nor end a session.
func TestSessionsBelongToPeers(t *testing.T) {
	l := newGrantSite(t, grantSiteOptions{})
	p := l.grantee(Trusted)
	l.ready(p)
	id := p.grantee.session().id
	l.offer("b", 1000)
	agent, err := newPool(t, PoolOptions{Identity: identity(t, pkiDir, pki.Agent)}).Peer(Target{Address: l.address,
		Lane: TLS})
	if err != nil {
		t.Fatal(err)
	}
	nothing := func(wire.Stamp, []byte) error { return nil }
	ask := func(p *Peer, op wire.Op, body []byte) error { return p.call(t.Context(), op, 0, body, nothing) }
	wanted := (&wire.Wanted{Session: id, Addrs: []block.Addr{addr("b")}}).Append(nil)
	for what, err := range map[string]error{
		"grant": ask(agent, wire.Grant, wanted),
		"end":   ask(agent, wire.Release, (&wire.Returned{Session: id, End: true}).Append(nil)),
		"none":  ask(p, wire.Grant, (&wire.Wanted{Session: id + 1}).Append(nil)),
	} {
		if !errors.Is(err, wire.Miss) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := ask(p, wire.Grant, wanted); err != nil {
		t.Error("the peer itself:", err)
	}
	if err := ask(p, wire.Grant, []byte("rubbish")); !errors.Is(err, wire.BadFrame) {
		t.Error("rubbish:", err)
	}
	if err := ask(p, wire.Connect, (&wire.Connection{}).Append(nil)); !errors.Is(err, wire.ByStream) {
		t.Error("no rails:", err)
	}
	if err := ask(p, wire.Release, (&wire.Returned{Session: id, End: true}).Append(nil)); err != nil {
		t.Error(err)
	}
	l.settled()
}

// TestManySessions: a host that begins anew again and again does not use up sessions.
func TestManySessions(t *testing.T) {
	l := newGrantSite(t, grantSiteOptions{})
	p := l.grantee(Trusted)
	dev, err := l.f.open("near0")
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	for range 3 * mostHostSessions {
		pair, err := dev.Pair(rdma.PairOptions{})
		if err != nil {
			t.Fatal(err)
		}
		body := (&wire.Connection{Ends: []wire.End{wireEnd(pair.Local())}}).Append(nil)
		if err := p.call(t.Context(), wire.Connect, 0, body, func(wire.Stamp, []byte) error {
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the oldest end", func() bool { return l.server.GrantStats().Open == mostHostSessions })
	l.pool.Forget(p.target)
	eventually(t, "all end with the last connection", func() bool { return l.server.GrantStats().Open == 0 })
}

// TestMemoryOfAnotherKind: memory that cards cannot read, or cannot write, makes the block come by
// a stream. The session stays.
func TestMemoryOfAnotherKind(t *testing.T) {
	l := newGrantSite(t, grantSiteOptions{})
	p := l.grantee(Trusted)
	l.ready(p)
	want := l.offer("b", 100_000)
	got, _, err := get(t.Context(), p, "b")
	if err != nil {
		t.Fatal(err)
	}
	same(t, "into other memory", got, want)
	want = l.store.fill("heap", 100_000)
	if got, _, err = l.read(t.Context(), p, "heap"); err != nil {
		t.Fatal(err)
	}
	same(t, "out of other memory", got, want)
	s := l.pool.Stats().RDMA
	if s.Fallbacks["not_registered"] != 1 || s.Fallbacks["not_granted"] != 1 || s.Broken != 0 ||
		l.server.GrantStats().ByStream != 1 {
		t.Errorf("%+v", s)
	}
	full := errors.New("full")
	if _, err = p.Get(t.Context(), Get{Addr: addr("b"), Namespace: namespace,
		Alloc: func(Found, int) ([]byte, error) { return nil, full }}); !errors.Is(err, full) {
		t.Error("no memory:", err)
	}
	l.settled()
}

// TestRottenBytes: bytes with a wrong checksum are no answer. Their session ends, and the block
// comes by a stream if the owner has it.
func TestRottenBytes(t *testing.T) {
	l := newGrantSite(t, grantSiteOptions{})
	p := l.grantee(Trusted)
	l.ready(p)
	payload := l.offer("b", 100_000)
	payload[5]++
	if _, _, err := l.read(t.Context(), p, "b"); !errors.Is(err, wire.Corrupt) || l.pool.Stats().RDMA.Corrupt != 1 {
		t.Error("the owner has not the block:", err)
	}
	payload[5]--
	l.ready(p)
	var once sync.Once
	l.f.set(func() {
		l.f.spoil = func(b []byte) {
			if len(b) > probeSize {
				once.Do(func() { b[7]++ })
			}
		}
	})
	got, _, err := l.read(t.Context(), p, "b")
	if err != nil {
		t.Fatal("a card that spoils bytes:", err)
	}
	same(t, "by a stream", got, payload)
	l.ready(p)
	if got, _, err = l.read(t.Context(), p, "b"); err != nil {
		t.Fatal(err)
	}
	same(t, "by a card again", got, payload)
	s := l.pool.Stats().RDMA
	if s.Corrupt != 2 || s.Fallbacks["checksum"] != 2 || s.Broken != 2 || s.Reads != 1 ||
		!strings.Contains(p.status().Error, "checksum") {
		t.Errorf("%+v %+v", s, p.status())
	}
}

// TestRottenProbe: cards that damage bytes on the way are not used.
func TestRottenProbe(t *testing.T) {
	l := newGrantSite(t, grantSiteOptions{})
	payload := l.offer("b", 100_000)
	l.f.set(func() { l.f.spoil = func(b []byte) { b[len(b)-1]++ } })
	p := l.grantee(Trusted)
	eventually(t, "a probe's bytes are not what the owner has", func() bool {
		return p.grantee.session() == nil && l.pool.Stats().RDMA.Unmade > 0
	})
	if why := p.status().Why; !strings.Contains(why, "what a probe read") {
		t.Error(why)
	}
	got, _, err := l.read(t.Context(), p, "b")
	if err != nil {
		t.Fatal(err)
	}
	same(t, "by a stream", got, payload)
	if s := l.pool.Stats().RDMA; s.Unmade == 0 || s.Sessions != 0 || s.Reads != 0 {
		t.Errorf("%+v", s)
	}
	l.f.set(func() { l.f.spoil = nil })
	l.ready(p)
}

// TestCardWithoutMemory: a card that may not lock the memory for a read ends the session, with that
// reason. It is tried again.
func TestCardWithoutMemory(t *testing.T) {
	l := newGrantSite(t, grantSiteOptions{})
	p := l.grantee(Trusted)
	l.ready(p)
	want := l.offer("b", 100_000)
	l.f.set(func() { l.f.refuse = fmt.Errorf("%w: it is 64 KiB", rdma.ErrMemlock) })
	got, _, err := l.read(t.Context(), p, "b")
	if err != nil {
		t.Fatal(err)
	}
	same(t, "by a stream", got, want)
	s := l.pool.Stats().RDMA
	if status := p.status(); status.RDMA || !strings.Contains(status.Why, rdma.ErrMemlock.Error()) ||
		s.Fallbacks["memlock"] != 1 || s.Broken != 1 {
		t.Errorf("%+v %+v", s, status)
	}
	l.f.set(func() { l.f.refuse = nil })
	l.ready(p)
	if _, _, err := l.read(t.Context(), p, "b"); err != nil || l.pool.Stats().RDMA.Reads != 1 {
		t.Error("when it may:", err)
	}
}

// TestGrantedShare: granted bytes count as in flight, for the host and in total. Blocks beyond the
// bound come by streams.
func TestGrantedShare(t *testing.T) {
	l := newGrantSite(t, grantSiteOptions{server: ServerOptions{MaxInFlight: 400_000}})
	p := l.grantee(Trusted)
	l.ready(p)
	l.offer("b", 80_000)
	entered, leave := make(chan struct{}), make(chan struct{})
	var first sync.WaitGroup
	first.Go(func() {
		_, err := p.Get(t.Context(), Get{Addr: addr("b"), Namespace: namespace,
			Alloc: func(_ Found, n int) ([]byte, error) {
				close(entered)
				<-leave
				return l.room(n), nil
			}})
		if err != nil {
			t.Error(err)
		}
	})
	<-entered
	if n := l.server.Stats().InFlight; n != 80_000 {
		t.Errorf("%d bytes in flight", n)
	}
	if _, _, err := l.read(t.Context(), p, "b"); !errors.Is(err, wire.Busy) {
		t.Error("over the host's share:", err)
	}
	if out := l.server.Granted(); out[0].Grants != 1 || out[0].Blocks != 1 || out[0].Bytes != 80_000 ||
		p.status().Grants != 1 {
		t.Errorf("%+v", out)
	}
	close(leave)
	first.Wait()
	if _, _, err := l.read(t.Context(), p, "b"); err != nil {
		t.Error("with what it gives back:", err)
	}
	l.settled()
	if n := l.server.Stats().InFlight; n != 0 {
		t.Errorf("%d bytes in flight", n)
	}
}
