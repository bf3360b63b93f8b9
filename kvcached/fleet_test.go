package kvcached

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/etcdserver"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/client"
	"github.com/cognitora/dataplane/kvcached/fleet"
	"github.com/cognitora/dataplane/kvcached/purge"
	"github.com/cognitora/dataplane/kvcached/rpc"
	"github.com/cognitora/dataplane/kvcached/store"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// site is the etcd and the certificates of one fleet.
type site struct{ etcd, pki string }

func newSite(t testing.TB) site {
	t.Helper()
	s := site{pki: t.TempDir()}
	if err := pki.Bootstrap(s.pki, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	etcd, err := etcdserver.Start(t.TempDir(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	s.etcd = etcd.Endpoint()
	return s
}

// join configures a host of the site and then calls more.
func (s site) join(id string, more func(*Config)) func(*Config) {
	return func(c *Config) {
		files := pki.FilesIn(s.pki, pki.KVCached)
		c.TLS = TLSConfig{CA: files.CA, Cert: files.Cert, Key: files.Key}
		// heartbeats that a busy machine can keep
		c.Daemon.CacheID, c.Daemon.Heartbeat, c.Etcd.Endpoints = id, config.Duration(3*time.Second), []string{s.etcd}
		// the machine that runs the test may be busy
		c.Fleet.LocateTimeout *= 50
		c.Fleet.AnswerTimeout *= 50
		if more != nil {
			more(c)
		}
	}
}

func (s site) host(t testing.TB, id string, more func(*Config)) (*Daemon, func() error) {
	t.Helper()
	c, log := settings(t, t.TempDir(), s.join(id, more))
	d, stop := begin(t, c)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("host %s:\n%s", id, log)
		}
	})
	return d, stop
}

func meet(t testing.TB, n int64, hosts ...*Daemon) {
	t.Helper()
	for _, d := range hosts {
		awaitThat(t, "all hosts are known", func() bool {
			s := d.view.Load().Stats()
			return s.Members == n && s.Named == 1
		})
	}
}

// awaitThat polls until the condition holds.
func awaitThat(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !holds(); {
		if time.Now().After(deadline) {
			t.Fatal("not so in time:", what)
		}
		<-time.After(5 * time.Millisecond)
	}
}

// kv is a client of the daemon's gRPC socket.
func kv(t testing.TB, d *Daemon) pb.KvClient {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+d.At("grpc-sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return pb.NewKvClient(conn)
}

// payload returns the payload that a host sends through gRPC; nil: a miss.
func payload(t *testing.T, c pb.KvClient, space block.Namespace, a block.Addr) []byte {
	t.Helper()
	stream, err := c.Get(t.Context(), &pb.GetRequest{Namespace: space.String(), Layer: a.Layer, Digest: a.Digest[:]})
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return all
		case err != nil && strings.Contains(err.Error(), "NotFound"):
			return nil
		case err != nil:
			t.Fatal(err)
		}
		all = append(all, m.Data...)
	}
}

// set stores a binary value through RESP.
func set(t *testing.T, d *Daemon, key string, value []byte) {
	t.Helper()
	if got := redis(t, d.At("resp"), fmt.Sprintf("*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s", len(key), key, len(value),
		value)); got[0] != "+OK" {
		t.Fatal(got)
	}
}

var testSpace = block.Namespace{Model: "m", Revision: "r", DType: "bf16", Layout: "l", Tokens: 16, TP: 1, PP: 1}

func testAddr(i int) block.Addr {
	return block.Addr{Digest: block.Seed("m", "", fmt.Sprint(i)), Model: testSpace.ID()}
}

