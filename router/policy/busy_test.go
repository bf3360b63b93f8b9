package policy

import (
	"encoding/json"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router/busy"
)

// TestBusyThresholds reads thresholds, and writes and shows those that are set.
func TestBusyThresholds(t *testing.T) {
	p, err := Parse([]byte(`{"busy":{"active_decode_blocks_threshold":0,"active_prefill_tokens_threshold":1e3}}`))
	if err != nil {
		t.Fatal(err)
	}
	want := busy.Thresholds{DecodeBlocks: new(0.0), PrefillTokens: new(1000)}
	if !reflect.DeepEqual(p.Busy, want) || Default().Busy != (busy.Thresholds{}) {
		t.Errorf("%+v", p.Busy)
	}
	part, err := Parse([]byte(`{"busy":{"active_prefill_tokens_threshold_frac":1.5}}`))
	if err != nil || !reflect.DeepEqual(part.Busy, busy.Thresholds{PrefillFraction: new(1.5)}) {
		t.Errorf("%+v, %v", part, err)
	}
	doc, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	back, err := Parse(doc)
	if err != nil || !reflect.DeepEqual(back, p) {
		t.Errorf("%s: %+v, %v", doc, back, err)
	}
	var shown []string
	for _, s := range p.Settings() {
		if strings.Contains(s.Name, "busy") {
			text, _ := json.Marshal(s.Value)
			shown = append(shown, s.Name+" "+string(text))
		}
	}
	if got := strings.Join(shown, ", "); got != "busy.active_decode_blocks_threshold 0, "+
		"busy.active_prefill_tokens_threshold 1000" {
		t.Errorf("shown: %s", got)
	}
	p.Busy.DecodeBlocks = new(math.NaN())
	if err := p.Validate(); err == nil || !strings.Contains(err.Error(), "busy.active_decode_blocks_threshold: NaN") {
		t.Errorf("validated: %v", err)
	}
}

func TestBusyThresholdsAreRefused(t *testing.T) {
	for section, want := range map[string]string{
		`[]`: "busy: not a JSON object, allowed: an object of active_decode_blocks_threshold, active_prefill",
		`{"active_decode_blocks_threshold":1.5}`: "busy.active_decode_blocks_threshold: 1.5 is refused, allowed: a number " +
			"from 0 to 1",
		`{"active_decode_blocks_threshold":null}`:       "busy.active_decode_blocks_threshold: null is refused",
		`{"active_decode_blocks_threshold":"0.5"}`:      `busy.active_decode_blocks_threshold: "0.5" is refused`,
		`{"active_prefill_tokens_threshold":1.5}`:       "threshold: 1.5 is refused, allowed: a whole number from 0 to 1099511627776",
		`{"active_prefill_tokens_threshold":-1}`:        "busy.active_prefill_tokens_threshold: -1 is refused",
		`{"active_prefill_tokens_threshold_frac":-.5}`:  "malformed JSON",
		`{"active_prefill_tokens_threshold_frac":1e9}{`: "malformed JSON",
		`{"active_decode_block_threshold":0.5}`: "busy.active_decode_block_threshold: unknown key; there are active_decode_" +
			"blocks_threshold, active_prefill_tokens_threshold, active_prefill_tokens_threshold_frac; did you mean " +
			"active_decode_blocks_threshold?",
	} {
		refused(t, `{"busy":`+section+`}`, want)
	}
	refused(t, `{"active_prefill_tokens_threshold":7}`, "did you mean busy.active_prefill_tokens_threshold?")
}
