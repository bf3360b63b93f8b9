package load

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// full returns a load in which every figure is known, different from the others, and in its bounds.
func full(now time.Time) (l Load) {
	for i, s := range Samples() {
		*s.at(&l) = Taken{now.Add(-time.Duration(i+1) * time.Second)}
		for k, signal := range s.Signals {
			*signal.gauge(&l) = Known(float64(i+1)/10 + float64(k+1)/100)
		}
	}
	return l
}

// TestRows: every gauge of Load has one row with its name in JSON, and every time has one sample.
func TestRows(t *testing.T) {
	names := map[string]bool{}
	for group := range reflect.TypeFor[Load]().Fields() {
		for f := range group.Type.Fields() {
			if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); f.Type == reflect.TypeFor[Gauge]() {
				names[name] = true
			}
		}
	}
	var l Load
	gauges, fields := map[*Gauge]bool{}, map[**float64]bool{}
	m := &pb.NodeLoad{}
	for _, s := range Samples() {
		for _, signal := range s.Signals {
			if !names[signal.Name] || signal.Most <= 0 || gauges[signal.gauge(&l)] {
				t.Errorf("row %q is none of Load, is there twice, or has no bound", signal.Name)
			}
			if signal.Metric != "" && (signal.Base <= 0 || signal.Help == "") {
				t.Errorf("the metric of %s has no base or help", signal.Name)
			}
			delete(names, signal.Name)
			gauges[signal.gauge(&l)] = true
			if signal.field == nil {
				continue
			}
			if f := signal.field(m); fields[f] {
				t.Errorf("%s has the field of another figure", signal.Name)
			} else {
				fields[f] = true
			}
		}
	}
	if len(names) > 0 {
		t.Errorf("without a row: %v", names)
	}
}

// TestJSON: each figure keeps its value and its age, and unknown figures are left out.
func TestJSON(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := full(time.Now())
		time.Sleep(time.Minute)
		b, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // time on the way does not count in the age
		var back Load
		if err := json.Unmarshal(b, &back); err != nil {
			t.Fatal(err)
		}
		for i, s := range Samples() {
			want := time.Minute + time.Duration(i+1)*time.Second
			if age := s.At(&back).Age(time.Now()); age != want && s.Name != "engine" {
				t.Errorf("%s is %v old, want %v", s.Name, age, want)
			}
			for _, signal := range s.Signals {
				if got := signal.In(&back); got != signal.In(&l) {
					t.Errorf("%s is %v, want %v", signal.Name, got, signal.In(&l))
				}
			}
		}
		if b, err := json.Marshal(Load{Engine: Engine{QueueDepth: Known(0)}}); err != nil ||
			string(b) != `{"queue_depth":0}` {
			t.Errorf("%s, %v", b, err)
		}
	})
}

// TestBadJSON: null is unknown. A value that is no number, or no age, is refused.
func TestBadJSON(t *testing.T) {
	l := full(time.Now())
	for _, s := range Samples() {
		for _, signal := range s.Signals {
			if err := json.Unmarshal(fmt.Appendf(nil, `{%q:"much"}`, signal.Name), &l); err == nil {
				t.Errorf("much is read of %s", signal.Name)
			}
			*signal.gauge(&l) = Known(0)
			if err := json.Unmarshal(fmt.Appendf(nil, `{%q:null}`, signal.Name), &l); err != nil ||
				signal.In(&l) != (Gauge{}) {
				t.Errorf("null is read of %s as %v, %v", signal.Name, signal.In(&l), err)
			}
		}
	}
	for _, bad := range []string{"-1", "1e13", `"old"`} {
		if json.Unmarshal(fmt.Appendf(nil, `{"sm_age_ms":%s}`, bad), &l) == nil {
			t.Errorf("an age of %s is read", bad)
		}
	}
	l.GPU.At = Taken{time.Now()}
	if err := json.Unmarshal([]byte(`{"sm_age_ms":null}`), &l); err != nil || !l.GPU.At.IsZero() {
		t.Errorf("null is read as an age: %v, %v", l.GPU.At, err)
	}
}