// TestOneHostsBlocksOnAnother stores blocks on one host through RESP and S3. Clients of all kinds
// read these blocks on another host.
func TestOneHostsBlocksOnAnother(t *testing.T) {
	s := newSite(t)
	a, _ := s.host(t, "a", nil)
	b, _ := s.host(t, "b", func(c *Config) { c.Fleet.Peers = []PeerConfig{{Cache: "a", Lane: "tls"}} })
	meet(t, 2, a, b)
	value := bytes.Repeat([]byte("0123456789abcdef"), 200_000) // pulled over several connections
	onB := kv(t, b)
	for i := range 8 { // each host is the keeper of some blocks
		set(t, a, block.Text(testSpace.String(), testAddr(i)), value[i:])
	}
	look, err := onB.Lookup(t.Context(), &pb.LookupRequest{Namespace: testSpace.String(), Digest: bytesOf(testAddr(0))})
	if err != nil || look.Tiers != 0 {
		t.Errorf("a lookup on b tells of other hosts: %v, %v", look, err)
	}
	for i := range 4 {
		awaitThat(t, "a block of a is read through gRPC on b", func() bool {
			return bytes.Equal(payload(t, onB, testSpace, testAddr(i)), value[i:])
		})
	}
	_, sock := b.config.Sockets()
	local, err := client.Dial(t.Context(), sock)
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	err = local.Read(t.Context(), testAddr(4), func(p []byte) error {
		if !bytes.Equal(p, value[4:]) {
			return errors.New("other bytes")
		}
		return nil
	})
	if err != nil {
		t.Error("a block of a under a lease of b:", err)
	}
	moved, err := onB.Promote(t.Context(), &pb.PromoteRequest{Namespace: testSpace.String(),
		Digests: append(bytesOf(testAddr(5)), bytesOf(testAddr(99))...)})
	if err != nil || moved.Ok != 1 || moved.Outcomes[1] != byte(pb.Outcome_OUTCOME_MISS) {
		t.Errorf("promote: %v, %v", moved, err)
	}
	promotesWhatComes(t, a, b, value)
	if _, err := onB.Pull(t.Context(), &pb.PullRequest{Peer: "nobody", Namespace: testSpace.String(),
		Digests: bytesOf(testAddr(6))}); err == nil || !strings.Contains(err.Error(), "NotFound") {
		t.Errorf("pull from nobody: %v", err)
	}
	if moved, err = onB.Pull(t.Context(), &pb.PullRequest{Peer: "a", Namespace: testSpace.String(),
		Digests: bytesOf(testAddr(6))}); err != nil || moved.Ok != 1 {
		t.Errorf("pull: %v, %v", moved, err)
	}
	if moved, err = kv(t, a).Push(t.Context(), &pb.PushRequest{Peer: "b", Namespace: testSpace.String(),
		Digests: bytesOf(testAddr(7))}); err != nil || moved.Ok != 1 {
		t.Errorf("push: %v, %v", moved, err)
	}
	if look, err = onB.Lookup(t.Context(), &pb.LookupRequest{Namespace: testSpace.String(),
		Digest: bytesOf(testAddr(7))}); err != nil || look.Tiers == 0 {
		t.Errorf("what was pushed: %v, %v", look, err)
	}
	if n := b.view.Load().Stats().Pulled; n != 8 {
		t.Errorf("%d blocks were pulled", n)
	}
	watchTells(t, onB, uint64(len(value)))
	_, page := get(t, "http://"+b.AdminAddr().String()+"/metrics")
	for _, want := range []string{"cgn_kvcached_fleet_members 2", "cgn_kvcached_fleet_pulled_total 8",
		`cgn_kvcached_pool_dials_total{lane="quic"} 0`} {
		if !strings.Contains(page, want+"\n") {
			t.Errorf("no %s in /metrics", want)
		}
	}
}

