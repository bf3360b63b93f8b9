package disturb

import (
	"bytes"
	"encoding/json"
	"os"

	"github.com/cognitora/dataplane/perf/trace"
)

// traceStep divides the timestamps of the public traces, with deviations of at most one. traceStep
// is in milliseconds.
const traceStep = 3000

// source returns the trace in a file with its requests spread evenly over its steps, or the
// generator's trace if there is no file. source reads n requests into memory. It leaves out prompts
// of more than mostInput tokens, which an engine with a shorter context would not get.
func source(file string, n, mostInput int) ([]trace.Request, error) {
	var all trace.Source = (&trace.Generator{Requests: 4 * n, Seed: 1}).Source()
	if file != "" {
		in, err := os.Open(file)
		if err != nil {
			return nil, err
		}
		defer in.Close()
		all = trace.NewReader(in)
	}
	var kept []trace.Request
	for q, err := range trace.All(all) {
		if err != nil {
			return nil, err
		}
		if q.InputLength <= mostInput {
			kept = append(kept, q)
		}
		if len(kept) == n {
			break
		}
	}
	if file != "" {
		spread(kept)
	}
	return kept, nil
}

// writeTrace writes requests into a file.
func writeTrace(to string, all []trace.Request) error {
	var text bytes.Buffer
	for _, q := range all {
		if err := json.NewEncoder(&text).Encode(q); err != nil {
			return err
		}
	}
	return os.WriteFile(to, text.Bytes(), 0o600)
}

// spread gives the requests of one step different times within the step, and keeps their order.
func spread(all []trace.Request) {
	step := func(i int) int64 { return (all[i].Timestamp + traceStep/2) / traceStep }
	for first := 0; first < len(all); {
		end := first
		for end < len(all) && step(end) == step(first) {
			end++
		}
		at := step(first) * traceStep
		for i := first; i < end; i++ {
			all[i].Timestamp = at + int64(i-first)*traceStep/int64(end-first)
		}
		first = end
	}
}
