package events

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"

	"github.com/go-zeromq/zmq4"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/residency"
	sim "github.com/cognitora/dataplane/sim/engine"
)

var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}

// ask sends a prompt of token ids, and returns how many of them the engine had cached.
func ask(t *testing.T, url string, tokens []uint32, more fields) int {
	t.Helper()
	body := fields{"model": "m", "prompt": tokens, "max_tokens": 1}
	for k, v := range more {
		body[k] = v
	}
	b, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Post(url+"/v1/completions", "application/json", bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var answer struct {
		Usage struct {
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || resp.StatusCode != 200 {
		t.Fatal(resp.StatusCode, err)
	}
	return answer.Usage.Details.Cached
}

// TestSimulatedEngine compares the knowledge about an engine with the engine's own count of cached
// tokens. The test uses prompts with common beginnings, salts, evictions, and each form of events.
// The engine finds min(matched, floor((prompt-1)/block)) of its blocks.
func TestSimulatedEngine(t *testing.T) {
	t.Parallel()
	for _, kv := range []sim.KVEvents{
		{Events: sim.EventMap, Hashes: sim.HashInt}, {Events: sim.EventArray, Hashes: sim.HashBytes, ReplayWithoutTopic: true, Topic: "kv"},
		{Events: sim.EventMap, Hashes: sim.HashBytes, DPRank: 3},
	} {
		for _, size := range []int{16, 64} {
			t.Run(fmt.Sprintf("%s, %s, blocks of %d", kv.Events, kv.Hashes, size), func(t *testing.T) {
				t.Parallel()
				kv := kv // each size has its own ports
				kv.Endpoint, kv.ReplayEndpoint = "tcp://127.0.0.1:0", "tcp://127.0.0.1:0"
				e, err := sim.New(sim.Config{Models: []string{"m"}, BlockTokens: size, CacheBlocks: 3200 / size,
					Speed: 1000, KVEvents: &kv})
				if err != nil {
					t.Fatal(err)
				}
				defer e.Close()
				follows(t, e, size)
			})
		}
	}
}

func follows(t *testing.T, e *sim.Engine, size int) {
	pub, replay := e.KVEndpoints()
	at, err := ParseEndpoint(pub)
	if err != nil {
		t.Fatal(err)
	}
	again, err := ParseEndpoint(replay)
	if err != nil {
		t.Fatal(err)
	}
	ask(t, e.URL(), prompt[:320], nil) // before the follower subscribes
	f := follow(t, Options{Endpoint: at, Replay: again})
	r := rand.New(rand.NewPCG(1, uint64(size)))
	hits := 0
	for i := range 40 {
		salt := []string{"", "", "tenant"}[r.IntN(3)]
		tokens := append(count(1, 16*r.IntN(30)), count(10_000*(1+r.IntN(3)), 1+r.IntN(500))...)
		more := fields{}
		if salt != "" {
			more["cache_salt"] = salt
		}
		mark := count(1_000_000+1000*i, size+1)
		ask(t, e.URL(), mark, nil)
		f.awaits("the event of a prompt behind all others", mark, size/block.Tokens)
		want := min(f.leading(chain("", salt, tokens))*block.Tokens/size, (len(tokens)-1)/size) * size
		if got := ask(t, e.URL(), tokens, more); got != want {
			t.Fatalf("a prompt of %d tokens, salt %q: the engine had %d cached, %d were known", len(tokens), salt, got,
				want)
		}
		hits += want
	}
	s := f.Stats()
	if hits == 0 || s.Epochs != 0 || s.Lost != 0 || s.Orphans != 0 || !s.Complete || s.Blocks > 3200/size {
		t.Errorf("%d cached tokens, %+v", hits, s)
	}
}

// leading returns how many leading blocks of a chain the sink knows in the engine's memory.
func (f *followed) leading(all []block.Digest) int {
	out := make([]residency.Tiers, len(all))
	f.sink.Held(spaceOf("m").ID(), block.LayerAll, all, out)
	for i, tiers := range out {
		if tiers&residency.Device == 0 {
			return i
		}
	}
	return len(all)
}

// TestAnotherZeroMQ uses the sockets of another ZeroMQ implementation.
func TestAnotherZeroMQ(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	pub, router := zmq4.NewPub(ctx), zmq4.NewRouter(ctx)
	defer pub.Close()
	defer router.Close()
	for _, s := range []zmq4.Socket{pub, router} {
		if err := s.Listen("tcp://127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	number := func(n byte) []byte { return []byte{0, 0, 0, 0, 0, 0, 0, n} }
	answered := make(chan error, 1)
	go func() {
		m, err := router.Recv()
		if err == nil {
			err = router.SendMulti(zmq4.NewMsgFrom(m.Frames[0], nil, []byte("kv"), number(0), turn(t, prompt, 0)))
		}
		if err == nil {
			// The reader may leave before zmq4 has written the last, empty frame.
			_ = router.SendMulti(zmq4.NewMsgFrom(m.Frames[0], nil, nil, []byte{255, 255, 255, 255, 255, 255, 255, 255},
				nil))
		}
		answered <- err
	}()
	f := follow(t, Options{
		Endpoint: Endpoint{Network: "tcp", Addr: pub.Addr().String()},
		Replay:   Endpoint{Network: "tcp", Addr: router.Addr().String()}, Topic: "kv",
	})
	f.awaits("the replay", prompt, 1)
	if err := <-answered; err != nil {
		t.Fatal(err)
	}
	eventually(t, "an event", func() bool {
		if err := pub.SendMulti(zmq4.NewMsgFrom([]byte("other"), number(1), nil)); err != nil {
			t.Fatal(err)
		}
		if err := pub.SendMulti(zmq4.NewMsgFrom([]byte("kv"), number(1), turn(t, prompt, 1))); err != nil {
			t.Fatal(err)
		}
		return f.Stats().Batches == 2 // the subscription may have arrived after the batch was sent
	})
	f.stop()
}
