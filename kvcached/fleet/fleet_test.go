package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/purge"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/kvcached/wire"
)

var pkiDir string

func TestMain(m *testing.M) {
	var err error
	if pkiDir, err = os.MkdirTemp("", "fleet"); err == nil {
		err = pki.Bootstrap(pkiDir, pki.Options{Roles: []pki.Role{pki.KVCached}})
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(pkiDir)
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

var (
	blocks = block.Namespace{Model: "m", Revision: "1", DType: "bf16", Layout: "test", Tokens: 16, TP: 1, PP: 1}
	keys   = block.Namespace{Space: "resp.0"}
)

// host is a daemon's store, transport and view.
type host struct {
	*View
	t      *testing.T
	member Member
	server *transport.Server
	pool   *transport.Pool
	stop   func()
}

var epochs uint64

func start(t *testing.T, id string, o Options) *host {
	return startWith(t, id, o, func(*transport.ServerOptions) {})
}

func startWith(t *testing.T, id string, o Options, server func(*transport.ServerOptions)) *host {
	t.Helper()
	h := startUnnamed(t, id, o, server)
	h.Named()
	return h
}

// prepare sets the ledger and the register of purges in o.
func (h *host) prepare(o *Options) {
	h.t.Helper()
	if o.Ledger == nil {
		var err error
		if o.Ledger, err = purge.Open(h.t.Context(), purge.Options{Store: o.Store}); err != nil {
			h.t.Fatal(err)
		}
	}
	if o.Register == nil {
		o.Register = &shelf{lists: &lists{}}
	}
	if s, ok := o.Register.(*shelf); ok {
		s.ledger, s.host = o.Ledger, h
	}
}

// startUnnamed starts a host and does not call Named.
func startUnnamed(t *testing.T, id string, o Options, server func(*transport.ServerOptions)) *host {
	t.Helper()
	h := &host{t: t}
	identity, err := pki.Load(pki.FilesIn(pkiDir, pki.KVCached))
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	var view *View // the store reports no change before it is used
	o.Store, err = store.Open(t.Context(), store.Options{RAM: 64 << 20,
		Changed:  func(c store.Change) { view.Changed(c) },
		Deleting: func(a block.Addr) { view.Deleting(a) },
		Written:  func(it *store.Item) { view.Written(it) }})
	if err != nil {
		t.Fatal(err)
	}
	h.prepare(&o)
	stamp := func() wire.Stamp { return view.Stamp() }
	if h.pool, err = transport.NewPool(transport.PoolOptions{Identity: identity, Logger: log, Stamp: stamp}); err !=
		nil {
		t.Fatal(err)
	}
	epochs++
	o.Pool, o.Self, o.Epoch, o.LocateTimeout = h.pool, id, epochs, 20*time.Second
	if o.Logger == nil {
		o.Logger = log
	}
	// the machine that runs the test may be busy
	o.AnswerTimeout = cmp.Or(o.AnswerTimeout, time.Minute)
	o.HeadTimeout = cmp.Or(o.HeadTimeout, time.Minute)
	if view, err = New(o); err != nil {
		t.Fatal(err)
	}
	h.View = view
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	so := transport.ServerOptions{Handler: transport.OnStore(o.Store, view), Identity: identity, TCP: l, Logger: log,
		Stamp: stamp,
		Allow: func(pki.Role, wire.Op) bool { return true }}
	server(&so)
	h.server, err = transport.NewServer(so)
	if err != nil {
		t.Fatal(err)
	}
	h.member = Member{ID: id, Instance: fmt.Sprint(epochs), Address: l.Addr().String(), Lane: transport.TLS}
	h.Know(blocks.String())
	h.Know(keys.String())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- view.Run(ctx) }()
	stopped := false
	h.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		err := <-done
		closing, end := context.WithTimeout(context.Background(), time.Minute)
		defer end()
		if err = errors.Join(err, h.server.Close(closing), h.pool.Close(), h.Store.Close()); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(h.stop)
	return h
}

func meet(hosts ...*host) {
	var members []Member
	for _, h := range hosts {
		members = append(members, h.member)
	}
	for _, h := range hosts {
		h.SetMembers(members)
	}
}

func (h *host) put(n block.Namespace, a block.Addr, text string) {
	h.t.Helper()
	if _, err := h.Store.Put(h.t.Context(), store.Item{Addr: a, Namespace: n.String()}, []byte(text),
		false); err != nil {
		h.t.Fatal(err)
	}
}

// text is the value that a Get at this host returns; empty: a miss.
func (h *host) text(a block.Addr) string {
	h.t.Helper()
	b, err := h.Get(h.t.Context(), a)
	if errors.Is(err, store.ErrMiss) {
		return ""
	}
	if err != nil {
		h.t.Fatal(err)
	}
	defer b.Release()
	return string(b.Bytes())
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); {
		if time.Now().After(deadline) {
			t.Fatal("not so in time:", what)
		}
		<-time.After(time.Millisecond)
	}
}

