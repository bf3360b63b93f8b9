package kvcached

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rpcstatus "google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/fleet"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// once returns the reply to one command.
func once(t *testing.T, d *Daemon, command string) string {
	t.Helper()
	return strings.Join(redis(t, d.At("resp"), command), " ")
}

// three returns three hosts of one fleet.
func three(t *testing.T) (s site, hosts []*Daemon) {
	t.Helper()
	s = newSite(t)
	for _, id := range []string{"a", "b", "c"} {
		d, _ := s.host(t, id, nil)
		hosts = append(hosts, d)
	}
	meet(t, 3, hosts...)
	return s, hosts
}

// object sends a request for an S3 object to a host.
func object(t *testing.T, d *Daemon, method, name, body string, header ...string) (code int, text string) {
	t.Helper()
	return objectAt(t, d.At("s3"), method, name, body, header...)
}

func objectAt(t *testing.T, at, method, name, body string, header ...string) (code int, text string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+at+"/"+name, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Body.Close()
	all, err := io.ReadAll(got.Body)
	if err != nil {
		t.Fatal(err)
	}
	return got.StatusCode, string(all)
}

// TestExpiryReachesHolders sets the expiry of a key on one host. All holders take over the expiry.
func TestExpiryReachesHolders(t *testing.T) {
	_, hosts := three(t)
	a, b, c := hosts[0], hosts[1], hosts[2]
	all := func(command, want string) func() bool {
		return func() bool {
			for _, d := range hosts {
				if got := once(t, d, command); got != want {
					return false
				}
			}
			return true
		}
	}
	for i := range 6 { // each host is the keeper of some keys
		key := fmt.Sprint("key", i)
		if got := once(t, a, "SET "+key+" v"); got != "+OK" {
			t.Fatal(got)
		}
		awaitThat(t, "all know the key", all("EXISTS "+key, ":1"))
		if i%2 == 0 {
			awaitThat(t, "c has a copy", func() bool { return once(t, c, "GET "+key) == "v" })
		}
		at := time.Now().Add(time.Hour).UnixMilli()
		if got := once(t, b, fmt.Sprint("PEXPIREAT ", key, " ", at)); got != ":1" {
			t.Fatal(got)
		}
		awaitThat(t, "all know its time", all("PEXPIRETIME "+key, fmt.Sprint(":", at)))
		if got := once(t, c, "PERSIST "+key); got != ":1" {
			t.Error(got)
		}
		awaitThat(t, "it has no time", all("TTL "+key, ":-1"))
		if got := once(t, c, "PEXPIREAT "+key+" 1"); got != ":1" {
			t.Error(got)
		}
		awaitThat(t, "it is gone", all("EXISTS "+key, ":0"))
	}
}

// TestSetIfAbsent sets one key from several clients of one host at the same time. One client gets
// OK. No client gets OK if the fleet already has the key.
func TestSetIfAbsent(t *testing.T) {
	_, hosts := three(t)
	for i := range 20 {
		d := hosts[i%3]
		var wg sync.WaitGroup
		answers := make([]string, 4)
		for n := range answers {
			wg.Go(func() { answers[n] = once(t, d, fmt.Sprintf("SET lock%d %d NX", i, n)) })
		}
		wg.Wait()
		winner := slices.Index(answers, "+OK")
		if got := strings.Count(strings.Join(answers, ""), "+OK"); got != 1 {
			t.Fatalf("%d: %q", i, answers)
		}
		for _, d := range hosts {
			awaitThat(t, "all read it", func() bool {
				return once(t, d, fmt.Sprint("GET lock", i)) == fmt.Sprint(winner)
			})
			if got := once(t, d, fmt.Sprintf("SETNX lock%d other", i)); got != ":0" {
				t.Error(got)
			}
		}
	}
	for i := range 6 {
		name := fmt.Sprint("bucket/once", i)
		var wg sync.WaitGroup
		codes := make([]int, 3)
		for n := range codes {
			wg.Go(func() { codes[n], _ = object(t, hosts[i%3], "PUT", name, fmt.Sprint(n), "If-None-Match", "*") })
		}
		wg.Wait()
		slices.Sort(codes)
		if n := fmt.Sprint(codes); n != "[200 412 412]" {
			t.Errorf("%s: %s", name, n)
		}
	}
}

