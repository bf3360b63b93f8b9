package store

import (
	"context"
	"errors"
	"testing"
)

// TestDescribe describes a block in RAM, a block on SSD only, and a deleted block. Describe counts
// no use and moves nothing.
func TestDescribe(t *testing.T) {
	s, _ := tiered(t, t.TempDir(), Options{RAM: 4 << 20})
	it := item(7, true)
	it.Key, it.Attr, it.Parent, it.Expires = []byte("a key"), []byte("an attribute"), item(6, true).Addr.Digest,
		s.o.Now()+1e6
	durable(t, s, it, fill(100, '1'))
	for _, want := range []Tiers{RAM | SSD, SSD} {
		i, err := s.Describe(ctx, it.Addr)
		if err != nil {
			t.Fatal(err)
		}
		if string(i.Item.Key) != "a key" || string(i.Item.Attr) != "an attribute" || i.Item.Namespace != it.Namespace ||
			i.Item.Parent != it.Parent || i.Item.Expires != it.Expires || i.Length != 100 || i.Tiers != want ||
			i.Uses != 0 {
			t.Errorf("in %d: %+v", want, i)
		}
		if i, err := s.Stat(ctx, it.Addr); err != nil || i.Item.Namespace != it.Namespace ||
			i.Item.Parent != it.Parent || i.Tiers != want {
			t.Errorf("Stat: %+v, %v", i, err)
		}
		crowd(t, s)
	}
	if st := s.Stats(); st.Promotions != 0 || st.Hits != 0 {
		t.Errorf("%+v", st.Counts)
	}
	if _, err := s.Delete(ctx, it.Addr); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Describe(ctx, it.Addr); !errors.Is(err, ErrMiss) {
		t.Error(err)
	}
}

// TestCommitSays checks that Commit's expiry and attribute reach RAM and SSD.
func TestCommitSays(t *testing.T) {
	s, _ := tiered(t, t.TempDir(), Options{RAM: 4 << 20})
	it := item(8, false)
	it.Attr = make([]byte, 10)
	for _, length := range []int{10, 300 << 10} {
		d, err := s.Create(ctx, it, length)
		if err != nil {
			t.Fatal(err)
		}
		at := s.o.Now() + 1e6
		if _, err := d.Commit(ctx, CommitOptions{Durable: true, Expires: at, Attr: []byte("shorter")}); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			i, err := s.Describe(ctx, it.Addr)
			if err != nil || i.Item.Expires != at || string(i.Item.Attr) != "shorter" {
				t.Errorf("%+v, %v", i, err)
			}
			crowd(t, s)
		}
	}
	d, err := s.Create(ctx, it, 10)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.Commit(ctx, CommitOptions{Attr: make([]byte, 11)}); !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
}

// TestStatOfEndedContext: the caller has gone.
func TestStatOfEndedContext(t *testing.T) {
	s := open(t, Options{RAM: 4 << 20})
	put(t, s, keyed("a"), nil)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := s.Stat(ended, keyed("a").Addr); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
