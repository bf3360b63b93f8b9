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

	"github.com/cognitora/dataplane/kv/client"
	"github.com/cognitora/dataplane/kvcached/lease"
)

// TestNeverAnotherBlocksBytes runs slow readers with short leases while the arena is overwritten
// all the time. Close must refuse the result of a read whose bytes changed.
func TestNeverAnotherBlocksBytes(t *testing.T) {
	d := start(t, 4<<20, lease.Options{Lease: 20 * time.Millisecond, Grace: 10 * time.Millisecond})
	c := dial(t, d, client.Options{Sockets: 8})
	r := &race{began: time.Now()}
	seed := uint64(time.Now().UnixNano())
	t.Log("seed", seed)
	var wg sync.WaitGroup
	for w := range 2 {
		wg.Go(func() { r.write(t, c, w) })
	}
	for i := range 3 {
		wg.Go(func() { r.read(t, c, rand.New(rand.NewPCG(seed, uint64(i)))) })
	}
	wg.Wait()
	t.Logf("%d read in time, %d late, of which %d had changed", r.good, r.late, r.changed)
	if r.good == 0 || r.late == 0 {
		t.Error("not tested")
	}
}

// race runs readers and writers on the same blocks. Each byte of a block is the block's number.
type race struct {
	began time.Time

	mu                  sync.Mutex
	good, late, changed int // numbers of reads
}

const raceSize, raceNames = 256 << 10, 24

// goesOn returns true for at least a second, and until reads of both kinds have occurred.
func (r *race) goesOn() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Since(r.began) < time.Second || (r.good == 0 || r.late == 0) && time.Since(r.began) < time.Minute
}

func (r *race) write(t *testing.T, c *client.Client, from int) {
	payload := make([]byte, raceSize)
	for i := from; r.goesOn(); i++ {
		n := i % raceNames
		for at := range payload {
			payload[at] = byte(n)
		}
		if _, err := c.Put(context.Background(), item(fmt.Sprint(n)), payload); err != nil &&
			!errors.Is(err, client.ErrFull) {
			t.Error(err)
		}
	}
}

func (r *race) read(t *testing.T, c *client.Client, random *rand.Rand) {
	for r.goesOn() {
		n := random.IntN(raceNames)
		v, err := c.Get(context.Background(), addr(fmt.Sprint(n)))
		if errors.Is(err, client.ErrMiss) {
			continue
		}
		if err != nil {
			t.Error(err)
			return
		}
		if random.IntN(4) == 0 { // too slow for the lease
			for v.Remaining() > -time.Duration(random.IntN(60))*time.Millisecond {
				time.Sleep(time.Millisecond)
			}
		}
		same := len(v.Bytes()) == raceSize && bytes.Count(v.Bytes(), []byte{byte(n)}) == raceSize
		err = v.Close()
		r.mu.Lock()
		switch {
		case err == nil && !same:
			t.Error("another block's bytes under a valid lease")
		case err == nil:
			r.good++
		case !same:
			r.changed++
			fallthrough
		default:
			r.late++
		}
		r.mu.Unlock()
	}
}
