package cluster

import (
	"fmt"
	"strings"
	"testing"
)

func TestCheckLabels(t *testing.T) {
	many := make([]string, maxLabels+1)
	for i := range many {
		many[i] = fmt.Sprint("l", i)
	}
	for _, c := range []struct {
		labels []string
		want   string // part of the error; empty: none
	}{
		{nil, ""},
		{[]string{"gpu=h100", "fast", "zone=größe", strings.Repeat("x", maxLabelBytes)}, ""},
		{many[1:], ""},
		{many, "33 labels; a node has at most 32"},
		{[]string{"a", ""}, "a label is empty; write"},
		{[]string{"a", "b", "a"}, `"a" is given twice`},
		{[]string{strings.Repeat("x", maxLabelBytes+1)}, "has 129 bytes; a label has at most 128"},
		{[]string{"a b"}, `"a b" holds a space`},
		{[]string{"a,b"}, "holds a space, a comma"},
		{[]string{`a"b`}, "a quote"},
		{[]string{"a\x00b"}, "cannot be printed"},
		{[]string{"a\xff"}, "cannot be printed"},
	} {
		err := CheckLabels(c.labels)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60q: %v, want %q", c.labels, err, c.want)
		}
	}
}

// TestLabelsOfANode checks that a node with invalid labels is used without labels, and that a node
// without labels is valid. A version that is too long is unknown.
func TestLabelsOfANode(t *testing.T) {
	value := func(labels string) []byte {
		return fmt.Appendf(nil, `{"node_id":"n","address":"http://h:1","models":["m"]%s}`, labels)
	}
	for labels, want := range map[string]int{
		"": 0, `,"labels":[]`: 0, `,"labels":["gpu=h100","zone=a"]`: 2, `,"labels":["gpu=h100","a b"]`: 0,
	} {
		h, err := ParseNodeHealth("n", value(labels))
		if err != nil || len(h.Labels) != want || (h.LeftOut != nil) != strings.Contains(labels, "a b") {
			t.Errorf("%s: %+v, %v", labels, h, err)
		}
	}
	h, _ := ParseNodeHealth("n", value(`,"labels":["a b"]`))
	if !strings.Contains(fmt.Sprint(h.LeftOut), "labels: ") {
		t.Errorf("left out: %v", h.LeftOut)
	}
	if h, err := ParseNodeHealth("n", value(`,"max_batched_tokens":8192,"engine_version":"`+
		strings.Repeat("9", maxVersion+1)+`"`)); err != nil || h.MaxBatchedTokens != 8192 || h.EngineVersion != "" {
		t.Errorf("%+v, %v", h, err)
	}
	for n, want := range map[int]int{1: 1, maxGPUModel: maxGPUModel, maxGPUModel + 1: 0} {
		h, err := ParseNodeHealth("n", value(`,"gpu_model":"`+strings.Repeat("H", n)+`"`))
		if err != nil || len(h.GPUModel) != want {
			t.Errorf("a GPU's name of %d bytes: %d are kept, %v", n, len(h.GPUModel), err)
			continue
		}
		if h.GPUModel = strings.Repeat("H", n); want == 0 {
			if h.Fit(); h.GPUModel != "" {
				t.Error("an agent announces a GPU's name that is too long")
			}
		}
	}
	if _, err := ParseNodeHealth("n", value(`,"max_batched_tokens":-1`)); err == nil {
		t.Error("a negative batch is taken")
	}
	h, err := ParseNodeHealth("n", value(`,"data_parallel_size":2,"in_flight":3,"ranks":[{"in_flight":1},{"in_flight":2}]`))
	if err != nil || h.DataParallel != 2 || len(h.Ranks) != 2 || h.Ranks[1].InFlight.Or(0) != 2 {
		t.Errorf("%+v, %v", h, err)
	}
	for _, bad := range []string{`,"data_parallel_size":-1`, `,"data_parallel_size":65`, `,"ranks":[{"kv_usage":2}]`} {
		if _, err := ParseNodeHealth("n", value(bad)); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
	if h.Labels = []string{""}; h.Check() == nil {
		t.Error("an agent announces an empty label")
	}
}
