package trace

import (
	"reflect"
	"slices"
	"testing"
)

// drawn returns the trace of g.
func drawn(t *testing.T, g Generator) (all []Request) {
	t.Helper()
	for q, err := range All(g.Source()) {
		if err != nil {
			t.Fatal(err)
		}
		if field, reason := q.check(0); field != "" {
			t.Fatalf("%s %s: %+v", field, reason, q)
		}
		all = append(all, q)
	}
	return all
}

// TestSteady: a steady trace begins with sessions underway, at its later rate.
func TestSteady(t *testing.T) {
	for _, steady := range []bool{false, true} {
		g := Generator{Seed: 3, Requests: 4000, PerSecond: 20, Mix: Mix{Chat: 1}, Steady: steady}
		all := drawn(t, g)
		if !reflect.DeepEqual(all, drawn(t, g)) {
			t.Fatal("a second trace differs")
		}
		half := len(all) / 2
		first := float64(all[half].Timestamp-all[0].Timestamp) / float64(all[len(all)-1].Timestamp-all[half].Timestamp)
		if len(all) != 4000 || (first < 1.25) != steady || all[0].Timestamp > 1000 {
			t.Errorf("steady %v: %d requests from %d ms, the first half takes %.2f times as long as the second", steady,
				len(all), all[0].Timestamp, first)
		}
		turns := map[int64]int{}
		for _, q := range all {
			turns[q.Session]++
		}
		if n := len(turns); n < 600 || n > 2000 || turns[0] > 0 {
			t.Errorf("%d sessions", n)
		}
	}
}

// TestHeavy: lengths of answers have a heavy tail and depend on the system prompt.
func TestHeavy(t *testing.T) {
	g := Generator{Seed: 4, Requests: 20_000, PerSecond: 50, Mix: Mix{Questions: 1}, Heavy: true}
	var lengths []int
	sum, byPrompt := 0.0, map[int64][]float64{}
	for _, q := range drawn(t, g) {
		lengths = append(lengths, q.OutputLength)
		sum += float64(q.OutputLength)
		byPrompt[q.HashIDs[0]] = append(byPrompt[q.HashIDs[0]], float64(q.OutputLength))
	}
	slices.Sort(lengths)
	median, p99, longest := lengths[len(lengths)/2], lengths[len(lengths)*99/100], lengths[len(lengths)-1]
	if p99 < 10*median || longest != maxOutput {
		t.Errorf("median %d, p99 %d, longest %d", median, p99, longest)
	}
	if m, want := sum/float64(len(lengths)), kinds[3].output; m < 0.85*want || m > 1.1*want {
		t.Errorf("a mean of %.0f tokens, want about %.0f", m, want)
	}
	var means []float64
	for _, l := range byPrompt {
		total := 0.0
		for _, v := range l {
			total += v
		}
		means = append(means, total/float64(len(l)))
	}
	if slices.Sort(means); len(means) != 8 || means[7] < 1.5*means[0] {
		t.Errorf("means by system prompt %.0f", means)
	}
}

// TestBursts: a burst is 50 to 200 requests on one prompt within two seconds or little more.
func TestBursts(t *testing.T) {
	g := Generator{Seed: 5, Requests: 6000, PerSecond: 10, Mix: Mix{Chat: 1}, Steady: true, BurstEvery: 500}
	bursts := map[int64][]Request{}
	others := 0
	for _, q := range drawn(t, g) {
		if q.SystemBlocks == 0 {
			bursts[q.Session] = append(bursts[q.Session], q)
		} else {
			others++
		}
	}
	if n := others / 500; len(bursts) < n-3 || len(bursts) > n+3 {
		t.Errorf("%d bursts among %d other requests", len(bursts), others)
	}
	cut := 0 // the trace may end in a burst
	for _, b := range bursts {
		if len(b) < burstMin {
			cut++
		}
		if took := b[len(b)-1].Timestamp - b[0].Timestamp; len(b) > burstMax || took > 2*burstMs {
			t.Errorf("a burst of %d within %d ms", len(b), took)
		}
		for _, q := range b {
			shared := 0
			for shared < len(q.HashIDs) && shared < len(b[0].HashIDs) && q.HashIDs[shared] == b[0].HashIDs[shared] {
				shared++
			}
			if &q.HashIDs[0] != &b[0].HashIDs[0] && (shared < burstBlocksMin || shared > burstBlocksMax) {
				t.Fatalf("%d blocks in common", shared)
			}
		}
	}
	if cut > 1 {
		t.Errorf("%d short bursts", cut)
	}
}

func TestMaxInput(t *testing.T) {
	g := Generator{Seed: 6, Requests: 1000, Mix: Mix{Documents: 1}, MaxInput: 20_000}
	longest := 0
	for _, q := range drawn(t, g) {
		longest = max(longest, q.InputLength)
	}
	if longest != 20_000 {
		t.Errorf("the longest prompt has %d tokens", longest)
	}
}
