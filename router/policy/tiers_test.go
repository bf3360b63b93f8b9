package policy

import (
	"encoding/json"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

// TestOverlapWeighsTiers checks that a block counts by the best tier that has it.
func TestOverlapWeighsTiers(t *testing.T) {
	for _, c := range []struct {
		device, host, disk int32
		want               float64
	}{
		{0, 0, 0, 0}, {10, 0, 0, 1}, {0, 10, 10, 0.75}, {0, 0, 10, 0.25}, {4, 8, 10, 0.4 + 0.3 + 0.05},
		{8, 4, 2, 0.8}, // blocks on the GPU need not be in another tier
		{20, 0, 0, 1},  // more blocks than the prompt has
		{-1, 5, 0, 0.375},
	} {
		got := Default().Score.overlap(&Candidate{Matched: c.device, Host: c.host, Disk: c.disk}, 10)
		if diff := got - c.want; diff > 1e-9 || diff < -1e-9 {
			t.Errorf("%d on the device, %d with the host's memory, %d with its disk: %g, want %g", c.device, c.host,
				c.disk, got, c.want)
		}
	}
}

// TestOverlapOfOtherHosts checks the worth of blocks that only other hosts have: as measured, or by
// the setting.
func TestOverlapOfOtherHosts(t *testing.T) {
	for name, c := range map[string]struct {
		shared *float64
		node   Candidate
		want   float64
	}{
		"not measured":       {nil, Candidate{SharedCache: 10}, 0},
		"measured":           {nil, Candidate{Matched: 2, Host: 4, SharedCache: 8, Saved: PartOf(0.5)}, 0.2 + 0.15 + 0.375*0.4},
		"above the disk":     {nil, Candidate{Disk: 4, SharedCache: 8, Saved: PartOf(0.75)}, 0.5625 * 0.8},
		"below the disk":     {nil, Candidate{Disk: 4, SharedCache: 8, Saved: PartOf(0.25)}, 0.25*0.4 + 0.1875*0.4},
		"free":               {nil, Candidate{SharedCache: 10, Saved: PartOf(1)}, 0.75},
		"a setting":          {new(0.1), Candidate{Disk: 4, SharedCache: 8, Saved: PartOf(0.8)}, 0.25*0.4 + 0.1*0.4},
		"a setting of 0":     {new(0.0), Candidate{SharedCache: 10, Saved: PartOf(1)}, 0},
		"a setting, no time": {new(0.1), Candidate{SharedCache: 10}, 0.1},
	} {
		p := Default()
		p.Score.Tiers.Shared = c.shared
		if got := p.Score.overlap(&c.node, 10); math.Abs(got-c.want) > 1e-6 {
			t.Errorf("%s: %g, want %g", name, got, c.want)
		}
	}
}

// TestMeasuredWorthIsMonotonic checks in random picks of the modes score and cost that blocks of
// other hosts never make a node look worse, nor a block where it is nearer, and that a network that
// saves nothing changes nothing.
func TestMeasuredWorthIsMonotonic(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 20_000 {
		w := randomWarmth(rng)
		p, s := Default(), Situation{Blocks: int(w.x.blocks), Tokens: w.x.tokens}
		p.Score.Tiers = *w.x.tiers
		p.Cost.HostCacheHitWeight, p.Cost.DiskCacheHitWeight = p.Score.Tiers.Host, p.Score.Tiers.Disk
		k := p.Cost.costing(&s)
		w.c.Saved = PartOf(rng.Float64())
		for name, worth := range map[string]func(c Candidate) float64{
			"score": func(c Candidate) float64 { return p.Score.overlap(&c, s.Blocks) },
			"cost":  func(c Candidate) float64 { return -k.cost(&c, nil) },
		} {
			with, without, nothing := worth(w.c), w.c, w.c
			without.SharedCache, without.Saved, nothing.Saved = 0, 0, 0
			if none := worth(without); with < none-1e-9 || worth(nothing) != none {
				t.Fatalf("%d: %s %g with blocks elsewhere, %g without, %g if they save nothing: %+v", i, name, with, none,
					worth(nothing), w.c)
			}
			disk, host, device := w.c, w.c, w.c
			disk.Disk, host.Host, device.Matched = w.c.SharedCache, w.c.SharedCache, w.c.SharedCache
			last := with
			for _, nearer := range []Candidate{disk, host, device} {
				now := worth(nearer)
				if now < last-1e-6 {
					t.Fatalf("%d: %s %g where blocks are nearer, and %g: %+v", i, name, now, last, nearer)
				}
				last = now
			}
		}
	}
}

func TestTiersInDocument(t *testing.T) {
	p, err := Parse([]byte(`{"kv":0.5,"tiers":{"host":0.5}}`))
	if err != nil || p.Score.Tiers != (Tiers{Device: 1, Host: 0.5, Disk: 0.25}) {
		t.Fatalf("%+v, %v", p, err)
	}
	text, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	if back, err := Parse(text); err != nil || !reflect.DeepEqual(back, p) {
		t.Errorf("%s reads as %+v, %v", text, back, err)
	}
	for doc, want := range map[string]string{
		`{"tiers":{"shared":null}}`: "tiers.shared",
		`{"tiers":{"host":2}}`:      "tiers.host: 2 is refused",
		`{"tiers":{"ssd":1}}`:       "tiers.ssd: unknown key; there are device, host, disk, shared",
		`{"tiers":1}`:               "tiers: not a JSON object",
		`{"tiers":{"disk":""}}`:     "tiers.disk",
	} {
		if _, err := Parse([]byte(doc)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", doc, err)
		}
	}
}
