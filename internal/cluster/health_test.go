package cluster

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/internal/lora"
)

const goodNode = `{"node_id":"n1","address":"http://10.0.0.1:7070","role":"decode","engine":"vllm","models":["m"],"tp":2,"gpu_model":"NVIDIA H100 80GB HBM3",
"max_concurrent":8,"engine_slots":16,"heartbeat_s":20,"in_flight":3,"queue_depth":0,"sm_pct":42.5,"ready":true,` +
	`"stamp":1700000000000,"from_the_future":{"a":[1]}}`

func TestUnknownIsNotZero(t *testing.T) {
	h, err := ParseNodeHealth("n1", []byte(goodNode))
	if err != nil {
		t.Fatal(err)
	}
	if v, known := h.QueueDepth.Get(); v != 0 || !known {
		t.Errorf("queue_depth 0 reads as %v %v", v, known)
	}
	if _, known := h.Watts.Get(); known {
		t.Error("absent power_watts is known")
	}
	if _, known := h.CPUPct.Get(); known {
		t.Error("unknown gauge is not NaN")
	}
	out, err := json.Marshal(h)
	if err != nil {
		t.Fatal(err)
	}
	if s := string(out); strings.Contains(s, "power_watts") || !strings.Contains(s, `"queue_depth":0`) ||
		!strings.Contains(s, `"sm_pct":42.5`) {
		t.Errorf("written as %s", s)
	}
	again, err := ParseNodeHealth("n1", out)
	if err != nil || again.SMPct != h.SMPct || again.Role != RoleDecode ||
		again.GPUModel != "NVIDIA H100 80GB HBM3" {
		t.Errorf("round trip: %+v %v", again, err)
	}
}

func TestBadValuesAreRefused(t *testing.T) {
	edit := func(from, to string) string { return strings.Replace(goodNode, from, to, 1) }
	for name, c := range map[string]struct{ value, says string }{
		"not JSON":         {"{", "unexpected end"},
		"other node":       {edit(`"n1"`, `"n2"`), "node_id"},
		"wrong type":       {edit(`42.5`, `"much"`), "want a number"},
		"role":             {edit(`decode`, `boss`), "prefill, decode, both"},
		"address":          {edit(`http://10.0.0.1:7070`, `10.0.0.1:7070`), "address"},
		"address scheme":   {edit(`http://`, `ftp://`), "want http://host:port"},
		"port":             {edit(`:7070`, `:70700`), "port"},
		"percentage":       {edit(`42.5`, `420`), "sm_pct"},
		"negative":         {edit(`"in_flight":3`, `"in_flight":-3`), "in_flight"},
		"slots":            {edit(`"max_concurrent":8`, `"max_concurrent":-8`), "max_concurrent"},
		"engine's slots":   {edit(`"engine_slots":16`, `"engine_slots":2000000`), "engine_slots"},
		"heartbeat":        {edit(`"heartbeat_s":20`, `"heartbeat_s":301`), "heartbeat_s"},
		"negative beat":    {edit(`"heartbeat_s":20`, `"heartbeat_s":-1`), "heartbeat_s"},
		"age":              {edit(`"sm_pct":42.5`, `"sm_age_ms":-1`), "age"},
		"endless age":      {edit(`"sm_pct":42.5`, `"sm_age_ms":1e13`), "age"},
		"empty model":      {edit(`["m"]`, `[""]`), "models"},
		"too large":        {goodNode + strings.Repeat(" ", maxValueBytes), "bytes"},
		"empty adapter":    {edit(`"tp":2`, `"adapters":[{"base":"m"}]`), "adapters holds an empty name"},
		"idle adapter":     {edit(`"tp":2`, `"adapters":[{"name":"a","idle_ms":-1}]`), "idle_ms -1"},
		"adapter slots":    {edit(`"tp":2`, `"adapter_slots":-1`), "adapter_slots"},
		"models is a text": {edit(`["m"]`, `"m"`), "models"},
	} {
		if _, err := ParseNodeHealth("n1", []byte(c.value)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error %v, want one about %q", name, err, c.says)
		}
	}
}

func TestFitMakesWhatAnEngineSaysAnnounceable(t *testing.T) {
	h := NodeHealth{
		NodeID: "n1", Address: "http://10.0.0.1:1", EngineSlots: -4,
		Models: []string{"", "m", strings.Repeat("x", 513)},
		Load: load.Load{
			Engine: load.Engine{InFlight: load.Known(-1), QueueDepth: load.Known(2), TotalBlocks: load.Known(1e300)},
			Kernel: load.Kernel{CPUPct: load.Known(12)},
		},
	}
	for i := range 2000 {
		h.Models = append(h.Models, strings.Repeat("<", 100)+strconv.Itoa(i)) // each < takes six bytes in JSON
	}
	if h.Check() == nil {
		t.Fatal("nothing to mend")
	}
	h.Fit()
	if err := h.Check(); err != nil {
		t.Fatal(err)
	}
	out, err := json.Marshal(h)
	if err != nil || len(out) > maxValueBytes || len(h.Models) < 50 || h.Models[0] != "m" {
		t.Errorf("%d bytes with %d models, %v", len(out), len(h.Models), err)
	}
	if h.EngineSlots != 0 || !h.InFlight.IsZero() || !h.TotalBlocks.IsZero() {
		t.Errorf("not unknown: %+v", h)
	}
	if h.QueueDepth != load.Known(2) || h.CPUPct != load.Known(12) {
		t.Errorf("what was right has changed: %+v", h)
	}
}

