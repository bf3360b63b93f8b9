//go:build linux && cgo && rdma

package transport

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/rdma"
	"github.com/cognitora/dataplane/rdma/verbs"
)

// tallies count the bytes read by each card.
type tallies map[string]*atomic.Int64

func (b tallies) open(name string) (rdma.Device, error) {
	d, err := verbs.Open(name, verbs.Options{})
	if err != nil {
		return nil, err
	}
	return talliedDevice{d, b[name]}, nil
}

// await waits until a card has read four more large blocks. why returns the reason if it does not.
func (b tallies) await(t *testing.T, what, card string, why func() string) {
	t.Helper()
	before, end := b[card].Load(), time.Now().Add(120*time.Second)
	for b[card].Load() < before+4*stripeAbove {
		if time.Now().After(end) {
			t.Fatalf("%s: nothing is read over %s: %s", what, card, why())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

type talliedDevice struct {
	rdma.Device
	bytes *atomic.Int64
}

func (d talliedDevice) Pair(o rdma.PairOptions) (rdma.Pair, error) {
	p, err := d.Device.Pair(o)
	if err != nil {
		return nil, err
	}
	return talliedPair{p, d.bytes}, nil
}

type talliedPair struct {
	rdma.Pair
	bytes *atomic.Int64
}

func (p talliedPair) Read(ctx context.Context, reads []rdma.Read) error {
	err := p.Pair.Read(ctx, reads)
	for i := range reads {
		if err == nil {
			p.bytes.Add(int64(len(reads[i].Into)))
		}
	}
	return err
}

// secondCard makes a second card in software beside RDMA_DEVICE, in a network of its own.
func secondCard(t *testing.T) (name, link string) {
	t.Helper()
	name, link = "second0", "secondlink0"
	command(t, "ip link add "+link+" mtu 9000 type dummy")
	t.Cleanup(func() { command(t, "ip link delete "+link) }) // deletes the card, too
	command(t, "ip addr add 198.51.100.1/24 dev "+link)
	command(t, "ip link set "+link+" up")
	command(t, "rdma link add "+name+" type rxe netdev "+link)
	awaited(t, "it has its address", func() bool {
		gids, _ := filepath.Glob("/sys/class/infiniband/" + name + "/ports/1/gids/*")
		for _, file := range gids {
			if gid, _ := os.ReadFile(file); strings.Contains(string(gid), "ffff:c633:6401") {
				return true
			}
		}
		return false
	})
	return name, link
}

// TestRoCETwoRails: large blocks are read over two cards. Under load one card is deleted, and later
// its link goes down. The other card carries on alone. Both are used again when the first is back.
func TestRoCETwoRails(t *testing.T) {
	first := os.Getenv("RDMA_DEVICE")
	if first == "" {
		if os.Getenv("RDMA_REQUIRED") != "" {
			t.Fatal("RDMA_DEVICE names no card")
		}
		t.Skip("RDMA_DEVICE names no card: make check-rdma runs this in a virtual machine that has one")
	}
	second, link := secondCard(t)
	bytes := tallies{first: new(atomic.Int64), second: new(atomic.Int64)}
	o := RailsOptions{
		Wanted: []string{first, second}, Present: roceThere, Open: bytes.open,
		Trusted: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, Poll: 100 * time.Millisecond,
	}
	near := o
	// The reader mostly finds a card that is back after the owner does. A failed attempt would
	// delay the next one by half a minute.
	near.Poll = time.Second
	s := newTwoStoresOf(t, 64<<20, near, o, PoolOptions{}, 5*time.Second)
	s.awaitCards("a session")
	for key := range 4 {
		if err := s.set(key, 1, stripeAbove); err != nil {
			t.Fatal(err)
		}
	}
	grows := func(what string, cards ...string) {
		t.Helper()
		for _, card := range cards {
			bytes.await(t, what, card, func() string { return s.peer.status().Why })
		}
		t.Logf("%s: %d MiB over %s, %d MiB over %s", what, bytes[first].Load()>>20, first,
			bytes[second].Load()>>20, second)
	}
	alone := func(what string) {
		t.Helper()
		grows(what, first)
		before := bytes[second].Load()
		if grows(what, first); bytes[second].Load() != before {
			t.Errorf("%s: something is read over %s", what, second)
		}
	}
	s.disturb(t, "card deleted", func() {
		grows("both", first, second)
		for _, rails := range []*Rails{s.nearRails, s.farRails} {
			if err := rails.Release(t.Context(), second); err != nil {
				t.Error(err)
			}
		}
		command(t, "rdma link delete "+second)
		alone("card deleted")
		command(t, "rdma link add "+second+" type rxe netdev "+link)
		grows("card added", first, second)
	})
	s.disturb(t, "link down", func() {
		command(t, "ip link set "+link+" down")
		awaited(t, "the card is closed", func() bool { return len(s.nearRails.Open())+len(s.farRails.Open()) == 2 })
		alone("link down")
		command(t, "ip link set "+link+" up")
		grows("link up", first, second)
	})
	r := s.pool.Stats().RDMA
	t.Logf("%+v", r)
	if r.Broken == 0 || r.Corrupt != 0 {
		t.Errorf("%+v", r)
	}
}