// TestMessage: a router gets the figures of an agent. The figures' ages include the time on the
// way.
func TestMessage(t *testing.T) {
	now := time.Now()
	l := full(now)
	l.KVUsage = Gauge{}
	sent := now.Add(time.Minute)
	back := FromMessage(l.Message("n", sent), sent.Add(time.Second))
	if back.Node != "n" {
		t.Errorf("it is of %q", back.Node)
	}
	for _, s := range Samples() {
		if late := s.At(&back.Load).Sub(s.At(&l).Time); late != time.Second {
			t.Errorf("%s was taken %v later than it was", s.Name, late)
		}
		for _, signal := range s.Signals {
			if got := signal.In(&back.Load); got != signal.In(&l) {
				t.Errorf("%s is %v, want %v", signal.Name, got, signal.In(&l))
			}
		}
	}
	if got := FromMessage((&Load{}).Message("n", now), now); !reflect.DeepEqual(got.Load, Load{}) {
		t.Errorf("of nothing: %+v", got.Load)
	}
}

// TestAbsurd: impossible figures are unknown. Ages neither overflow nor lie in the future.
func TestAbsurd(t *testing.T) {
	now := time.Now()
	for _, s := range Samples() {
		for _, signal := range s.Signals {
			for _, v := range []float64{-1, signal.Most * 1.01, math.NaN(), math.Inf(1), math.Inf(-1)} {
				if signal.field == nil {
					continue
				}
				m := &pb.NodeLoad{}
				*signal.field(m) = &v
				if r := FromMessage(m, now); !reflect.DeepEqual(r.Load, Load{}) {
					t.Errorf("%s of %g: %+v", signal.Name, v, r.Load)
				}
			}
			l := full(now)
			*signal.gauge(&l) = Known(signal.Most * 1.01)
			if err := l.Check(); err == nil || !strings.Contains(err.Error(), signal.Name) {
				t.Errorf("%s above its bound: %v", signal.Name, err)
			}
			if l.Fit(); signal.In(&l) != (Gauge{}) || l.Check() != nil {
				t.Errorf("%s above its bound is made %v", signal.Name, signal.In(&l))
			}
		}
		for us, want := range map[uint64]time.Time{0: now, math.MaxUint64: now.Add(-longest)} {
			m := &pb.NodeLoad{}
			*s.age(m) = &us
			if r := FromMessage(m, now); !s.At(&r.Load).Equal(want) {
				t.Errorf("%s that is %d us old was taken at %v", s.Name, us, s.At(&r.Load))
			}
		}
	}
	if l := full(now); l.Check() != nil {
		t.Error(l.Check())
	}
	if us := Micros(now, now.Add(-time.Hour)); *us != 0 {
		t.Errorf("the age of the future is %d", *us)
	}
}

// TestForget: each group is forgotten by the age of its own sample.
func TestForget(t *testing.T) {
	now := time.Now()
	for i, old := range Samples() {
		l := full(now)
		for _, s := range Samples() {
			*s.at(&l) = Taken{now}
		}
		*old.at(&l) = Taken{now.Add(-time.Second)}
		l.Forget(now.Add(14*time.Second+time.Nanosecond), 15*time.Second)
		for k, s := range Samples() {
			if s.At(&l).IsZero() != (i == k) || s.known(&l) == (i == k) {
				t.Errorf("%s is old: %s is %+v", old.Name, s.Name, l)
			}
		}
	}
}

// TestArrived: a sample without an age gets the time of its arrival, and unknown figures get no
// time.
func TestArrived(t *testing.T) {
	now := time.Now()
	taken := Taken{now.Add(-time.Minute)}
	l := Load{Engine: Engine{InFlight: Known(1)}, Kernel: Kernel{At: taken}, GPU: GPU{At: taken, SMPct: Known(5)}}
	l.Arrived(now)
	if !l.Engine.At.Equal(now) || !l.Kernel.At.IsZero() || l.GPU.At != taken || !l.Power.At.IsZero() {
		t.Errorf("%+v", l)
	}
}

