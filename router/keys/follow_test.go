package keys

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
)

// etcdFollower returns a follower of etcd without an etcd, and the functions that etcd's events
// call.
func etcdFollower() (*Follower, cluster.Handler) {
	f := &Follower{Set: new(Set), Log: slog.New(slog.DiscardHandler)}
	return f, f.handler()
}

// entry returns the entry of a record.
func entry(t *testing.T, r *Record) cluster.Entry {
	t.Helper()
	doc, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return cluster.Entry{Key: cluster.KeysPrefix + r.ID, Value: doc}
}

// TestMeanwhile checks that the log says what counts while etcd is away, before and after the first
// reading.
func TestMeanwhile(t *testing.T) {
	f, h := etcdFollower()
	var log bytes.Buffer
	f.Log = slog.New(slog.NewTextHandler(&log, nil))
	for _, want := range []string{"none is known yet", "the keys read last count on"} {
		want = "API keys not read; " + want
		h.Lost(errors.New("gone"))
		if !strings.Contains(log.String(), want) {
			t.Errorf("%s, want %s", log.String(), want)
		}
		log.Reset()
		h.List(cluster.Listing{})
	}
}

// TestSharedTexts checks that records of etcd that share a text do not count, and hinder no other.
func TestSharedTexts(t *testing.T) {
	f, h := etcdFollower()
	a, textA := key(t)
	b, textB := key(t)
	c, textC := key(t)
	sum := b.SHA256
	b.Previous = &Previous{strings.ToUpper(a.SHA256), time.Now().Add(time.Hour)}
	h.List(cluster.Listing{Entries: []cluster.Entry{entry(t, a), entry(t, b)}})
	h.Put(entry(t, c))
	now := time.Now()
	x, y, z := find(t, f.Set, textA, now), find(t, f.Set, textB, now), find(t, f.Set, textC, now)
	if x != Unknown || y != Unknown || z != None {
		t.Errorf("%v, %v, the third %v", x, y, z)
	}
	if !strings.Contains(f.Problem(), "sha256") {
		t.Errorf("problem %q", f.Problem())
	}
	c.Revoked = &now
	h.Put(entry(t, c))
	b.Previous = &Previous{sum, now.Add(time.Hour)} // its own
	h.Put(entry(t, b))
	x, y, z = find(t, f.Set, textA, now), find(t, f.Set, textB, now), find(t, f.Set, textC, now)
	if x != None || y != Unknown || z != Revoked {
		t.Errorf("%v, %v, the third %v", x, y, z)
	}
	b.Previous = nil
	h.Put(entry(t, b))
	if y := find(t, f.Set, textB, now); y != None || f.Problem() != "" {
		t.Errorf("%v, problem %q", y, f.Problem())
	}
}

// TestForeignIDs checks that a value of etcd under the id of another key does not count.
func TestForeignIDs(t *testing.T) {
	f, h := etcdFollower()
	a, textA := key(t)
	b, textB := key(t)
	under := entry(t, b)
	under.Key = cluster.KeysPrefix + a.ID
	h.List(cluster.Listing{Entries: []cluster.Entry{entry(t, a)}})
	h.Put(under)
	now := time.Now()
	if x, y := find(t, f.Set, textA, now), find(t, f.Set, textB, now); x != Unknown || y != Unknown {
		t.Errorf("%v, %v", x, y)
	}
	if !strings.Contains(f.Problem(), "has the id "+b.ID) {
		t.Errorf("problem %q", f.Problem())
	}
}

// TestLostData checks that the keys known last count on while etcd is empty, and only then.
func TestLostData(t *testing.T) {
	a, textA := key(t)
	b, textB := key(t)
	for what, store := range map[string]func(cluster.Handler){
		"a change":  func(h cluster.Handler) { h.Put(entry(t, b)) },
		"a listing": func(h cluster.Handler) { h.List(cluster.Listing{Entries: []cluster.Entry{entry(t, b)}}) },
	} {
		f, h := etcdFollower()
		h.List(cluster.Listing{Entries: []cluster.Entry{entry(t, a)}})
		for _, l := range []cluster.Listing{{DataLost: true}, {}, {AfterOutage: true}} {
			h.List(l)
			if why := find(t, f.Set, textA, time.Now()); why != None || f.Problem() == "" {
				t.Errorf("%s: %+v: %v, problem %q", what, l, why, f.Problem())
			}
		}
		store(h)
		x, y := find(t, f.Set, textA, time.Now()), find(t, f.Set, textB, time.Now())
		if x != Unknown || y != None || f.Problem() != "" {
			t.Errorf("after %s: lost %v, stored %v, problem %q", what, x, y, f.Problem())
		}
		h.List(cluster.Listing{})
		if why := find(t, f.Set, textB, time.Now()); why != Unknown {
			t.Errorf("after %s a key that was deleted during an outage: %v", what, why)
		}
	}
}
