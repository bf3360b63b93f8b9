//go:build linux

package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/client"
	"github.com/cognitora/dataplane/kvcached/lease"
	"github.com/cognitora/dataplane/kvcached/ssd"
	"github.com/cognitora/dataplane/kvcached/store"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var namespace = block.Namespace{Model: "m", Revision: "r", DType: "bf16", Layout: "l", Tokens: 16, TP: 1,
	PP: 1}.String()

func addr(name string) block.Addr {
	return block.Addr{Digest: block.Seed(name, "", ""), Model: block.IDOf(namespace), Layer: block.LayerAll}
}

func item(name string) client.Item { return client.Item{Addr: addr(name), Namespace: namespace} }

// daemon is a lease server that can be restarted on the same path.
type daemon struct {
	t      testing.TB
	path   string
	ram    int64
	opt    lease.Options
	ssd    *ssd.Options
	server *lease.Server
	store  *store.Store
	served chan struct{}
}

func start(t testing.TB, ram int64, o lease.Options) *daemon {
	d := &daemon{t: t, path: filepath.Join(t.TempDir(), "lease.sock"), ram: ram, opt: o}
	d.start()
	t.Cleanup(d.stop)
	return d
}

func (d *daemon) start() {
	d.t.Helper()
	var err error
	if d.store, err = store.Open(context.Background(), store.Options{RAM: d.ram, SSD: d.ssd}); err != nil {
		d.t.Fatal(err)
	}
	if d.server, err = lease.New(d.store, d.opt); err != nil {
		d.t.Fatal(err)
	}
	l, err := listen.OpenUnix(d.path, 0o660, -1)
	if err != nil {
		d.t.Fatal(err)
	}
	s, served := d.server, make(chan struct{})
	d.served = served
	go func() { defer close(served); _ = s.Serve(l) }()
}

func (d *daemon) stop() {
	_ = d.server.Close()
	<-d.served
	_ = d.store.Close()
}

