//go:build linux

package client_test

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/client"
	"github.com/cognitora/dataplane/kvcached/lease"
)

// TestFirstTouch prints the cost of first reads of blocks and of repeated reads.
func TestFirstTouch(t *testing.T) {
	if os.Getenv("CGN_BENCH") == "" {
		t.Skip("set CGN_BENCH=1")
	}
	d := start(t, 256<<20, lease.Options{})
	w := dial(t, d, client.Options{})
	const blocks = 64
	var addrs []block.Addr
	for i := range blocks {
		name := fmt.Sprint(i)
		if _, err := w.Put(t.Context(), item(name), make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
		addrs = append(addrs, addr(name))
	}
	t.Log("backing", d.store.Arena().Backing())
	sink := make([]byte, 1<<20)
	read := func(c *client.Client) time.Duration {
		var each []time.Duration
		for _, a := range addrs {
			v, err := c.Get(t.Context(), a)
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			copy(sink, v.Bytes())
			each = append(each, time.Since(began))
			v.Close()
		}
		slices.Sort(each)
		return each[blocks/2]
	}
	for range 5 {
		c, p := dial(t, d, client.Options{}), dial(t, d, client.Options{Populate: true})
		began := time.Now()
		client.Populated(p)
		took := time.Since(began)
		t.Logf("1 MiB copied: first %v, first of populated %v (which took %v), again %v", read(c), read(p), took,
			read(c))
	}
}