// TestManyMissingKeys checks that a lookup of many keys asks each keeper once.
func TestManyMissingKeys(t *testing.T) {
	_, hosts := three(t)
	once(t, hosts[1], "SET there v")
	var keys strings.Builder
	for i := range 500 {
		fmt.Fprint(&keys, " missing", i)
	}
	awaitThat(t, "it is known", func() bool { return once(t, hosts[0], "EXISTS there") == ":1" })
	before := hosts[0].view.Load().Stats().Located
	got := redis(t, hosts[0].At("resp"), "MGET"+keys.String())
	if len(got) == 0 || got[0] != "*500" {
		t.Fatal(got)
	}
	if n := hosts[0].view.Load().Stats().Located - before; n > 2 {
		t.Errorf("%d questions", n)
	}
	if got := once(t, hosts[0], "GET there"); got != "v" {
		t.Error(got)
	}
}

// TestPurgeOfTheFleet purges on one host. The blocks are gone on all hosts and do not come back
// with pulls under way.
func TestPurgeOfTheFleet(t *testing.T) {
	_, hosts := three(t)
	a, b, c := hosts[0], hosts[1], hosts[2]
	value := bytes.Repeat([]byte("x"), 100_000)
	for round := range 4 {
		const n = 40
		for i := range n {
			set(t, b, block.Text(testSpace.String(), testAddr(round*n+i)), value)
		}
		set(t, b, "kept", []byte("1"))
		for _, d := range hosts {
			d.view.Load().Know(testSpace.String())
		}
		var wg sync.WaitGroup
		for _, d := range []*Daemon{a, c} {
			wg.Go(func() {
				for i := range n {
					if got, err := d.view.Load().Get(t.Context(), testAddr(round*n+i)); err == nil {
						got.Release()
					}
				}
			})
		}
		r, err := kv(t, c).Purge(t.Context(), &pb.PurgeRequest{Model: testSpace.Model})
		if err != nil || len(r.Hosts) != 3 || r.Hosts[0].Host != "c" || r.Blocks < n {
			t.Fatal(r, err)
		}
		wg.Wait()
		for _, d := range hosts {
			for i := range n {
				if _, err := d.store.Stat(t.Context(), testAddr(round*n+i)); err == nil {
					t.Errorf("round %d: block %d is on %s", round, i, d.config.cacheID())
				}
			}
			awaitThat(t, "kept is kept", func() bool { return once(t, d, "EXISTS kept") == ":1" })
		}
	}
	if got := once(t, a, "FLUSHDB") + once(t, b, "EXISTS kept"); got != "+OK:0" {
		t.Error(got)
	}
	set(t, b, "kept", []byte("2"))
	awaitThat(t, "it is read after a purge", func() bool { return once(t, c, "GET kept") == "2" })
}

// TestAHostDoesNotAnswer checks that keys are served while a host is silent. A purge returns an
// error that names the host.
func TestAHostDoesNotAnswer(t *testing.T) {
	s := newSite(t)
	a, _ := s.host(t, "a", nil)
	b, _ := s.host(t, "b", nil)
	meet(t, 2, a, b)
	view := a.view.Load()
	gone := fleet.Member{ID: "b", Address: "127.0.0.1:1", Lane: "tls"}
	view.SetMembers([]fleet.Member{gone}) // each heartbeat in etcd undoes this
	for _, c := range [][2]string{{"SET key 1", "+OK"}, {"GET key", "1"}, {"EXPIRE key 5", ":1"}, {"DEL key", ":1"},
		{"SET key 1 NX", "+OK"}} {
		view.SetMembers([]fleet.Member{gone})
		if got := once(t, a, c[0]); got != c[1] {
			t.Errorf("%s: %s", c[0], got)
		}
	}
	view.SetMembers([]fleet.Member{gone})
	if got := once(t, a, "FLUSHALL"); !strings.HasPrefix(got, "-ERR the cache on b has not confirmed the purge") ||
		!strings.Contains(got, "this host and all others were purged") {
		t.Error(got)
	}
	view.SetMembers([]fleet.Member{gone})
	r, err := kv(t, a).Purge(t.Context(), &pb.PurgeRequest{Everything: true})
	if err == nil || !strings.Contains(err.Error(), "the cache on b has not confirmed the purge") {
		t.Fatal(r, err)
	}
	details := rpcstatus.Convert(err).Details()
	if p, ok := details[0].(*pb.PurgeResponse); !ok || len(p.Hosts) != 2 || p.Hosts[0].Error != "" ||
		p.Hosts[1].Error == "" {
		t.Error(details)
	}
}
