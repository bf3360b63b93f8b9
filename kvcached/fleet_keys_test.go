package kvcached

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	rpcstatus "google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/fleet"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// once is one command's answer.
func once(t *testing.T, d *Daemon, command string) string {
	t.Helper()
	return strings.Join(redis(t, d.At("resp"), command), " ")
}

// ask is once, again until the hosts have answered each other in time.
func ask(t *testing.T, d *Daemon, command string) (got string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		if got = once(t, d, command); !strings.HasPrefix(got, "-TRYAGAIN") || time.Now().After(deadline) {
			return got
		}
	}
}

// three are hosts of one fleet.
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

// object asks a host for an S3 object.
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
	if got.StatusCode == 503 { // the hosts have not answered each other in time
		got.Body.Close()
		return objectAt(t, at, method, name, body, header...)
	}
	defer got.Body.Close()
	all, err := io.ReadAll(got.Body)
	if err != nil {
		t.Fatal(err)
	}
	return got.StatusCode, string(all)
}

// TestExpiryIsOfTheFleet: a key's time is seen, set and taken away on whichever host, and it is
// over on all.
func TestExpiryIsOfTheFleet(t *testing.T) {
	_, hosts := three(t)
	a, b, c := hosts[0], hosts[1], hosts[2]
	for i := range 6 { // all hosts keep some
		key := fmt.Sprint("key", i)
		if got := ask(t, a, "SET "+key+" v"); got != "+OK" {
			t.Fatal(got)
		}
		for _, d := range hosts {
			if got := ask(t, d, "EXISTS "+key) + ask(t, d, "TTL "+key); got != ":1:-1" {
				t.Fatalf("%s of a: %s", key, got)
			}
		}
		if i%2 == 0 {
			awaitThat(t, "c has a copy", func() bool { return ask(t, c, "GET "+key) == "v" })
		}
		if got := ask(t, b, "EXPIRE "+key+" 1000"); got != ":1" {
			t.Fatal(got)
		}
		for _, d := range hosts {
			n, err := strconv.Atoi(ask(t, d, "PTTL "+key)[1:])
			if err != nil || n < 1 || n > 1_000_000 {
				t.Errorf("%s is over in %d ms, %v", key, n, err)
			}
		}
		if got := ask(t, c, "PERSIST "+key) + ask(t, a, "TTL "+key) + ask(t, b, "PERSIST "+key); got != ":1:-1:0" {
			t.Error(got)
		}
		if got := ask(t, c, "PEXPIREAT "+key+" 1") + ask(t, a, "EXISTS "+key) + ask(t, b, "TTL "+key) + ask(t, b,
			"EXPIRE "+key+" 9"); got != ":1:0:-2:0" {
			t.Error(got)
		}
	}
	for i := range 2 { // it ends everywhere, whoever has a copy
		key := fmt.Sprint("short", i)
		ask(t, a, "SET "+key+" v")
		awaitThat(t, "b has a copy", func() bool { return ask(t, b, "GET "+key) == "v" })
		if got := ask(t, c, "PEXPIRE "+key+" 300"); got != ":1" {
			t.Error(got)
		}
		awaitThat(t, "it is over", func() bool {
			return ask(t, a, "GET "+key)+ask(t, b, "GET "+key)+ask(t, c, "EXISTS "+key) == "$-1$-1:0"
		})
	}
}

// TestSetIfAbsent: of hosts on which one key is set at the same time one is told OK.
func TestSetIfAbsent(t *testing.T) {
	_, hosts := three(t)
	for i := range 20 {
		var wg sync.WaitGroup
		answers := make([]string, len(hosts))
		for n, d := range hosts {
			wg.Go(func() { answers[n] = ask(t, d, fmt.Sprintf("SET lock%d %d NX", i, n)) })
		}
		wg.Wait()
		winner := -1
		for n, got := range answers {
			if got == "+OK" && winner < 0 {
				winner = n
			} else if got != "$-1" {
				t.Fatalf("%d: %q", i, answers)
			}
		}
		if winner < 0 {
			t.Fatalf("%d: %q", i, answers)
		}
		for _, d := range hosts {
			if got := ask(t, d, fmt.Sprint("GET lock", i)); got != fmt.Sprint(winner) {
				t.Errorf("%d: %s, not %d's", i, got, winner)
			}
			if got := ask(t, d, fmt.Sprintf("SETNX lock%d other", i)); got != ":0" {
				t.Error(got)
			}
		}
	}
	for i := range 6 {
		name := fmt.Sprint("bucket/once", i)
		var wg sync.WaitGroup
		codes := make([]int, len(hosts))
		for n, d := range hosts {
			wg.Go(func() { codes[n], _ = object(t, d, "PUT", name, fmt.Sprint(n), "If-None-Match", "*") })
		}
		wg.Wait()
		if n := fmt.Sprint(codes); n != "[200 412 412]" && n != "[412 200 412]" && n != "[412 412 200]" {
			t.Errorf("%s: %s", name, n)
		}
	}
}

// TestManyMissingKeys: one question to each keeper, however many keys.
func TestManyMissingKeys(t *testing.T) {
	_, hosts := three(t)
	ask(t, hosts[1], "SET there v")
	var keys strings.Builder
	for i := range 500 {
		fmt.Fprint(&keys, " missing", i)
	}
	// A claim is granted only when its keeper has been told everything.
	for i := range 12 {
		if got := ask(t, hosts[0], fmt.Sprintf("SETNX settled%d v", i)) + ask(t, hosts[1],
			fmt.Sprintf("SETNX settled%d v", i)); got != ":1:0" {
			t.Fatal(got)
		}
	}
	before := hosts[0].view.Load().Stats().Located
	got := redis(t, hosts[0].At("resp"), "MGET"+keys.String())
	if len(got) == 0 || got[0] != "*500" {
		t.Fatal(got)
	}
	if n := hosts[0].view.Load().Stats().Located - before; n > 2 {
		t.Errorf("%d questions", n)
	}
	if got := ask(t, hosts[0], "GET there"); got != "v" {
		t.Error(got)
	}
}

