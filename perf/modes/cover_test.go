package modes

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// casesLeast is the number of situations that the golden file has at least of each case.
const casesLeast = 3

// cases names what random situations must have.
var cases = []struct {
	name string
	in   func(s *situation) bool
}{
	{"no overlap", func(s *situation) bool { return s.Tokens > 0 && !s.some(func(w *worker) bool { return w.Disk > 0 }) }},
	{"all blocks cached on the device", func(s *situation) bool {
		return s.Tokens > 0 && s.some(func(w *worker) bool { return w.Device*s.BlockSize == s.Tokens })
	}},
	{"blocks in host memory only", func(s *situation) bool {
		return s.some(func(w *worker) bool { return w.Device == 0 && w.Host > 0 })
	}},
	{"blocks in all tiers", func(s *situation) bool {
		return s.some(func(w *worker) bool { return 0 < w.Device && w.Device < w.Host && w.Host < w.Disk })
	}},
	{"empty prompt", func(s *situation) bool { return s.Tokens == 0 }},
	{"less than a block", func(s *situation) bool { return 0 < s.Tokens && s.Tokens < s.BlockSize }},
	{"whole blocks", func(s *situation) bool { return s.Tokens > 0 && s.Tokens%s.BlockSize == 0 }},
	{"a block in part", func(s *situation) bool { return s.Tokens > s.BlockSize && s.Tokens%s.BlockSize > 0 }},
	{"decay under uneven prefill", func(s *situation) bool {
		uneven := func(w *worker) bool { return w.Device > 0 && w.Load != nil && w.Load.PrefillTokens > floor(s) }
		return first(0, s.Config.Decay) > 0 && s.some(uneven)
	}},
	{"decay above an unknown load", func(s *situation) bool {
		const most = 1 << 62
		least := most
		for _, w := range s.Workers {
			least = min(least, first(load{PrefillTokens: most}, w.Load).PrefillTokens)
		}
		warm := func(w *worker) bool { return w.Device > 0 && w.Load != nil }
		return s.prefill() && first(0, s.Config.Decay) > 0 && s.some(warm) && floor(s) < least
	}},
	{"unknown load beside a known one", func(s *situation) bool {
		return s.some(func(w *worker) bool { return w.Load == nil }) &&
			s.some(func(w *worker) bool { return w.Load != nil && w.Load.Requests > 0 })
	}},
	{"part of an active block", func(s *situation) bool {
		return s.some(func(w *worker) bool { return math.Mod(first(load{}, w.Load).ActiveBlocks, 1) != 0 })
	}},
	{"blocks that are active already", (*situation).active},
	{"no reuse of active blocks", func(s *situation) bool {
		return s.active() && !first(true, first(override{}, s.Override).AssumeReuse, s.Config.AssumeReuse)
	}},
	{"shared blocks beyond a worker's own", func(s *situation) bool {
		return s.some(func(w *worker) bool { return w.Device > 0 && s.sharedBeyond(w) > 0 })
	}},
	{"preferred label", func(s *situation) bool { return s.some(func(w *worker) bool { return s.factor(w) < 1 }) }},
	{"avoided label", func(s *situation) bool { return s.some(func(w *worker) bool { return s.factor(w) > 1 }) }},
	{"one worker", func(s *situation) bool { return len(s.Workers) == 1 }},
	{"equal workers", func(s *situation) bool {
		return len(s.Workers) > 1 && !s.some(func(w *worker) bool { return !reflect.DeepEqual(*w, s.Workers[0]) })
	}},
	{"cache-aware decode", func(s *situation) bool {
		warm := func(w *worker) bool { return w.Device > 0 && w.Load != nil }
		return s.Leg == "decode" && !s.prefill() && s.some(warm)
	}},
	{"prefill leg that counts no prefill", func(s *situation) bool { return s.Leg == "prefill" && !s.prefill() }},
	{"old name of the scale, 0, that ends the credit", func(s *situation) bool {
		o := first(override{}, s.Override)
		zero := func(w *float64) bool { return w != nil && *w == 0 }
		cold := zero(o.OverlapWeight) || zero(s.Config.OverlapWeight) && o.Credit == nil
		return cold && (o.OverlapWeight != nil || o.PrefillScale == nil) && s.Leg == "decode" && !s.prefill() &&
			s.some(func(w *worker) bool { return w.Disk > 0 && w.Load != nil })
	}},
}

