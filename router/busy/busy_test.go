package busy

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestBusy(t *testing.T) {
	share, tokens, fraction := new(0.8), new(1000), new(0.5)
	for _, c := range []struct {
		name string
		t    Thresholds
		f    Figures
		want Reason
		why  string
	}{
		{"nothing set", Thresholds{}, Figures{PrefillTokens: 1e9, UsedBlocks: 9, TotalBlocks: 9}, Not, ""},
		{"tokens at the limit", Thresholds{PrefillTokens: tokens}, Figures{PrefillTokens: 1000}, Not, ""},
		{"tokens", Thresholds{PrefillTokens: tokens}, Figures{PrefillTokens: 1001}, ByTokens,
			"1001 prompt tokens wait for prefill, active_prefill_tokens_threshold is 1000"},
		{"no tokens allowed", Thresholds{PrefillTokens: new(int)}, Figures{PrefillTokens: 1}, ByTokens, "is 0"},
		{"an idle node", Thresholds{PrefillTokens: new(int)}, Figures{}, Not, ""},
		{"fraction at the limit", Thresholds{PrefillFraction: fraction},
			Figures{PrefillTokens: 4096, MaxBatchedTokens: 8192}, Not, ""},
		{"fraction", Thresholds{PrefillFraction: fraction}, Figures{PrefillTokens: 4097, MaxBatchedTokens: 8192},
			ByFraction, "4097 prompt tokens wait for prefill, active_prefill_tokens_threshold_frac is 0.5 of 8192"},
		{"fraction of an unknown batch", Thresholds{PrefillFraction: fraction}, Figures{PrefillTokens: 1e9}, Not, ""},
		{"tokens or fraction", Thresholds{PrefillTokens: tokens, PrefillFraction: fraction},
			Figures{PrefillTokens: 900, MaxBatchedTokens: 1000}, ByFraction, ""},
		{"blocks at the limit", Thresholds{DecodeBlocks: share}, Figures{UsedBlocks: 80, TotalBlocks: 100}, Not, ""},
		{"used blocks", Thresholds{DecodeBlocks: share}, Figures{UsedBlocks: 81, TotalBlocks: 100}, ByBlocks,
			"0.81 of its KV blocks are in use, active_decode_blocks_threshold is 0.8"},
		{"active blocks", Thresholds{DecodeBlocks: share}, Figures{UsedBlocks: 10, ActiveBlocks: 90, TotalBlocks: 100},
			ByBlocks, "0.9 of its KV blocks"},
		{"a report of a known age", Thresholds{DecodeBlocks: share},
			Figures{UsedBlocks: 81, TotalBlocks: 100, Age: 3210 * time.Millisecond}, ByBlocks,
			"0.81 of its KV blocks are in use (reported 3.2s ago), active"},
		{"used blocks unknown", Thresholds{DecodeBlocks: share},
			Figures{UsedBlocks: -1, ActiveBlocks: 90, TotalBlocks: 100}, ByBlocks, ""},
		{"all blocks unknown", Thresholds{DecodeBlocks: new(0.0)}, Figures{UsedBlocks: 90, ActiveBlocks: 90}, Not, ""},
		{"a total that is no number", Thresholds{DecodeBlocks: share},
			Figures{UsedBlocks: 90, TotalBlocks: math.NaN()}, Not, ""},
		{"no block allowed", Thresholds{DecodeBlocks: new(0.0)}, Figures{UsedBlocks: 1, TotalBlocks: 100}, ByBlocks, ""},
		{"all blocks allowed", Thresholds{DecodeBlocks: new(1.0)}, Figures{UsedBlocks: 100, TotalBlocks: 100}, Not, ""},
		{"tokens before blocks", Thresholds{DecodeBlocks: share, PrefillTokens: tokens},
			Figures{PrefillTokens: 2000, UsedBlocks: 90, TotalBlocks: 100}, ByTokens, ""},
	} {
		var l Latch
		got := c.t.Busy(&c.f, &l)
		if got != c.want || !strings.Contains(c.t.Why(got, &c.f), c.why) {
			t.Errorf("%s: %d, %q", c.name, got, c.t.Why(got, &c.f))
		}
	}
}