func dial(t testing.TB, d *daemon, o client.Options) *client.Client {
	t.Helper()
	c, err := o.Dial(context.Background(), d.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func until(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); {
		if time.Now().After(deadline) {
			t.Fatal("never: ", what)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestPutAndGet(t *testing.T) {
	d := start(t, 64<<20, lease.Options{})
	c := dial(t, d, client.Options{})
	ctx := t.Context()
	for _, size := range []int{0, 1, 4095, 65536, 1_072_693, 3 << 20, 20<<20 + 1} {
		payload := bytes.Repeat([]byte{byte(size)}, size)
		info, err := c.Put(ctx, item("a"), payload)
		if err != nil || info.Length != size || info.CRC != block.Sum(payload) || info.Tiers != client.RAM {
			t.Fatalf("%d bytes: %+v %v", size, info, err)
		}
		v, err := c.Get(ctx, addr("a"))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(v.Bytes(), payload) || v.CRC() != info.CRC {
			t.Errorf("%d bytes came back as %d", size, len(v.Bytes()))
		}
		if err := errors.Join(v.Verify(), v.Err(), v.Close()); err != nil {
			t.Error(err)
		}
		if err := v.Close(); !errors.Is(err, client.ErrLeaseExpired) {
			t.Error("closed twice:", err)
		}
	}
	if i, err := c.Stat(ctx, addr("a")); err != nil || i.Length != 20<<20+1 {
		t.Error(i, err)
	}
	if n, err := c.Delete(ctx, addr("a"), addr("b")); n != 1 || err != nil {
		t.Error(n, err)
	}
	if _, err := c.Get(ctx, addr("a")); !errors.Is(err, client.ErrMiss) {
		t.Error(err)
	}
	if _, err := c.Stat(ctx, addr("a")); !errors.Is(err, client.ErrMiss) {
		t.Error(err)
	}
	until(t, "released", func() bool { return d.server.Stats().Leases == 0 }) // released without another request
	if s := d.server.Stats(); s.Released != s.Hits || s.StagingBytes > 16<<20 {
		t.Errorf("%+v", s)
	}
}

func TestPutRefused(t *testing.T) {
	d := start(t, 64<<20, lease.Options{MaxStaging: 8 << 20})
	c := dial(t, d, client.Options{})
	ctx := t.Context()
	with := func(change func(*client.Item)) client.Item {
		it := item("a")
		change(&it)
		return it
	}
	keys := block.Namespace{Space: "resp.0"}
	wide := block.Namespace{Model: strings.Repeat("m", 300), Revision: "r", DType: "bf16", Layout: "l", Tokens: 512,
		TP: 1, PP: 1}
	long := client.Item{Addr: block.Addr{Model: wide.ID()}, Namespace: wide.String(), Names: make([]byte, 248)}
	for what, p := range map[string]struct {
		it   client.Item
		size int
		want error
	}{
		"wrong checksum":      {with(func(it *client.Item) { it.CheckCRC, it.CRC = true, 1 }), 10, client.ErrCorrupt},
		"another's namespace": {with(func(it *client.Item) { it.Addr.Model[0]++ }), 10, block.ErrNamespace},
		"keys":                {client.Item{Addr: block.OfKey(keys.ID(), []byte("k")), Namespace: keys.String()}, 10, block.ErrNamespace},
		"not durable":         {with(func(it *client.Item) { it.Durable = true }), 10, client.ErrNotDurable},
		"too large":           {item("a"), 64<<20 + 1, client.ErrTooLarge},
		"over quota":          {item("a"), 9 << 20, client.ErrQuota},
		"names of 16 tokens":  {with(func(it *client.Item) { it.Names = make([]byte, 8) }), 10, client.ErrNames},
		"half a name":         {with(func(it *client.Item) { it.Names = make([]byte, 12) }), 10, client.ErrNames},
		"too many names":      {with(func(it *client.Item) { it.Names = make([]byte, 256) }), 10, client.ErrNames},
		"long and named":      {long, 10, block.ErrNamespace},
	} {
		if _, err := c.Put(ctx, p.it, make([]byte, p.size)); !errors.Is(err, p.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	absent := item("absent")
	absent.IfAbsent = true
	if _, err := c.Put(ctx, absent, []byte("first")); err != nil {
		t.Error(err)
	}
	if _, err := c.Put(ctx, absent, []byte("second")); !errors.Is(err, client.ErrExists) {
		t.Error(err)
	}
	wide.Model = "m"
	named := client.Item{Addr: block.Addr{Model: wide.ID()}, Namespace: wide.String(),
		Names: bytes.Repeat([]byte("name"), 62)}
	if _, err := c.Put(ctx, named, []byte("named")); err != nil {
		t.Error(err)
	}
	failed := errors.New("no")
	if _, err := c.PutFrom(ctx, item("a"), 10, func([]byte) error { return failed }); !errors.Is(err, failed) {
		t.Error(err)
	}
	// A larger segment replaces a kept one.
	for _, size := range []int{3 << 20, 7 << 20} {
		if _, err := c.Put(ctx, item("a"), make([]byte, size)); err != nil {
			t.Error(size, err)
		}
	}
	if err := c.Ping(ctx); err != nil {
		t.Error(err)
	}
}

func TestMany(t *testing.T) {
	d := start(t, 64<<20, lease.Options{})
	c := dial(t, d, client.Options{Name: "engine"})
	ctx := t.Context()
	var addrs []block.Addr
	for i := range 700 { // more than one frame holds
		name := fmt.Sprint(i)
		addrs = append(addrs, addr(name))
		if i%2 == 0 {
			if _, err := c.Put(ctx, item(name), []byte(name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	views, err := c.GetMany(ctx, addrs)
	if err != nil || len(views) != len(addrs) {
		t.Fatal(len(views), err)
	}
	for i, v := range views {
		if (v != nil) != (i%2 == 0) {
			t.Fatal(i, v)
		}
		if v != nil && (string(v.Bytes()) != fmt.Sprint(i) || v.Close() != nil) {
			t.Error(i)
		}
	}
	infos, err := c.StatMany(ctx, addrs)
	if err != nil || infos[699].Tiers != 0 || infos[698].Tiers != client.RAM || infos[698].Length != 3 {
		t.Error(infos[698:], err)
	}
	if n, err := c.Pin(ctx, time.Now().Add(time.Minute), addrs...); n != 350 || err != nil {
		t.Error(n, err)
	}
	if n, err := c.Pin(ctx, time.Now().Add(25*time.Hour), addrs...); n != 0 || !errors.Is(err, client.ErrPin) {
		t.Error(n, err)
	}
	if err := errors.Join(c.Unpin(ctx, addrs...), c.Touch(ctx, addrs)); err != nil {
		t.Error(err)
	}
	if n, err := c.Delete(ctx, addrs...); n != 350 || err != nil {
		t.Error(n, err)
	}
	until(t, "released", func() bool { return d.server.Stats().Leases == 0 })
}

// TestDurable puts a block that is on disk when Put returns. After a restart the daemon has the
// block.
func TestDurable(t *testing.T) {
	d := &daemon{t: t, path: filepath.Join(t.TempDir(), "lease.sock"), ram: 16 << 20,
		ssd: &ssd.Options{Dir: t.TempDir(), Cap: 256 << 20}}
	d.start()
	t.Cleanup(func() { d.stop() })
	c := dial(t, d, client.Options{})
	it := item("a")
	it.Durable = true
	payload := bytes.Repeat([]byte("payload"), 100_000)
	info, err := c.Put(t.Context(), it, payload)
	if err != nil || info.Tiers != client.RAM|client.SSD {
		t.Fatal(info, err)
	}
	d.stop()
	d.start()
	until(t, "found again", func() bool {
		err := c.Read(t.Context(), it.Addr, func(b []byte) error {
			if !bytes.Equal(b, payload) {
				t.Error("other bytes")
			}
			return nil
		})
		return err == nil
	})
}

func TestALateReaderIsTold(t *testing.T) {
	d := start(t, 64<<20, lease.Options{Lease: 30 * time.Millisecond, Grace: 10 * time.Millisecond})
	c := dial(t, d, client.Options{})
	ctx := t.Context()
	if _, err := c.Put(ctx, item("a"), []byte("payload")); err != nil {
		t.Fatal(err)
	}
	v, err := c.Get(ctx, addr("a"))
	if err != nil {
		t.Fatal(err)
	}
	until(t, "expired", func() bool { return d.server.Stats().Expired == 1 })
	if err := v.Close(); !errors.Is(err, client.ErrLeaseExpired) {
		t.Error(err)
	}
	err = c.Read(ctx, addr("a"), func([]byte) error {
		until(t, "expired", func() bool { return d.server.Stats().Expired == 2 })
		return nil
	})
	if !errors.Is(err, client.ErrLeaseExpired) {
		t.Error(err)
	}
}

func TestRestart(t *testing.T) {
	d := start(t, 64<<20, lease.Options{})
	c := dial(t, d, client.Options{Sockets: 3})
	ctx := t.Context()
	if _, err := c.Put(ctx, item("a"), []byte("payload")); err != nil {
		t.Fatal(err)
	}
	v, err := c.Get(ctx, addr("a"))
	if err != nil {
		t.Fatal(err)
	}
	spread(t, c)
	if _, err := c.PutFrom(ctx, item("b"), 100, func(b []byte) error {
		d.stop()
		b[0] = 1
		return nil
	}); !errors.Is(err, client.ErrGone) {
		t.Error(err)
	}
	if _, err := c.Get(ctx, addr("a")); !errors.Is(err, client.ErrGone) {
		t.Error(err)
	}
	if _, err := c.Get(ctx, addr("a")); !errors.Is(err, client.ErrGone) { // no server listens
		t.Error(err)
	}
	d.start()
	if _, err := c.Get(ctx, addr("a")); !errors.Is(err, client.ErrMiss) {
		t.Error(err)
	}
	if string(v.Bytes()) != "payload" {
		t.Error("the old view reads", v.Bytes())
	}
	if err := v.Close(); !errors.Is(err, client.ErrLeaseExpired) {
		t.Error(err)
	}
	if _, err := c.Put(ctx, item("a"), []byte("again")); err != nil {
		t.Error(err)
	}
	// A restart between two uses causes one error, although there were several connections.
	spread(t, c)
	d.stop()
	d.start()
	if err := c.Ping(ctx); !errors.Is(err, client.ErrGone) {
		t.Error(err)
	}
	for range 5 {
		if err := c.Ping(ctx); err != nil {
			t.Error(err)
		}
	}
}

// spread makes the client open all its connections.
func spread(t *testing.T, c *client.Client) {
	t.Helper()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if err := c.Ping(context.Background()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

func TestCloseEndsLeases(t *testing.T) {
	d := start(t, 64<<20, lease.Options{})
	c := dial(t, d, client.Options{})
	ctx := t.Context()
	if _, err := c.Put(ctx, item("a"), []byte("payload")); err != nil {
		t.Fatal(err)
	}
	v, err := c.Get(ctx, addr("a"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if string(v.Bytes()) != "payload" {
		t.Error("not readable")
	}
	if err := v.Close(); !errors.Is(err, client.ErrLeaseExpired) {
		t.Error(err)
	}
	if _, err := c.Get(ctx, addr("a")); !errors.Is(err, client.ErrClosed) {
		t.Error(err)
	}
	until(t, "gone", func() bool {
		s := d.server.Stats()
		return s.Clients == 0 && s.Leases == 0 && s.StagingBytes == 0
	})
}

func TestDialFails(t *testing.T) {
	if _, err := client.Dial(t.Context(), filepath.Join(t.TempDir(), "nobody")); !errors.Is(err, client.ErrGone) {
		t.Error(err)
	}
	if _, err := (client.Options{Name: strings.Repeat("x", 33)}).Dial(t.Context(), "x"); err == nil {
		t.Error("a long name")
	}
	d := start(t, 1<<20, lease.Options{MaxClients: 1})
	c := dial(t, d, client.Options{})
	if _, err := client.Dial(t.Context(), d.path); !errors.Is(err, client.ErrBusy) {
		t.Error(err)
	}
	if err := c.Ping(t.Context()); err != nil {
		t.Error(err)
	}
}