// promotesWhatComes promotes a block on b that a host stores meanwhile.
func promotesWhatComes(t *testing.T, a, b *Daemon, value []byte) {
	t.Helper()
	onB, coming := kv(t, b), make(chan error, 1)
	ask := &pb.PromoteRequest{Namespace: testSpace.String(), Digests: bytesOf(testAddr(8)), WaitMs: 60_000}
	go func() {
		_, err := onB.Promote(t.Context(), ask)
		coming <- err
	}()
	set(t, a, block.Text(testSpace.String(), testAddr(8)), value)
	if err := <-coming; err != nil || b.view.Load().Stats().Awaited != 1 {
		t.Errorf("promote with a wait: %v", err)
	}
	long := &pb.PromoteRequest{Namespace: ask.Namespace, Digests: ask.Digests, WaitMs: 60_001}
	if _, err := onB.Promote(t.Context(), long); err == nil || !strings.Contains(err.Error(), "wait_ms is 60001") {
		t.Errorf("promote with too long a wait: %v", err)
	}
}

// TestALeftHolderIsAMiss: a block whose only holder leaves the fleet meanwhile ends no promotion of
// other blocks.
func TestALeftHolderIsAMiss(t *testing.T) {
	out, err := outcome(nobodyHas(fmt.Errorf("%w: %w: b", store.ErrMiss, fleet.ErrUnknownHost)))
	if out != rpc.Miss || err != nil {
		t.Errorf("%v, %v", out, err)
	}
}

// TestAWaitEndsWithTheDaemon: a daemon that stops does not wait for blocks that are to come.
func TestAWaitEndsWithTheDaemon(t *testing.T) {
	s := newSite(t)
	a, _ := s.host(t, "a", nil)
	b, stop := s.host(t, "b", nil)
	meet(t, 2, a, b)
	onB, coming := kv(t, b), make(chan error, 1)
	go func() {
		_, err := onB.Promote(t.Context(), &pb.PromoteRequest{Namespace: testSpace.String(),
			Digests: bytesOf(testAddr(1)), WaitMs: 60_000})
		coming <- err
	}()
	awaitThat(t, "the promotion waits", func() bool { return b.view.Load().Stats().Awaiting == 1 })
	stop()
	if err := <-coming; err == nil {
		t.Error("the promotion has not failed")
	}
}

// watchTells checks what a watcher is told about blocks of other hosts, and about the size of
// blocks, which is at most the given one.
func watchTells(t *testing.T, on pb.KvClient, most uint64) {
	t.Helper()
	stream, err := on.Watch(t.Context(), &pb.WatchRequest{All: true})
	if err != nil {
		t.Fatal(err)
	}
	for sized := false; ; {
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if !m.Shares || !(m.PulledBytesPerSecond > 0) || len(m.BlockBytes) != len(m.Namespaces) {
			t.Fatalf("a daemon that has pulled blocks tells %v", m)
		}
		for i, n := range m.BlockBytes {
			if sized = true; n == 0 || n > most || m.Namespaces[i] != testSpace.String() {
				t.Errorf("%d bytes in a block of %s", n, m.Namespaces[i])
			}
		}
		if m.Part == pb.WatchResponse_PART_SYNCED {
			if !sized {
				t.Error("no size is told")
			}
			return
		}
	}
}

func bytesOf(a block.Addr) []byte { return a.Digest[:] }