func addr(i int) block.Addr {
	return block.Addr{Digest: block.Seed("m", "", fmt.Sprint(i)), Model: blocks.ID()}
}

func key(name string) block.Addr { return block.OfKey(keys.ID(), []byte(name)) }

// TestAnyHostReachesEveryBlock checks that every host finds a block, whichever host has it and
// whichever is its keeper.
func TestAnyHostReachesEveryBlock(t *testing.T) {
	a, b, c := start(t, "a", Options{}), start(t, "b", Options{}), start(t, "c", Options{})
	for i := range 30 {
		a.put(blocks, addr(i), fmt.Sprint("early ", i)) // put before the hosts know each other
	}
	meet(a, b, c)
	for i := range 30 {
		b.put(blocks, addr(100+i), fmt.Sprint("late ", i))
	}
	for i := range 30 {
		eventually(t, "an early block is reached", func() bool { return c.text(addr(i)) == fmt.Sprint("early ", i) })
		eventually(t, "a late block is reached", func() bool { return c.text(addr(100+i)) == fmt.Sprint("late ", i) })
		eventually(t, "a late block is known", func() bool {
			info, err := a.Stat(t.Context(), addr(100+i))
			return err == nil && info.Tiers&store.Remote != 0 && info.Length == len(fmt.Sprint("late ", i))
		})
	}
	if c.text(addr(999)) != "" {
		t.Error("a block that nobody has")
	}
	if s := c.Stats(); s.Pulled != 60 || s.Members != 3 {
		t.Errorf("%+v", s)
	}
	for _, h := range []*host{a, b, c} {
		if s := h.Stats(); s.Locations == 0 {
			t.Errorf("%s keeps nothing: %+v", h.o.Self, s)
		}
	}
}

// TestKeys sets or deletes a key on one host. Other hosts do not answer with the old value
// afterwards.
func TestKeys(t *testing.T) {
	a, b := start(t, "a", Options{}), start(t, "b", Options{})
	meet(a, b)
	for i := range 20 {
		k := key(fmt.Sprint(i))
		a.put(keys, k, "one")
		eventually(t, "the key is reached", func() bool { return b.text(k) == "one" && a.Stats().Notices == 0 })
		b.put(keys, k, "two")
		eventually(t, "the new value is reached", func() bool { return a.text(k) == "two" })
		if i%2 == 0 {
			eventually(t, "a deletion reaches all", func() bool {
				if _, err := a.Delete(t.Context(), k); err != nil {
					t.Fatal(err)
				}
				return a.text(k) == "" && b.text(k) == ""
			})
		} else if b.text(k) != "two" || a.text(k) != "two" {
			t.Error("a pulled copy counts as a new value")
		}
	}
}

// TestHostsComeAndGo checks that a stopped host is not asked, and that a restarted host learns all
// locations again.
func TestHostsComeAndGo(t *testing.T) {
	a, b, c := start(t, "a", Options{}), start(t, "b", Options{}), start(t, "c", Options{})
	meet(a, b, c)
	for i := range 50 {
		a.put(blocks, addr(i), "x")
	}
	eventually(t, "c can pull", func() bool { return c.text(addr(0)) == "x" })
	c.stop()
	meet(a, b)
	for i := range 50 {
		eventually(t, "what c kept is kept by others", func() bool { return b.text(addr(i)) == "x" })
	}
	d := start(t, "c", Options{})
	meet(a, b, d)
	for i := range 50 {
		eventually(t, "a new c is told", func() bool { return d.text(addr(i)) == "x" })
	}
	if d.Stats().Locations == 0 {
		t.Error("the new c keeps nothing")
	}
}

func TestReplicas(t *testing.T) {
	a, b := start(t, "a", Options{Replicas: 1}), start(t, "b", Options{})
	meet(a, b)
	a.put(blocks, addr(1), "hot")
	for range hotUses {
		a.text(addr(1))
	}
	eventually(t, "a hot block is copied", func() bool {
		_, err := b.Store.Stat(t.Context(), addr(1))
		return err == nil
	})
}

