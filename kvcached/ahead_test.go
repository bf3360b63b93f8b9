package kvcached

import (
	"fmt"
	"testing"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/client"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// BenchmarkAhead is the time that an engine waits for 24 blocks of 1 MiB that only the other host
// has. Ahead, the router's Promote goes to the engine's host first, and the engine asks once its
// prompt has queued.
func BenchmarkAhead(b *testing.B) {
	s := newSite(b)
	roomy := func(c *Config) { c.Daemon.RAM, c.Daemon.SSD = 256<<20, 0 }
	here, _ := s.host(b, "here", roomy)
	far, _ := s.host(b, "far", roomy)
	meet(b, 2, here, far)
	engine, other, router := leases(b, here), leases(b, far), kv(b, here)
	payload, prompts := make([]byte, 1<<20), 0
	for name, queued := range map[string]time.Duration{"asked": -1, "ahead/queued=0": 0,
		"ahead/queued=20ms": 20 * time.Millisecond, "ahead/queued=100ms": 100 * time.Millisecond} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				var blocks []block.Addr
				ask := &pb.PromoteRequest{Namespace: testSpace.String()}
				prompts++
				for i := range 24 {
					a := block.Addr{Digest: block.Seed("m", fmt.Sprint(prompts), fmt.Sprint(i)), Model: testSpace.ID()}
					blocks, ask.Digests = append(blocks, a), append(ask.Digests, a.Digest[:]...)
					item := client.Item{Addr: a, Namespace: testSpace.String()}
					if _, err := other.Put(b.Context(), item, payload); err != nil {
						b.Fatal(err)
					}
				}
				time.Sleep(100 * time.Millisecond) // until the keepers know
				ended := make(chan error, 1)
				if queued < 0 {
					ended <- nil
				} else {
					go func() {
						_, err := router.Promote(b.Context(), ask)
						ended <- err
					}()
					time.Sleep(queued)
				}
				b.StartTimer()
				got, err := engine.GetMany(b.Context(), blocks)
				b.StopTimer()
				if err != nil {
					b.Fatal(err)
				}
				for _, v := range got {
					if v == nil {
						b.Fatal("a block is missing")
					}
					v.Close()
				}
				if err := <-ended; err != nil {
					b.Fatal(err)
				}
				for _, c := range []*client.Client{engine, other} {
					if _, err := c.Delete(b.Context(), blocks...); err != nil {
						b.Fatal(err)
					}
				}
				b.StartTimer()
			}
		})
	}
}

// leases returns a client of the host's engines.
func leases(b *testing.B, d *Daemon) *client.Client {
	b.Helper()
	_, sock := d.config.Sockets()
	c, err := client.Dial(b.Context(), sock)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	if err := c.Know(b.Context(), testSpace.String()); err != nil {
		b.Fatal(err)
	}
	return c
}
