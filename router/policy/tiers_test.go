package policy

import (
	"encoding/json"
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
		`{"tiers":{"host":2}}`:  "tiers.host: 2 is refused",
		`{"tiers":{"ssd":1}}`:   "tiers.ssd: unknown key; there are device, host, disk, shared",
		`{"tiers":1}`:           "tiers: not a JSON object",
		`{"tiers":{"disk":""}}`: "tiers.disk",
	} {
		if _, err := Parse([]byte(doc)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", doc, err)
		}
	}
}