// TestPurgeOfTheFleet: what is purged on one host is gone on all, and does not come back with pulls
// that are under way.
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
			if got := ask(t, d, "EXISTS kept"); got != ":1" {
				t.Error(got)
			}
		}
	}
	if got := ask(t, a, "FLUSHDB") + ask(t, b, "EXISTS kept"); got != "+OK:0" {
		t.Error(got)
	}
	set(t, b, "kept", []byte("2"))
	if got := ask(t, c, "GET kept"); got != "2" {
		t.Error("after a purge:", got)
	}
}

// TestAHostIsAway: a host that is counted out comes back with an object on its SSD that was deleted
// meanwhile, and with one that was set anew; nobody sees them.
func TestAHostIsAway(t *testing.T) {
	s := newSite(t)
	a, _ := s.host(t, "a", nil)
	b, _ := s.host(t, "b", nil)
	c, _ := settings(t, t.TempDir(), s.join("c", nil))
	away, stop := begin(t, c)
	meet(t, 3, a, b, away)
	const n = 12
	for i := range n {
		if code, text := object(t, away, "PUT", fmt.Sprint("bucket/", i), "old", "X-Cgn-Durable", "true"); code != 200 {
			t.Fatal(code, text)
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	meet(t, 2, a, b)
	for i := range n {
		switch i % 3 {
		case 0:
			if code, text := object(t, a, "DELETE", fmt.Sprint("bucket/", i), ""); code != 204 {
				t.Fatal(code, text)
			}
		case 1:
			if code, text := object(t, b, "PUT", fmt.Sprint("bucket/", i), "new"); code != 200 {
				t.Fatal(code, text)
			}
		}
	}
	back, _ := begin(t, c)
	meet(t, 3, a, b, back)
	awaitThat(t, "the host has forgotten", func() bool { return back.view.Load().Stats().Exhumed == 2*n/3 })
	for i := range n {
		for _, d := range []*Daemon{a, b, back} {
			want := []string{"404", "200 new", "200 old"}[i%3]
			awaitThat(t, fmt.Sprint("object ", i, " on ", d.config.cacheID(), " is ", want), func() bool {
				code, text := object(t, d, "GET", fmt.Sprint("bucket/", i), "")
				got := strconv.Itoa(code)
				if code == 200 {
					got += " " + text
				}
				if i%3 != 2 && text == "old" {
					t.Fatalf("object %d on %s is the old one", i, d.config.cacheID())
				}
				return got == want
			})
		}
	}
	awaitThat(t, "nothing is remembered any more", func() bool {
		return a.view.Load().Stats().Graves+b.view.Load().Stats().Graves == 0
	})
}

// TestAHostDoesNotAnswer: what cannot be told for certain is an error that names the host and says
// until when.
func TestAHostDoesNotAnswer(t *testing.T) {
	s := newSite(t)
	a, _ := s.host(t, "a", nil)
	b, _ := s.host(t, "b", nil)
	meet(t, 2, a, b)
	view := a.view.Load()
	key := ""
	for i := 0; key == ""; i++ { // one that b has and a keeps
		name := fmt.Sprint("key", i)
		ask(t, b, "SET "+name+" v")
		before := view.Stats().Located
		if got := ask(t, a, "EXISTS "+name); got != ":1" {
			t.Fatal(got)
		}
		if view.Stats().Located == before {
			key = name
		}
	}
	gone := fleet.Member{ID: "b", Address: "127.0.0.1:1", Lane: "tls"}
	awaitThat(t, "b is taken for dead", func() bool {
		view.SetMembers([]fleet.Member{gone})
		return strings.HasPrefix(once(t, a, "EXISTS "+key), "-TRYAGAIN")
	})
	for _, command := range []string{"DEL " + key, "TTL " + key, "EXPIRE " + key + " 5", "SET " + key + " 1 NX",
		"SET " + key + " 1 XX"} {
		view.SetMembers([]fleet.Member{gone}) // etcd tells otherwise with each heartbeat
		got := once(t, a, command)
		if !strings.HasPrefix(got, "-TRYAGAIN the cache on b does not answer") ||
			!strings.Contains(got, time.Now().UTC().Format("2006-01-02")) {
			t.Errorf("%s: %s", command, got)
		}
	}
	view.SetMembers([]fleet.Member{gone})
	if got := once(t, a, "FLUSHALL"); !strings.HasPrefix(got, "-TRYAGAIN the cache on b was not purged") ||
		!strings.Contains(got, "this host and all others were purged") {
		t.Error(got)
	}
	view.SetMembers([]fleet.Member{gone})
	r, err := kv(t, a).Purge(t.Context(), &pb.PurgeRequest{Everything: true})
	if err == nil || !strings.Contains(err.Error(), "the cache on b was not purged") {
		t.Fatal(r, err)
	}
	details := rpcstatus.Convert(err).Details()
	if p, ok := details[0].(*pb.PurgeResponse); !ok || len(p.Hosts) != 2 || p.Hosts[0].Error != "" ||
		p.Hosts[1].Error == "" {
		t.Error(details)
	}
}
