package load

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// ranked returns a load with two ranks.
func ranked() Load {
	return Load{Engine: Engine{
		At: Taken{time.Now()}, InFlight: Known(5), QueueDepth: Known(1),
		Ranks: []Rank{
			{InFlight: Known(2), QueueDepth: Known(0), FreeBlocks: Known(10), TotalBlocks: Known(20), KVUsage: Known(0.5)},
			{InFlight: Known(3), QueueDepth: Known(1), KVUsage: Known(0.25)},
		},
	}}
}

// TestRankFigures: the figures of a rank are those of the engine, in the same order, in a Rank and
// in a message.
func TestRankFigures(t *testing.T) {
	signals := samples[engineSample].Signals
	var r Rank
	var m pb.RankLoad
	figures, fields := r.figures(), fieldsOf(&m)
	if len(figures) != len(signals) {
		t.Fatalf("%d figures, and %d signals", len(figures), len(signals))
	}
	for i, s := range signals {
		*figures[i], *fields[i] = Known(float64(i)), new(float64)
		b, err := json.Marshal(r)
		if err != nil || !strings.Contains(string(b), `"`+s.Name+`"`) {
			t.Errorf("figure %d is not %s: %s, %v", i, s.Name, b, err)
		}
	}
}

func TestRanksTravel(t *testing.T) {
	l := ranked()
	b, err := json.Marshal(l)
	var back Load
	if err == nil {
		err = json.Unmarshal(b, &back)
	}
	if err != nil || !reflect.DeepEqual(back.Ranks, l.Ranks) {
		t.Errorf("%s is read as %+v, %v", b, back.Ranks, err)
	}
	now := time.Now()
	if r := FromMessage(l.Message("n", now), now); !reflect.DeepEqual(r.Load.Ranks, l.Ranks) {
		t.Errorf("message is read as %+v", r.Load.Ranks)
	}
}

// TestAbsurdRanks: impossible figures of a rank are unknown, and impossibly many ranks are none.
func TestAbsurdRanks(t *testing.T) {
	now := time.Now()
	for _, v := range []float64{-1, MaxRequests + 1, math.NaN(), math.Inf(1)} {
		m := &pb.NodeLoad{Ranks: []*pb.RankLoad{{InFlight: &v}, {}}}
		if r := FromMessage(m, now); len(r.Load.Ranks) != 2 || r.Load.Ranks[0] != (Rank{}) {
			t.Errorf("%g is read as %+v", v, r.Load.Ranks)
		}
	}
	l := ranked()
	l.Ranks[1].KVUsage = Known(1.5)
	if err := l.Check(); err == nil || !strings.Contains(err.Error(), "kv_usage") {
		t.Errorf("a usage above 1: %v", err)
	}
	if l.Fit(); l.Ranks[1].KVUsage != (Gauge{}) || l.Ranks[1].InFlight != Known(3) || l.Check() != nil {
		t.Errorf("made %+v", l.Ranks[1])
	}
	l.Ranks = make([]Rank, MaxRanks+1)
	if err := l.Check(); err == nil || !strings.Contains(err.Error(), "ranks has 65 entries") {
		t.Errorf("65 ranks: %v", err)
	}
	if r := FromMessage(l.Message("n", now), now); r.Load.Ranks != nil {
		t.Errorf("%d ranks are read", len(r.Load.Ranks))
	}
	if l.Fit(); l.Ranks != nil {
		t.Error("65 ranks stay")
	}
}

func TestRanksMove(t *testing.T) {
	old, l := ranked(), ranked()
	if l.Moved(&old) {
		t.Error("equal ranks have moved")
	}
	l.Ranks[0].InFlight = Known(3)
	if !l.Moved(&old) {
		t.Error("a request at a rank is not told at once")
	}
	if n := testing.AllocsPerRun(100, func() { l.Moved(&old) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
	if l.Ranks = nil; !l.Moved(&old) || !old.Moved(&l) {
		t.Error("ranks become known or unknown")
	}
}

func TestOldRanksAreForgotten(t *testing.T) {
	l := ranked()
	if l.Empty() {
		t.Error("a known load is empty")
	}
	l.Forget(time.Now().Add(time.Minute), time.Second)
	if l.Ranks != nil || !l.Empty() {
		t.Errorf("%+v", l)
	}
}

// TestPartOfRank: a rank has its own figures, or else an equal part of the engine's.
func TestPartOfRank(t *testing.T) {
	l := ranked()
	if e := l.Engine.Rank(1, 2); e.InFlight != Known(3) || e.QueueDepth != Known(1) || e.At != l.Engine.At ||
		e.KVUsage != Known(0.25) || e.TotalBlocks != (Gauge{}) {
		t.Errorf("%+v", e)
	}
	l.TotalBlocks, l.KVUsage = Known(100), Known(0.5)
	if e := l.Engine.Rank(1, 4); e.InFlight != Known(1.25) || e.TotalBlocks != Known(25) ||
		e.KVUsage != Known(0.5) || e.FreeBlocks != (Gauge{}) || e.Ranks != nil {
		t.Errorf("%+v", e)
	}
	if p := (&Power{Watts: Known(100)}).Rank(4); p.Watts != Known(25) || p.WattsAvg30 != (Gauge{}) {
		t.Errorf("%+v", p)
	}
}
