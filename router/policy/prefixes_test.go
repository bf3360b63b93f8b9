package policy

import (
	"math/rand/v2"
	"testing"

	"github.com/cognitora/dataplane/kv/block"
)

// TestUsesPrefixes checks which policies give prefixes a worth, alone and with the overrides of a
// request.
func TestUsesPrefixes(t *testing.T) {
	for doc, want := range map[string]bool{
		`{}`:          true,
		`{"kv":0}`:    false,
		`{"kv":0.01}`: true,
		`{"mode":"score","tiers":{"device":0,"host":0}}`:          true, // disk
		`{"mode":"score","tiers":{"device":0,"host":0,"disk":0}}`: true, // waiting prefill is uncached
		`{"tiers":{"device":0,"host":0,"disk":0},"pending":0}`:    false,
		`{"tiers":{"device":0,"host":0,"disk":0}}`:                true, // in mode predicted
		`{"pending":0}`:   true,
		`{"mode":"cost"}`: true,
		`{"mode":"cost","cost":{"overlap_score_weight":0}}`:                                                       false,
		`{"mode":"cost","cost":{"overlap_score_weight":0.1}}`:                                                     true,
		`{"mode":"cost","cost":{"overlap_score_weight":0,"host_cache_hit_weight":1,"shared_cache_multiplier":1}}`: false,
		`{"mode":"cost","cost":{"overlap_score_weight":0,"track_prefill_tokens":false}}`:                          false,
		`{"mode":"cost","cost":{"prefill_load_scale":0}}`:                                                         true, // shared active blocks
		`{"mode":"cost","cost":{"prefill_load_scale":0,"assume_kv_reuse":false}}`:                                 false,
		`{"mode":"cost","cost":{"prefill_load_scale":0,"track_active_blocks":false}}`:                             false,
		`{"mode":"cost","cost":{"prefill_load_scale":0,"assume_kv_reuse":false,"track_prefill_tokens":false}}`:    true, // off decode
		`{"mode":"cost","cost":{"overlap_score_credit":0}}`:                                                       true, // host and disk
		`{"mode":"cost","cost":{"overlap_score_credit":0,"assume_kv_reuse":false,"track_prefill_tokens":false}}`:  false,
		`{"mode":"cost","kv":0}`: true, // the settings of another mode
		`{"mode":"random"}`:      true, `{"mode":"round_robin"}`: true, `{"mode":"power_of_two","kv":0}`: true,
		`{"mode":"least_loaded"}`: true, `{"mode":"direct"}`: true, `{"mode":"device_aware"}`: true,
	} {
		p, err := Parse([]byte(doc))
		if err != nil {
			t.Fatal(err)
		}
		if got := p.UsesPrefixes(&Overrides{}); got != want {
			t.Errorf("%s: %v", doc, got)
		}
	}
	p, err := Parse([]byte(`{"mode":"cost","cost":{"overlap_score_weight":0}}`))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		o    Overrides
		want bool
	}{
		"credit": {Overrides{OverlapScoreCredit: Given(1.0)}, true}, "scale": {Overrides{PrefillLoadScale: Given(1.0)}, true},
		"reuse": {Overrides{AssumeKVReuse: Given(true)}, false}, "shared": {Overrides{SharedCacheMultiplier: Given(1.0)}, false},
	} {
		if got := p.UsesPrefixes(&c.o); got != c.want {
			t.Errorf("with a %s of its own: %v", name, got)
		}
	}
	p = Default()
	p.Mode = Cost
	if p.UsesPrefixes(&Overrides{PrefillLoadScale: Given(0.0), OverlapScoreCredit: Given(0.0)}) {
		t.Error("a request's own weight of 0 leaves prefixes a worth")
	}
}

// TestUnusedPrefixesChangeNothing compares picks of policies that use no prefixes, with and without
// knowledge of prefixes. A policy without scale and credit may know the shared active blocks.
func TestUnusedPrefixesChangeNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(6, 6))
	coin := func(v *float64) {
		if rng.IntN(2) == 0 {
			*v = 0
		}
	}
	unused := 0
	for range 20_000 {
		p := randomPolicy(rng)
		p.Mode = Mode(rng.IntN(2)) // score or cost
		for _, v := range []*float64{
			&p.Score.Weights.KV, &p.Score.Weights.Pending, &p.Score.Tiers.Device, &p.Score.Tiers.Host,
			&p.Score.Tiers.Disk, &p.Cost.PrefillLoadScale, &p.Cost.OverlapScoreCredit,
		} {
			coin(v)
		}
		s := Situation{Blocks: 1 + rng.IntN(300), Random: rng.Uint64(), Prefill: rng.IntN(4) == 0}
		s.Tokens = int64(s.Blocks) * block.Tokens
		if rng.IntN(2) == 0 {
			s.Overrides.AssumeKVReuse = Given(rng.IntN(2) == 0)
		}
		for range 1 + rng.IntN(6) {
			s.Candidates = append(s.Candidates, randomCandidate(rng))
		}
		if p.UsesPrefixes(&s.Overrides) {
			continue
		}
		unused++
		blind := s
		blind.Candidates = nil
		for _, c := range s.Candidates {
			c.Matched, c.Coming, c.Host, c.Disk, c.SharedCache = 0, 0, 0, 0, 0
			if c.PrefillTokens >= 0 {
				c.PrefillTokens = rng.Int64N(10_000)
			}
			if p.Cost.OverlapScoreCredit > 0 || p.Cost.PrefillLoadScale > 0 {
				c.SharedActive = rng.Int32N(300)
			}
			blind.Candidates = append(blind.Candidates, c)
		}
		var knowing, not Explanation
		if a, b := p.Explain(&s, &knowing), p.Explain(&blind, &not); a != b {
			t.Fatalf("%+v: %d with and %d without knowledge of prefixes", p, a, b)
		}
		for i := range s.Candidates {
			if knowing.Terms[i].Total != not.Terms[i].Total {
				t.Fatalf("%+v: %+v, %+v", p, knowing.Terms[i], not.Terms[i])
			}
		}
	}
	if unused < 2000 {
		t.Errorf("only %d policies used no prefixes", unused)
	}
}
