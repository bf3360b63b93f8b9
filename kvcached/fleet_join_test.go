package kvcached

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cognitora/dataplane/internal/etcdserver"
	"github.com/cognitora/dataplane/kv/block"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// TestAskedAsSoonAsItStarts: what a host that is back says from the first moment on is so in the
// whole fleet, or "try again", and no read is of an old value.
func TestAskedAsSoonAsItStarts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a, _ := s.host(t, "a", nil)
	c, _ := settings(t, t.TempDir(), s.join("b", nil))
	b, stop := begin(t, c)
	meet(t, 2, a, b)
	onSSD(t, b, "old", "set", "del", "lock", "there")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	meet(t, 1, a)
	for _, command := range []string{"SET set new", "DEL del", "SET lock a NX", "SET there 1", "SET gone 1"} {
		if got := ask(t, a, command); got[0] == '-' {
			t.Fatal(command, got)
		}
	}
	b, _ = begin(t, c)
	wants := map[string]string{
		"EXISTS there": ":1", "EXISTS del": ":0", "SET lock b NX": "$-1", "SETNX lock b": ":0",
		"EXPIRE there 100": ":1", "STRLEN set": ":3",
		"MSETNX lock b x b": ":0", "GET set": "new", "GET del": "$-1", "GET lock": "a", "GETRANGE there 0 9": "1",
	}
	rounds := 0
	awaitThat(t, "all of the fleet is known to b", func() bool {
		rounds++
		good := 0
		for command, want := range wants {
			got := once(t, b, command)
			switch {
			case got == want:
				good++
			case strings.HasPrefix(got, "-TRYAGAIN "):
			case strings.HasPrefix(command, "GET") && (got == "$-1" || got == ""): // a miss
			default:
				t.Fatalf("%s: %s in round %d", command, got, rounds)
			}
		}
		return good == len(wants)
	})
	t.Log(rounds, "rounds")
	if got := ask(t, b, "DEL gone") + ask(t, b, "SET set newer") + ask(t, a, "GET set") + ask(t, a,
		"GET lock"); got != ":1+OKnewera" {
		t.Error(got)
	}
}

// TestKilledAndAskedUnderLoad: while a host is killed and started again, and keys are set on the
// other, no read on either is of a value from before one that was acknowledged.
func TestKilledAndAskedUnderLoad(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a, _ := s.host(t, "a", nil)
	dir := t.TempDir()
	at, _, kill := s.child(t, dir)
	meet(t, 2, a)
	const n = 8
	var acknowledged [n]atomic.Int64
	var all sync.WaitGroup
	var end atomic.Bool
	defer all.Wait()
	defer end.Store(true)
	all.Go(func() {
		for value := int64(1); !end.Load(); value++ {
			for i := range n {
				if once(t, a, fmt.Sprint("SET key", i, " ", value)) == "+OK" {
					acknowledged[i].Store(value)
				}
			}
		}
	})
	check := func(i int, least int64, got string) bool {
		value, err := strconv.ParseInt(got, 10, 64)
		if err == nil && value < least {
			t.Errorf("key%d is %d after %d was acknowledged", i, value, least)
		}
		return err == nil
	}
	for round := range 2 {
		seen := 0
		awaitThat(t, "b has keys on its SSD", func() bool {
			for i := range n {
				least := acknowledged[i].Load()
				check(i, least, redis(t, at, fmt.Sprint("GET key", i))[0])
				if inSSD(t, dir, at, fmt.Sprint("key", i)) {
					seen++
				}
			}
			return seen > 0
		})
		kill()
		before := acknowledged[0].Load()
		awaitThat(t, "a goes on", func() bool { return acknowledged[0].Load() > before+1 })
		at, _, kill = s.child(t, dir)
		reads := 0
		awaitThat(t, "b reads again", func() bool {
			for i := range n {
				least := acknowledged[i].Load()
				if check(i, least, redis(t, at, fmt.Sprint("GET key", i))[0]) {
					reads++
				}
				least = acknowledged[i].Load()
				check(i, least, once(t, a, fmt.Sprint("GET key", i)))
			}
			return reads > 10 || t.Failed()
		})
		t.Log("round", round)
	}
}