// TestLatch follows a latch through a series of reports.
func TestLatch(t *testing.T) {
	limits := &Thresholds{DecodeBlocks: new(0.5)}
	var l Latch
	for i, c := range []struct {
		used, active, total float64
		want                Reason
	}{
		{50, 0, 100, Not},      // at the limit from below
		{51, 0, 100, ByBlocks}, // over it
		{50, 0, 100, ByBlocks}, // at the limit from above
		{49, 50, 100, ByBlocks},
		{49, 49, 100, Not}, // both below
		{49, 51, 100, ByBlocks},
		{0, 50, 100, ByBlocks},
		{-1, 49, 100, Not}, // the report is unknown
		{60, 0, 100, ByBlocks},
		{60, 0, 0, Not},   // the total is unknown
		{50, 0, 100, Not}, // that has cleared the latch
	} {
		f := Figures{UsedBlocks: c.used, ActiveBlocks: c.active, TotalBlocks: c.total}
		was := l.set.Load()
		if got := limits.Look(&f, &l); got != c.want || l.set.Load() != was {
			t.Errorf("%d: a look at %+v tells %d, want %d; the latch was %v", i, f, got, c.want, was)
		}
		if got := limits.Busy(&f, &l); got != c.want {
			t.Errorf("%d: %+v is %d, want %d", i, f, got, c.want)
		}
	}
	none := &Thresholds{DecodeBlocks: new(0.0)}
	if none.Busy(&Figures{UsedBlocks: 1, TotalBlocks: 100}, &l) != ByBlocks ||
		none.Busy(&Figures{TotalBlocks: 100}, &l) != Not {
		t.Error("a limit of 0 leaves out an idle node, or none")
	}
	limits.Busy(&Figures{UsedBlocks: 99, TotalBlocks: 100}, &l)
	if (&Thresholds{}).Busy(&Figures{UsedBlocks: 99, TotalBlocks: 100}, &l) != Not || l.set.Load() {
		t.Error("a threshold that is gone keeps its latch")
	}
}

// TestBusyHolds checks the rules on random figures: more load never makes a busy node idle, and the
// latch changes only where a figure has crossed its threshold.
func TestBusyHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		optional := func(name string, most float64) *float64 {
			if rapid.Bool().Draw(t, name+" set") {
				return new(rapid.Float64Range(0, most).Draw(t, name))
			}
			return nil
		}
		limits := Thresholds{DecodeBlocks: optional("share", 1), PrefillFraction: optional("fraction", 2)}
		if rapid.Bool().Draw(t, "tokens set") {
			limits.PrefillTokens = new(rapid.IntRange(0, 100).Draw(t, "tokens"))
		}
		var l Latch
		for range rapid.IntRange(1, 20).Draw(t, "reports") {
			f := Figures{
				PrefillTokens:    rapid.Int64Range(0, 120).Draw(t, "prefill"),
				MaxBatchedTokens: rapid.Int64Range(0, 100).Draw(t, "batch"),
				UsedBlocks:       float64(rapid.IntRange(-1, 20).Draw(t, "used")),
				ActiveBlocks:     float64(rapid.IntRange(0, 20).Draw(t, "active")),
				TotalBlocks:      float64(rapid.IntRange(0, 20).Draw(t, "total")),
			}
			was := l.set.Load()
			got := limits.Busy(&f, &l)
			tokens := limits.PrefillTokens != nil && f.PrefillTokens > int64(*limits.PrefillTokens)
			part := limits.PrefillFraction != nil && f.MaxBatchedTokens > 0 &&
				float64(f.PrefillTokens) > *limits.PrefillFraction*float64(f.MaxBatchedTokens)
			latched := false
			if limits.DecodeBlocks != nil && f.TotalBlocks > 0 {
				limit := *limits.DecodeBlocks * f.TotalBlocks
				most := max(f.UsedBlocks, f.ActiveBlocks)
				latched = most > limit || most == limit && was && most > 0
			}
			if (got != Not) != (tokens || part || latched) || l.set.Load() != latched {
				t.Fatalf("%+v of %+v: %d, latch %v, was %v", limits, f, got, l.set.Load(), was)
			}
			more := f
			more.PrefillTokens, more.UsedBlocks, more.ActiveBlocks = f.PrefillTokens+1, f.UsedBlocks+1, f.ActiveBlocks+1
			var other Latch
			other.set.Store(l.set.Load())
			if got != Not && limits.Busy(&more, &other) == Not {
				t.Fatalf("%+v is busy and %+v is not", f, more)
			}
		}
	})
}

func TestBusyDoesNotAllocate(t *testing.T) {
	limits := &Thresholds{DecodeBlocks: new(0.5), PrefillTokens: new(9), PrefillFraction: new(0.5)}
	var l Latch
	if n := testing.AllocsPerRun(100, func() {
		f := Figures{PrefillTokens: 5, MaxBatchedTokens: 100, UsedBlocks: 1, TotalBlocks: 10}
		if limits.Busy(&f, &l) != Not {
			t.Fatal("busy")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