func (s *situation) some(is func(w *worker) bool) bool {
	return slices.ContainsFunc(s.Workers, func(w worker) bool { return is(&w) })
}

// active says whether a worker has blocks of the prompt among its active ones.
func (s *situation) active() bool {
	return s.some(func(w *worker) bool { return first(load{}, w.Load).SharedActive > 0 })
}

// prefill says whether prefill counts.
func (s *situation) prefill() bool {
	return first(true, first(override{}, s.Override).TrackPrefill, s.Config.TrackPrefill)
}

// TestGoldenCovers looks for each case, and for each setting with a value of its own.
func TestGoldenCovers(t *testing.T) {
	found := map[string]int{}
	for _, line := range records(t) {
		for _, c := range cases {
			if c.in(line.Situation) {
				found[c.name]++
			}
		}
		countSet(found, "config", line.Situation.Config)
		countSet(found, "override", first(override{}, line.Situation.Override))
	}
	var want []string
	for _, c := range cases {
		want = append(want, c.name)
	}
	want = append(want, names("config", config{})...)
	want = append(want, names("override", override{})...)
	for _, name := range want {
		if found[name] < casesLeast {
			t.Errorf("%s: in %d situations, want at least %d", name, found[name], casesLeast)
		}
	}
}

// names returns the JSON names of a struct's fields.
func names(prefix string, of any) (names []string) {
	for _, field := range reflect.VisibleFields(reflect.TypeOf(of)) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		names = append(names, prefix+"."+name)
	}
	return names
}

func countSet(found map[string]int, prefix string, of any) {
	for i, name := range names(prefix, of) {
		if !reflect.ValueOf(of).Field(i).IsZero() {
			found[name]++
		}
	}
}

// TestDifferencesAreSeen: a comparison fails on a cost that differs in the third decimal, and on
// another pick.
func TestDifferencesAreSeen(t *testing.T) {
	a := answer{Costs: []float64{10, 12.001, 12}, Factors: []float64{1, 1, 0.5}, Pick: 2, Cost: 6.0001}
	right := []float64{10.0004, 12.0006, 6.0001}
	for _, c := range []struct {
		name  string
		costs []float64
		pick  int
		ok    bool
	}{
		{"equal", right, 2, true},
		{"a cost is higher", []float64{10.0006, 12.0006, 6.0001}, 2, false},
		{"a cost is lower", []float64{10, 12.0004, 6.0001}, 2, false},
		{"a cost is unknown", []float64{math.NaN(), 12.0006, 6.0001}, 2, false},
		{"the picked worker's cost is off by less than the log shows", []float64{10, 12.001, 6}, 2, false},
		{"the factor is missing", []float64{10, 12.001, 12}, 0, false},
		{"another pick", right, 0, false},
		{"a cost is missing", right[:2], 0, false},
	} {
		if err := a.compare(c.costs, c.pick, &tally{}); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	close := answer{Costs: []float64{10, 10.001}, Pick: 1, Cost: 10.001}
	if err := close.compare([]float64{10, 10.001}, 0, &tally{}); err != nil {
		t.Errorf("two costs are closer than %g: %v", apart, err)
	}
	far := answer{Costs: []float64{10, 11}, Pick: 1, Cost: 11}
	if err := far.compare([]float64{10, 11}, 1, &tally{}); err == nil {
		t.Error("the crate did not pick the lowest cost, and that is no error")
	}
}