// TestMoved: a figure has moved at its step, or at its share of a large value, and when it becomes
// known or unknown.
func TestMoved(t *testing.T) {
	now := time.Now()
	for _, s := range Samples() {
		for _, signal := range s.Signals {
			old := full(now)
			for _, v := range []float64{0, 10 * signal.step, 1000 * signal.step} {
				if signal.step == 0 {
					continue
				}
				least := max(signal.step, signal.share*v)
				*signal.gauge(&old) = Known(v)
				for by, want := range map[float64]bool{0: false, 0.99 * least: false, 1.01 * least: true} {
					l := old
					if *signal.gauge(&l) = Known(v + by); l.Moved(&old) != want {
						t.Errorf("%s from %g by %g has moved: %v", signal.Name, v, by, !want)
					}
				}
			}
			l := old
			*signal.gauge(&l) = Gauge{}
			if !l.Moved(&old) || !old.Moved(&l) || l.Moved(&l) {
				t.Errorf("%s becomes known or unknown", signal.Name)
			}
		}
	}
	a, b := full(now), full(now)
	b.FreeBlocks = Known(1e6)
	if a.Moved(&b) {
		t.Error("blocks are not told at once")
	}
	if n := testing.AllocsPerRun(100, func() { a.Moved(&b) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
}

// TestDerived: a figure that is derived from others is unknown if one of them is.
func TestDerived(t *testing.T) {
	e := Engine{FreeBlocks: Known(25), TotalBlocks: Known(100), KVUsage: Known(0.1)}
	if e.CacheUsage() != Known(0.75) {
		t.Errorf("cache %v", e.CacheUsage())
	}
	e.TotalBlocks = Gauge{}
	if e.CacheUsage() != Known(0.1) {
		t.Errorf("cache %v", e.CacheUsage())
	}
	p := Power{Watts: Known(100)}
	if p.Drawn() != Known(100) {
		t.Error("the latest counts without a mean")
	}
	if p.WattsAvg30 = Known(80); p.Drawn() != Known(80) {
		t.Error("the mean counts")
	}
}

// TestGPUFigures: MeanGPU averages each figure of a GPU once.
func TestGPUFigures(t *testing.T) {
	var l Load
	figures, signals := l.GPU.figures(), GPUSignals()
	if len(figures) != len(signals) {
		t.Fatalf("%d figures, and %d signals", len(figures), len(signals))
	}
	for i := range signals {
		if figures[i] != signals[i].gauge(&l) {
			t.Errorf("figure %d is not %s, as its signal is", i, signals[i].Name)
		}
	}
}

// TestMeanGPU: the result has the mean of each figure, and the time of the oldest reading.
func TestMeanGPU(t *testing.T) {
	now := time.Now()
	loads := make([]Load, 3)
	for i := range loads {
		loads[i].GPU.At = Taken{now.Add(time.Duration((i+2)%3) * time.Second)} // the second is the oldest
		for k, signal := range GPUSignals() {
			*signal.gauge(&loads[i]) = Known(float64(10*i*i + k))
		}
	}
	of := func(i int) *GPU { return &loads[i].GPU }
	check := func(n int, at Taken, want func(k int) Gauge) {
		t.Helper()
		l := Load{GPU: MeanGPU(n, of)}
		if l.GPU.At != at {
			t.Errorf("of %d: taken at %v, want %v", n, l.GPU.At, at)
		}
		for k, signal := range GPUSignals() {
			if got := signal.In(&l); got != want(k) {
				t.Errorf("of %d: %s is %v, want %v", n, signal.Name, got, want(k))
			}
		}
	}
	unknown := func(int) Gauge { return Gauge{} }
	check(0, Taken{}, unknown)
	check(1, loads[0].GPU.At, func(k int) Gauge { return Known(float64(k)) })
	check(2, loads[1].GPU.At, func(k int) Gauge { return Known(float64(5 + k)) })
	check(3, loads[1].GPU.At, func(k int) Gauge { return Known(float64(50+3*k) / 3) })
	if n := testing.AllocsPerRun(100, func() { MeanGPU(len(loads), of) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
	for lost := range loads { // the first, one in the middle, the last
		old := loads[lost]
		for missing, signal := range GPUSignals() {
			*signal.gauge(&loads[lost]) = Gauge{}
			check(3, loads[1].GPU.At, func(k int) Gauge {
				if k == missing {
					return Gauge{}
				}
				return Known(float64(50+3*k) / 3)
			})
			loads[lost] = old
		}
	}
}