// TestHeartbeat: an agent's heartbeat is used, but never a shorter one than the default.
func TestHeartbeat(t *testing.T) {
	for says, want := range map[float64]time.Duration{
		0: 5 * time.Second, 0.1: 5 * time.Second, 7.5: 7500 * time.Millisecond, 300: MaxHeartbeat,
	} {
		if got := (&NodeHealth{HeartbeatS: says}).Heartbeat(); got != want {
			t.Errorf("%g s: %v, want %v", says, got, want)
		}
	}
}

func TestRoleDefaultsToBoth(t *testing.T) {
	h, err := ParseNodeHealth("n1", []byte(`{"node_id":"n1","address":"unix:///run/x.sock","models":[]}`))
	if err != nil || h.Role != RoleBoth {
		t.Fatalf("%+v %v", h, err)
	}
}

func TestNodeIDs(t *testing.T) {
	for _, id := range []string{"gpu-1", "10.0.0.1:8000", "a_B.c"} {
		if err := CheckNodeID(id); err != nil {
			t.Error(err)
		}
	}
	for _, id := range []string{"", "a/b", "a b", "ä", strings.Repeat("x", 129)} {
		if CheckNodeID(id) == nil {
			t.Errorf("%q is accepted", id)
		}
	}
}

func TestCordonsAndModels(t *testing.T) {
	if c := ParseCordon([]byte("not json")); c.Drain {
		t.Error("garbage drains")
	}
	if c := ParseCordon([]byte(`{"drain":true,"reason":"kernel"}`)); !c.Drain || c.Reason != "kernel" {
		t.Errorf("%+v", c)
	}
	if m, err := ParseModel("org/m", []byte(`{"aliases":["gpt-4"],"other":["x"]}`)); err != nil ||
		m.Aliases[0] != "gpt-4" {
		t.Errorf("%+v %v", m, err)
	}
	for _, bad := range []string{`{"aliases":"x"}`, `{"aliases":[""]}`, `[`} {
		if _, err := ParseModel("m", []byte(bad)); err == nil {
			t.Errorf("%s is accepted", bad)
		}
	}
}

// TestAdapters: a node's value has the listed adapters with their times of use, as far as they fit.
func TestAdapters(t *testing.T) {
	now := time.UnixMilli(1_800_000_000_000)
	h := NodeHealth{NodeID: "n1", Address: "http://10.0.0.1:1", Models: []string{"m", "a", "b"}, AdapterSlots: 2}
	h.Adapters = AdaptersOf([]lora.State{
		{Adapter: lora.Adapter{Name: "a", Base: "m"}, Listed: true, Used: now.Add(-3 * time.Second)},
		{Adapter: lora.Adapter{Name: "b", Base: "m"}, Listed: true},
		{Adapter: lora.Adapter{Name: "expected", Base: "m"}},
	}, now)
	h.Fit()
	value, err := json.Marshal(h)
	if err != nil || !strings.Contains(string(value),
		`"adapters":[{"name":"a","base":"m","idle_ms":3000},{"name":"b","base":"m"}],"adapter_slots":2`) {
		t.Fatalf("%s %v", value, err)
	}
	back, err := ParseNodeHealth("n1", value)
	if err != nil || len(back.Listed()) != 2 || back.Listed()[0] != (lora.Adapter{Name: "a", Base: "m"}) {
		t.Fatalf("%+v %v", back, err)
	}
	later := now.Add(time.Minute) // of another clock
	if at, ok := back.Adapters[0].UsedAt(later); !ok || at != later.Add(-3*time.Second) {
		t.Errorf("used at %v %v", at, ok)
	}
	if _, ok := back.Adapters[1].UsedAt(later); ok {
		t.Error("an adapter without a use has one")
	}
	for i := range 1000 {
		h.Models = append(h.Models, strings.Repeat("x", 30)+strconv.Itoa(i))
		h.Adapters = append(h.Adapters, Adapter{Name: h.Models[i+3], Base: "m"})
	}
	h.AdapterSlots = -1
	h.Adapters = append([]Adapter{{Name: ""}}, h.Adapters...)
	h.Fit()
	if value, err = json.Marshal(h); err != nil || len(value) > maxValueBytes || len(h.Models) != 1003 ||
		len(h.Adapters) < 100 || h.Adapters[0].Name != "a" || h.AdapterSlots != 0 {
		t.Errorf("%d bytes, %d models, %d adapters, %v", len(value), len(h.Models), len(h.Adapters), err)
	}
	if _, err := ParseNodeHealth("n1", value); err != nil {
		t.Error(err)
	}
}

func FuzzParseNodeHealth(f *testing.F) {
	f.Add([]byte(goodNode))
	f.Add([]byte(`{"node_id":"n1","address":"http://h","in_flight":null}`))
	f.Fuzz(func(t *testing.T, value []byte) {
		h, err := ParseNodeHealth("n1", value)
		if err != nil {
			return
		}
		if len(h.GPUModel) > maxGPUModel {
			t.Fatalf("a GPU's name of %d bytes", len(h.GPUModel))
		}
		out, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseNodeHealth("n1", out); err != nil && len(out) <= maxValueBytes {
			t.Fatalf("accepted %q, not %q: %v", value, out, err)
		}
	})
}