// TestALeaseClientNamesItsNamespaces reads blocks of other hosts through a client that only reads.
// The client names the namespace first, also after a restart of the daemon.
func TestALeaseClientNamesItsNamespaces(t *testing.T) {
	s := newSite(t)
	a, _ := s.host(t, "a", nil)
	set(t, a, block.Text(testSpace.String(), testAddr(1)), []byte("hello"))
	c, _ := settings(t, t.TempDir(), s.join("b", func(c *Config) { c.Daemon.SSD = 0 }))
	b, stop := begin(t, c)
	meet(t, 2, a, b)
	_, sock := c.Sockets()
	reader, err := client.Dial(t.Context(), sock)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	read := func() (got string, err error) {
		err = reader.Read(t.Context(), testAddr(1), func(p []byte) error {
			got = string(p)
			return nil
		})
		return got, err
	}
	if _, err := read(); !errors.Is(err, client.ErrMiss) {
		t.Error(err)
	}
	if err := reader.Know(t.Context(), "rubbish"); !errors.Is(err, block.ErrNamespace) {
		t.Error(err)
	}
	if err := reader.Know(t.Context(), testSpace.String()); err != nil {
		t.Fatal(err)
	}
	awaitThat(t, "it is read", func() bool {
		got, err := read()
		return err == nil && got == "hello"
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	b, _ = begin(t, c)
	meet(t, 2, a, b)
	awaitThat(t, "it is read from the new daemon", func() bool {
		got, err := read()
		return err == nil && got == "hello"
	})
}

// TestKeysOfTheFleet sets, reads and deletes a key on different hosts.
func TestKeysOfTheFleet(t *testing.T) {
	s := newSite(t)
	a, _ := s.host(t, "a", nil)
	b, _ := s.host(t, "b", nil)
	meet(t, 2, a, b)
	for i := range 6 {
		key := fmt.Sprint("key", i)
		redis(t, a.At("resp"), "SET "+key+" one")
		awaitThat(t, "EXISTS on b", func() bool { return redis(t, b.At("resp"), "EXISTS "+key)[0] == ":1" })
		if got := redis(t, b.At("resp"), "GET "+key); got[0] != "one" {
			t.Errorf("GET on b: %q", got)
		}
		awaitThat(t, "a knows that b has it", func() bool {
			redis(t, a.At("resp"), "SET "+key+" two")
			return redis(t, b.At("resp"), "GET "+key)[0] == "two"
		})
		awaitThat(t, "DEL on b", func() bool {
			redis(t, b.At("resp"), "DEL "+key)
			return redis(t, a.At("resp"), "GET "+key)[0] == "$-1" && redis(t, b.At("resp"), "GET "+key)[0] == "$-1"
		})
	}
	request, _ := http.NewRequest("PUT", "http://"+a.At("s3")+"/bucket/key", strings.NewReader("object"))
	if r, err := http.DefaultClient.Do(request); err != nil || r.StatusCode != 200 {
		t.Fatalf("s3: %v %v", r, err)
	} else {
		r.Body.Close()
	}
	awaitThat(t, "an object of a is read on b", func() bool {
		code, body := get(t, "http://"+b.At("s3")+"/bucket/key")
		return code == 200 && body == "object"
	})
}

// TestAHostIsKilled checks that the other hosts go on. Blocks that only the killed host had are
// misses.
func TestAHostIsKilled(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a, _ := s.host(t, "a", func(c *Config) { c.Fleet.LocateTimeout = config.Duration(500 * time.Millisecond) })
	at, _, kill := s.child(t, t.TempDir())
	meet(t, 2, a)
	const n = 20
	for i := range n {
		redis(t, at, "SET "+block.Text(testSpace.String(), testAddr(i))+" of-b")
	}
	awaitThat(t, "blocks of b are read on a", func() bool {
		return redis(t, a.At("resp"), "GET "+block.Text(testSpace.String(), testAddr(0)))[0] == "of-b"
	})
	kill()
	for i := 1; i < n; i++ {
		if got := redis(t, a.At("resp"), "GET "+block.Text(testSpace.String(), testAddr(i))); got[0] != "$-1" {
			t.Errorf("block %d: %q", i, got)
		}
	}
	if got := redis(t, a.At("resp"), "SET own 1", "GET own",
		"GET "+block.Text(testSpace.String(), testAddr(0))); strings.Join(got, " ") != "+OK 1 of-b" {
		t.Errorf("a does not go on: %q", got)
	}
	meet(t, 1, a)
}

// TestCertificatesOfAnotherFleet checks that caches which do not trust each other stay alone and
// log it.
func TestCertificatesOfAnotherFleet(t *testing.T) {
	s := newSite(t)
	a, _ := s.host(t, "a", nil)
	other := t.TempDir()
	if err := pki.Bootstrap(other, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	c, log := settings(t, t.TempDir(), site{s.etcd, other}.join("b", func(c *Config) {
		c.Daemon.Heartbeat = config.Duration(time.Second)
	}))
	b, _ := begin(t, c)
	meet(t, 2, a, b)
	set(t, a, block.Text(testSpace.String(), testAddr(1)), []byte("hello"))
	awaitThat(t, "b says that a is not reached", func() bool {
		return strings.Contains(log.String(), "cannot be told what is here")
	})
	if got := redis(t, b.At("resp"), "GET "+block.Text(testSpace.String(), testAddr(1)), "SET own 1",
		"GET own"); strings.Join(got, " ") != "$-1 +OK 1" {
		t.Errorf("%q", got)
	}
	for _, d := range []*Daemon{a, b} {
		client := kv(t, d)
		awaitThat(t, "both lanes have the handshake's error, and none is in use", func() bool {
			told, err := client.Peers(t.Context(), &pb.PeersRequest{})
			return err == nil && len(told.Peers) == 1 && told.Peers[0].Lane == "" &&
				strings.Count(fmt.Sprint(told.Peers[0].Lanes), "unknown authority") == 2
		})
	}
	if !strings.Contains(log.String(), `"lane does not get through" cache=a address=`) {
		t.Error("the log does not say to which cache no lane gets through")
	}
}

// TestAloneWithEtcd checks that a cache without a cgn-kv/1 port is announced and pulls nothing.
func TestAloneWithEtcd(t *testing.T) {
	s := newSite(t)
	d, _ := s.host(t, "a", func(c *Config) {
		c.QUIC.Listen, c.GRPC.Listen, c.GRPC.Announce = "", "", true
	})
	if d.view.Load() != nil {
		t.Error("it is in a fleet")
	}
	if got := redis(t, d.At("resp"), "SET a hello", "GET a", "GET b"); strings.Join(got, " ") != "+OK hello $-1" {
		t.Errorf("%q", got)
	}
	c := d.config
	if h := d.cacheHealth(); h.GRPC != "unix://"+filepath.Join(c.Daemon.Data, "kv.sock") {
		t.Errorf("%+v", h)
	}
}

// TestPurgeWithoutQUIC purges on a cache in etcd that exchanges no blocks, and on a host of the
// fleet beside it. Each names the other as not purged.
func TestPurgeWithoutQUIC(t *testing.T) {
	s := newSite(t)
	alone, _ := s.host(t, "alone", func(c *Config) { c.QUIC.Listen, c.GRPC.Listen = "", "" })
	awaitThat(t, "etcd is there", func() bool { return alone.member.state() == "connected" })
	if got := once(t, alone, "SET a 1") + once(t, alone, "FLUSHALL") + once(t, alone, "GET a"); got != "+OK+OK$-1" {
		t.Error("without other caches:", got)
	}
	b, _ := s.host(t, "b", nil)
	meet(t, 1, b)
	for _, d := range []*Daemon{alone, b} {
		for _, other := range []*Daemon{alone, b} {
			set(t, other, "a", []byte("1"))
		}
		name, why := "b", purge.ErrAlone.Error()
		if d == b {
			name, why = "alone", purge.ErrNoAddress.Error()
		}
		got := once(t, d, "FLUSHALL")
		if !strings.HasPrefix(got, "-ERR the cache on "+name+" has not confirmed") || !strings.HasSuffix(got, why) {
			t.Error(got)
		}
		if got := once(t, d, "GET a"); got != "$-1" {
			t.Error("the host that was asked has not purged:", got)
		}
	}
	_, err := kv(t, alone).Purge(t.Context(), &pb.PurgeRequest{Everything: true})
	if err == nil || !strings.Contains(err.Error(), "the cache on b has not confirmed the purge") {
		t.Error(err)
	}
}
