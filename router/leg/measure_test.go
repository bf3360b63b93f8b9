package leg

import (
	"net/netip"
	"testing"
	"time"

	"github.com/cognitora/dataplane/router/books"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/holdings"
	"github.com/cognitora/dataplane/router/nvext"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestMeasure checks what a policy is told about a node of which everything is known, and about one
// that has told nothing.
func TestMeasure(t *testing.T) {
	d := follow(t)
	e, err := engine.New(engine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	d.put("rich", e.URL(), `"ready":true,"heartbeat_s":300,"device":"cpu","dtype":"bf16","tp":2,"vram_bytes":1000,
		"max_concurrent":40,"engine_slots":30,"block_tokens":32,"kv_address":"10.0.0.1:7","labels":["zone=a"],
		"in_flight":5,"queue_depth":2,"free_blocks":10,"total_blocks":60,"retrans_ppm":2000,"sm_pct":50`)
	d.put("bare", e.URL(), `"ready":true,"heartbeat_s":300`)
	waitFor(t, func() bool { return len(d.fleet.Load().Nodes) == 2 })
	decide(t, d.Dispatcher, `{"mode":"cost"}`)
	now := time.Now()
	resent := func(segments, resent uint64) {
		d.fleet.TakePaths(func(netip.AddrPort) (fleet.Counts, bool) {
			return fleet.Counts{Segments: segments, Retransmits: resent}, true
		}, now)
	}
	resent(0, 0)
	resent(1000, 1)

	look := func() (rich, bare policy.Candidate, keys []uint64) {
		q := Question{Constraints: Constraints{Preferred: []nvext.Taint{{Name: "zone=a", Weight: 0.5}}}}
		l := d.Leg(asked(t, d.Dispatcher, chat(1000)), q, nil)
		defer l.giveBack()
		if _, err := l.first(); err != nil {
			t.Fatal(err)
		}
		l.drop(l.spare())
		l.candidates(now)
		at := l.pool.place(d.fleet.Load().Node("rich"))
		l.prompt.Tell(at, holdings.Reach{Device: holdings.Unknown, Host: 5, Disk: 6, Shared: 7})
		l.measure(now)
		l.prompt.Sent(d.fleet.Load().Node("rich").Ranks()[0].Ref(), now)
		return l.picks.cands[1], l.picks.cands[0], append(keys, l.prompt.Keys()...)
	}
	_, _, keys := look()
	n := d.fleet.Load().Node("rich")
	n.AcquireAlways()
	var entry books.Entry
	n.Ranks()[0].Book.Open(&entry, books.Cost{Prefill: 160, Blocks: 9}, now)
	entry.Count(keys[:4], nil)

	rich, bare, _ := look()
	want := policy.Candidate{
		IDHash: n.IDHash, Load: &n.Load().Load, InFlight: 1, Others: 5, MaxConcurrent: 40, EngineSlots: 30,
		PrefillTokens: 160 + 2*160, // two requests of others wait, each as long as the mean
		Coming:        int32(len(keys)), VRAM: 1000, Throughput: 2, Retransmits: 0.002, CPU: true,
		ActiveBlocks: 4 + 2*50, // of 16 tokens
		Host:         5, Disk: 6, SharedActive: 4, SharedCache: 7, Fit: policy.Fit{Labels: 0.5},
	}
	if rich != want {
		t.Errorf("%+v\nwant %+v", rich, want)
	}
	want = policy.Candidate{IDHash: d.fleet.Load().Node("bare").IDHash, Retransmits: 0.001}
	if bare.VRAM == bare.VRAM || bare.Throughput == bare.Throughput {
		t.Errorf("an unknown capacity is a number: %+v", bare)
	}
	if bare.VRAM, bare.Throughput = 0, 0; bare != want {
		t.Errorf("%+v\nwant %+v", bare, want)
	}
	entry.Close(now)
}