func TestKeeperForgets(t *testing.T) {
	k := newKeeper(10)
	say := func(host string, epoch, version uint64, snapshot bool, tiers uint32, of ...int) wire.Receipt {
		a := &wire.Announcement{Host: host, Epoch: epoch, Version: version}
		for _, i := range of {
			a.Changes = append(a.Changes, wire.Change{Addr: addr(i), Tiers: tiers, Length: 7})
		}
		return k.announce(a, snapshot)
	}
	knows := func(i int, want ...string) {
		t.Helper()
		x := addr(i)
		var got []string
		for _, l := range k.locate(&x) {
			got = append(got, l.host)
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("block %d is on %v, want %v", i, got, want)
		}
	}
	if r := say("a", 1, 1, false, 1, 1); r != (wire.Receipt{}) {
		t.Error("changes of a stranger:", r)
	}
	say("a", 1, 0, true, 1, 1, 2)
	say("b", 5, 0, true, 1, 2)
	knows(1, "a")
	knows(2, "a", "b")
	if r := say("a", 1, 3, false, 0, 1); r != (wire.Receipt{Epoch: 1}) {
		t.Error("a gap:", r)
	}
	if r := say("a", 1, 1, false, 0, 1); r != (wire.Receipt{Epoch: 1, Version: 1}) {
		t.Error(r)
	}
	knows(1)
	say("a", 2, 0, true, 1, 3)
	knows(2, "b")
	knows(3, "a")
	for i := range 20 {
		say("b", 5, uint64(1+i), false, 1, 10+i)
	}
	if n, refused := k.stats(); n != 10 || refused != 12 {
		t.Errorf("%d kept, %d refused", n, refused)
	}
	k.retain(newRoster("a", nil))
	knows(10)
	say("a", 2, 1, false, 1, 4, 5, 6)
	knows(6, "a")
	if n, _ := k.stats(); n != 4 {
		t.Errorf("%d kept", n)
	}
}

// TestForgets checks that connections to hosts that have left or moved are closed. No new
// connection is made with an old roster.
func TestForgets(t *testing.T) {
	a, b, c := start(t, "a", Options{}), start(t, "b", Options{}), start(t, "c", Options{})
	meet(a, b, c)
	eventually(t, "both others are talked to", func() bool { return a.pool.Stats().Peers == 2 })
	left := c.member
	meet(a, b)
	eventually(t, "who has left is forgotten", func() bool { return a.pool.Stats().Peers == 1 })
	if _, err := a.peer(&left); !errors.Is(err, ErrUnknownHost) {
		t.Error("a connection to a host that has left:", err)
	}
	eventually(t, "no connection to it is left", func() bool { return a.pool.Stats().Peers == 1 })
	stayed := b.member
	c.member.ID = "b" // b's daemon stops and runs elsewhere
	a.SetMembers([]Member{a.member, c.member})
	eventually(t, "the new place is talked to instead of the old one", func() bool {
		_, err := a.peer(&stayed)
		return errors.Is(err, ErrUnknownHost) && a.pool.Stats().Peers == 1 && a.healthOf(&stayed).member == c.member
	})
}

// TestStatOfPurged checks a block that a purge may name. The block is a miss for Stat and StatAll
// until its only holder has carried out the purge.
func TestStatOfPurged(t *testing.T) {
	a, b := start(t, "a", Options{}), start(t, "b", Options{})
	meet(a, b)
	addrs := []block.Addr{addr(1), key("kept"), key("m@1")}
	b.put(blocks, addrs[0], "block")
	for _, text := range []string{"kept", "m@1"} {
		it := store.Item{Addr: key(text), Namespace: keys.String(), Key: []byte(text)}
		if _, err := b.Store.Put(t.Context(), it, []byte("value"), false); err != nil {
			t.Fatal(err)
		}
	}
	// News of b reach a at any time, so Stat may see more than the StatAll before it.
	found := func(want [3]bool) bool {
		var infos [3]store.Info
		if err := a.StatAll(t.Context(), addrs, infos[:]); err != nil {
			t.Fatal(err)
		}
		for i, at := range addrs {
			one, err := a.Stat(t.Context(), at)
			if (infos[i].Tiers == store.Remote) != want[i] || (err == nil) != want[i] || one.Length != infos[i].Length {
				return false
			}
		}
		return true
	}
	eventually(t, "all are known", func() bool { return found([3]bool{true, true, true}) })
	if _, err := a.o.Ledger.Purge(t.Context(), purge.Selector{Model: "m"}); err != nil {
		t.Fatal(err)
	}
	if !found([3]bool{}) {
		t.Error("before the holder purges a block is found")
	}
	if _, err := b.o.Ledger.Take(t.Context(), a.o.Ledger.List()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "what the purge does not name is back", func() bool { return found([3]bool{false, true, false}) })
}

// TestPurgeNamesCachesWithoutAddress checks that a purge reports a listed cache that cannot be
// asked. That cache does not count as one that has confirmed.
func TestPurgeNamesCachesWithoutAddress(t *testing.T) {
	etcd := &lists{}
	a, b := start(t, "a", Options{Register: &shelf{lists: etcd}}), start(t, "b", Options{Register: &shelf{lists: etcd}})
	etcd.hosts = map[string]Member{"a": a.member, "b": b.member, "local": {ID: "local"}}
	meet(a, b)
	done, err := a.PurgeAll(t.Context(), purge.Selector{Everything: true})
	var failed *purge.HostsError
	if err != nil || !errors.As(purge.Failed(done), &failed) || len(failed.Hosts) != 1 || failed.Hosts[0] != "local" ||
		len(done) != 3 {
		t.Error(done, err, failed)
	}
}