// ofNoFleetYet holds S3 and gRPC to what a cache answers before etcd has named its fleet.
func ofNoFleetYet(t *testing.T, a *Daemon) {
	t.Helper()
	for _, method := range []string{"PUT", "DELETE"} {
		r, _ := http.NewRequestWithContext(t.Context(), method, "http://"+a.At("s3")+"/bucket/key", http.NoBody)
		got, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		got.Body.Close()
		if got.StatusCode != 503 || got.Header.Get("Retry-After") == "" {
			t.Error(method, got.Status, got.Header)
		}
	}
	if code, _ := get(t, "http://"+a.At("s3")+"/bucket/key"); code != 404 {
		t.Error("GET of an object:", code)
	}
	key := block.OfKey(block.Namespace{Space: "resp.0"}.ID(), []byte("k"))
	_, err := kv(t, a).Delete(t.Context(), &pb.DeleteRequest{Namespace: block.Namespace{Space: "resp.0"}.String(),
		Digests: key.Digest[:]})
	if err == nil || !strings.Contains(err.Error(), "Unavailable") ||
		!strings.Contains(err.Error(), "the fleet is not known yet") {
		t.Error("gRPC:", err)
	}
}

// TestEtcdIsAwayAtTheStart: until etcd has named the fleet clients' own keys are misses and cannot
// be set; blocks by address are served. Later its end changes nothing.
func TestEtcdIsAwayAtTheStart(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	dir := t.TempDir()
	etcd, err := etcdserver.Start(dir, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.etcd = etcd.Endpoint()
	etcd.Close()
	c, log := settings(t, t.TempDir(), s.join("a", nil))
	a, _ := begin(t, c)
	admin := "http://" + a.AdminAddr().String()
	if code, body := get(t, admin+"/readyz"); code != 503 ||
		!strings.Contains(body, `"reason":"the fleet is not known yet: etcd has not named its caches`) {
		t.Error(code, body)
	}
	if r, err := kv(t, a).Peers(t.Context(), &pb.PeersRequest{}); err != nil ||
		!strings.Contains(r.Unknown, "etcd has not named its caches") {
		t.Error(r, err)
	}
	if _, body := get(t, admin+"/metrics"); !strings.Contains(body, "cgn_kvcached_fleet_joined 0\n") {
		t.Error("no cgn_kvcached_fleet_joined 0")
	}
	for _, command := range []string{"SET k 1", "SET k " + strings.Repeat("v", 5000), "SET k 1 NX", "DEL k", "EXISTS k",
		"EXPIRE k 9", "MSET k 1 l 2", "MSETNX k 1", "GETSET k 1", "TTL k", "FLUSHDB"} {
		if got := once(t, a, command); !strings.HasPrefix(got,
			"-TRYAGAIN the fleet is not known yet: etcd has not named its caches") {
			t.Errorf("%.20s: %s", command, got)
		}
	}
	address := block.Text(testSpace.String(), testAddr(1))
	got := redis(t, a.At("resp"), "GET k", "SET "+address+" block", "GET "+address, "DEL "+address)
	if strings.Join(got, " ") != "$-1 +OK block :1" {
		t.Errorf("%q", got)
	}
	ofNoFleetYet(t, a)
	awaitThat(t, "the log says so", func() bool {
		return strings.Contains(log.String(), "the cache has not joined its fleet") &&
			strings.Contains(log.String(), "etcd.endpoints")
	})
	if etcd, err = etcdserver.Start(dir, strings.TrimPrefix(s.etcd, "http://")); err != nil {
		t.Fatal(err)
	}
	meet(t, 1, a)
	if code, body := get(t, admin+"/readyz"); code != 200 {
		t.Error(code, body)
	}
	etcd.Close()
	awaitThat(t, "etcd is lost", func() bool { return a.member.state() == "lost" })
	if got = redis(t, a.At("resp"), "SET k 1 NX", "GET k", "DEL k"); strings.Join(got, " ") != "+OK 1 :1" {
		t.Errorf("%q", got)
	}
	if n := strings.Count(log.String(), "the cache has not joined its fleet"); n != 1 {
		t.Errorf("logged %d times", n)
	}
}
