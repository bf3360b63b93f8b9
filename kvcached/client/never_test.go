//go:build linux

package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kvcached/client"
	"github.com/cognitora/dataplane/kvcached/lease"
)

// TestNeverAnotherBlocksBytes lets readers be slow and leases short while the arena is overwritten all the time: what
// a reader made of bytes that changed under it is refused by Close.
func TestNeverAnotherBlocksBytes(t *testing.T) {
	d := start(t, 4<<20, lease.Options{Lease: 20 * time.Millisecond, Grace: 10 * time.Millisecond})
	c := dial(t, d, client.Options{Sockets: 8})
	const size, names = 256 << 10, 24
	var good, late, changed int
	var mu sync.Mutex
	began := time.Now()
	goesOn := func() bool { // for a second at least, and until both kinds have been seen
		mu.Lock()
		defer mu.Unlock()
		return time.Since(began) < time.Second || (good == 0 || late == 0) && time.Since(began) < time.Minute
	}
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() {
			payload := make([]byte, size)
			for i := w; goesOn(); i++ {
				n := i % names
				for at := range payload {
					payload[at] = byte(n)
				}
				if _, err := c.Put(context.Background(), item(fmt.Sprint(n)), payload); err != nil && !errors.Is(err, client.ErrFull) {
					t.Error(err)
				}
			}
		})
	}
	for r := range 3 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(r)))
			for goesOn() {
				n := random.IntN(names)
				v, err := c.Get(context.Background(), addr(fmt.Sprint(n)))
				if errors.Is(err, client.ErrMiss) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if random.IntN(4) == 0 { // too slow
					for v.Remaining() > -time.Duration(random.IntN(60))*time.Millisecond {
						time.Sleep(time.Millisecond)
					}
				}
				same := len(v.Bytes()) == size && bytes.Count(v.Bytes(), []byte{byte(n)}) == size
				err = v.Close()
				mu.Lock()
				switch {
				case err == nil && !same:
					t.Error("another block's bytes under a valid lease")
				case err == nil:
					good++
				case !same:
					changed++
					fallthrough
				default:
					late++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	t.Logf("%d read in time, %d late, of which %d had changed", good, late, changed)
	if good == 0 || late == 0 {
		t.Error("not tested")
	}
}
