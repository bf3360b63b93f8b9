package kvcached

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/residency"
	"github.com/cognitora/dataplane/kvcached/store"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// onSSD sets keys on a host, and reads them until they are on its SSD.
func onSSD(t *testing.T, d *Daemon, value string, keys ...string) {
	t.Helper()
	space := block.Namespace{Space: "resp.0"}
	for _, key := range keys {
		if got := ask(t, d, "SET "+key+" "+value); got != "+OK" {
			t.Fatal(got)
		}
		awaitThat(t, key+" is on the SSD", func() bool {
			ask(t, d, "GET "+key)
			i, err := d.store.Stat(t.Context(), block.OfKey(space.ID(), []byte(key)))
			return err == nil && i.Tiers&store.SSD != 0
		})
	}
}

// TestTheOnlyOtherHostIsAway: what is set, deleted or said to be over on a host that is alone
// meanwhile counts on the other one when it is back.
func TestTheOnlyOtherHostIsAway(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a, _ := s.host(t, "a", nil)
	c, _ := settings(t, t.TempDir(), s.join("b", nil))
	away, stop := begin(t, c)
	meet(t, 2, a, away)
	onSSD(t, away, "old", "set", "getset", "setnx", "del", "expire", "persist", "append", "kept")
	for _, name := range []string{"bucket/put", "bucket/once", "bucket/delete", "bucket/kept"} {
		if code, text := object(t, away, "PUT", name, "old", "X-Cgn-Durable", "true"); code != 200 {
			t.Fatal(code, text)
		}
	}
	for _, key := range []string{"expire", "persist"} { // a has a copy, too
		awaitThat(t, key+" is on a", func() bool { return ask(t, a, "GET "+key) == "old" })
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	meet(t, 1, a)
	for command, want := range map[string]string{
		"SET set new": "+OK", "GETSET getset new": "$-1", "SETNX setnx new": ":1", "DEL del": ":0",
		"PEXPIRE expire 1":    ":1",
		"EXPIRE persist 3600": ":1", "SET append new GET": "$-1",
	} {
		if got := once(t, a, command); got != want {
			t.Errorf("%s: %s", command, got)
		}
	}
	for _, r := range [][]string{{"PUT", "bucket/put", "X-Cgn-Durable", "true"}, {"PUT", "bucket/once", "If-None-Match",
		"*"}, {"DELETE", "bucket/delete"}} {
		if code, text := object(t, a, r[0], r[1], "new", r[2:]...); code >= 300 && r[0] == "PUT" {
			t.Error(r, code, text)
		}
	}
	back, _ := begin(t, c)
	meet(t, 2, a, back)
	awaitThat(t, "the host has forgotten", func() bool { return a.view.Load().Stats().Graves == 0 })
	for _, d := range []*Daemon{back, a} {
		for key, want := range map[string]string{"set": "new", "getset": "new", "setnx": "new", "del": "$-1",
			"expire": "$-1", "persist": "old", "append": "new", "kept": "old"} {
			awaitThat(t, fmt.Sprint(key, " on ", d.config.cacheID(), " is ", want), func() bool {
				got := ask(t, d, "GET "+key)
				if got == "old" && want != "old" {
					t.Fatal(key, " is the old one on ", d.config.cacheID())
				}
				return got == want
			})
		}
		for name, want := range map[string]string{"put": "200 new", "once": "200 new", "delete": "404",
			"kept": "200 old"} {
			awaitThat(t, name+" is "+want, func() bool {
				code, text := object(t, d, "GET", "bucket/"+name, "")
				got := fmt.Sprint(code, " ", text)
				if strings.HasSuffix(got, "old") && !strings.HasSuffix(want, "old") {
					t.Fatal(name, " is the old one on ", d.config.cacheID())
				}
				return strings.HasPrefix(got, want)
			})
		}
	}
	if got := ask(t, back, "TTL persist"); got == ":-1" {
		t.Error("the time of a key is not known to the host that is back")
	}
}

// TestAHostIsKilledAndBack: what is set as soon as a host has died counts there when it is back,
// before and after it is counted out.
func TestAHostIsKilledAndBack(t *testing.T) {
	for _, counted := range []bool{true, false} {
		t.Run(fmt.Sprint("counted_out=", counted), func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			a, _ := s.host(t, "a", nil)
			dir := t.TempDir()
			resp, s3, kill := s.child(t, dir)
			meet(t, 2, a)
			awaitThat(t, "b has joined", func() bool { return redis(t, resp, "EXISTS key0")[0] == ":0" })
			const n = 8
			for i := range n { // both hosts keep some
				redis(t, resp, fmt.Sprint("SET key", i, " old"), fmt.Sprint("SET short", i, " old"),
					fmt.Sprint("SET del", i, " old"))
				for _, key := range []string{"key", "short", "del"} {
					awaitThat(t, "it is on the SSD of b", func() bool {
						return inSSD(t, dir, resp, fmt.Sprint(key, i))
					})
				}
				if code, text := objectAt(t, s3, "PUT", fmt.Sprint("bucket/", i), "old", "X-Cgn-Durable",
					"true"); code != 200 {
					t.Fatal(code, text)
				}
			}
			kill()
			for i := range n {
				got := once(t, a, fmt.Sprint("SET key", i, " new")) + once(t, a, fmt.Sprint("SET short", i,
					" new PX 1"))
				if got != "+OK+OK" {
					t.Fatal(got)
				}
				if code, text := object(t, a, "PUT", fmt.Sprint("bucket/", i), "new"); code != 200 {
					t.Fatal(code, text)
				}
				once(t, a, fmt.Sprint("DEL del", i)) // an error, and done later
			}
			if counted {
				meet(t, 1, a)
			}
			resp, s3, _ = s.child(t, dir)
			meet(t, 2, a)
			for i := range n {
				for key, want := range map[string]string{"key": "new", "short": "$-1", "del": "$-1"} {
					awaitThat(t, fmt.Sprint(key, i, " is ", want, " on both"), func() bool {
						get := fmt.Sprint("GET ", key, i)
						return redis(t, resp, get)[0] == want && once(t, a, get) == want
					})
				}
				awaitThat(t, "the object is the new one", func() bool {
					_, onA := object(t, a, "GET", fmt.Sprint("bucket/", i), "")
					_, onB := objectAt(t, s3, "GET", fmt.Sprint("bucket/", i), "")
					return onA == "new" && onB == "new"
				})
			}
		})
	}
}

// inSSD reads a key on a host that is a process of its own, and tells whether it is on the host's
// SSD.
func inSSD(t *testing.T, dir, resp, key string) bool {
	t.Helper()
	redis(t, resp, "GET "+key)
	conn, err := grpc.NewClient("unix://"+dir+"/kv.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	space := block.Namespace{Space: "resp.0"}
	a := block.OfKey(space.ID(), []byte(key))
	look, err := pb.NewKvClient(conn).Lookup(t.Context(), &pb.LookupRequest{Namespace: space.String(),
		Digest: a.Digest[:], Layer: a.Layer})
	if err != nil {
		t.Fatal(err)
	}
	return residency.Tiers(look.Tiers)&residency.Disk != 0
}
