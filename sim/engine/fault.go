package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Fault describes the failure of a request. Several fields may be set. The zero value does nothing.
// As the header x-sim-fault a Fault is a comma-separated list such as "die_after=10,close=fin" or
// "status=429,retry_after=1".
type Fault struct {
	// DieAfter breaks the connection after that many tokens (0: before the first). Close is "rst"
	// (default) or "fin".
	DieAfter *int   `json:"die_after,omitempty"`
	Close    string `json:"close,omitempty"`
	// StallAfter stops sending after that many tokens. The connection stays open.
	StallAfter *int `json:"stall_after,omitempty"`
	// Hang never answers. HangBody sends only the head. Hang and HangBody last until the client
	// leaves or the engine closes.
	Hang     bool `json:"hang,omitempty"`
	HangBody bool `json:"hang_body,omitempty"`
	// Status answers with an error at once. RetryAfter adds the header, in seconds.
	Status     int `json:"status,omitempty"`
	RetryAfter int `json:"retry_after,omitempty"`
	// Slow first delays the request in wall time.
	Slow Duration `json:"slow,omitempty"`
	// Reset resets the connection before any answer. Garbage answers with bytes that are not HTTP.
	// Truncate closes the connection in the middle of the body.
	Reset    bool `json:"reset,omitempty"`
	Garbage  bool `json:"garbage,omitempty"`
	Truncate bool `json:"truncate,omitempty"`

	// NoStreamOptions answers 400 to a body with stream_options. NoCachedTokens leaves the cached
	// tokens out of the usage.
	NoStreamOptions bool `json:"no_stream_options,omitempty"`
	NoCachedTokens  bool `json:"no_cached_tokens,omitempty"`

	// NoTransfer answers without the parameters by which another engine gets the blocks. LoseBlocks
	// answers with them, but loses the blocks, like an engine that dies after its answer.
	NoTransfer bool `json:"no_transfer,omitempty"`
	LoseBlocks bool `json:"lose_blocks,omitempty"`
	// Crash kills the engine after the answer, for that wall time. The end of a stream may be lost.
	Crash Duration `json:"crash,omitempty"`
	// Leg restricts the fault to requests of one leg: "prefill" or "decode" of two engines, or
	// "whole" for a request that one engine answers.
	Leg Leg `json:"leg,omitempty"`

	// Refuse closes the listener and all connections for that wall time. Only the engine's fault
	// may set Refuse, not a request's.
	Refuse Duration `json:"refuse,omitempty"`

	// Count ends the engine's fault after that many strikes; 0 = never.
	Count int `json:"count,omitempty"`
	// Probability is the share of requests that the fault strikes, 0..1; 0 means every request.
	Probability float64 `json:"probability,omitempty"`
	// Path restricts the fault to one path. "*" is every path, /health included. The default is
	// every path that runs the model.
	Path string `json:"path,omitempty"`
}

// Duration is a time.Duration that JSON has as "2s", or as a number of seconds.
type Duration time.Duration

// UnmarshalJSON reads either form.
func (d *Duration) UnmarshalJSON(b []byte) error {
	v, err := parseDuration(strings.Trim(string(b), `"`))
	*d = Duration(v)
	return err
}

func parseDuration(s string) (time.Duration, error) {
	if seconds, err := strconv.ParseFloat(s, 64); err == nil {
		return time.Duration(seconds * float64(time.Second)), nil
	}
	return time.ParseDuration(s)
}

// ParseFault reads the value of an x-sim-fault header.
func ParseFault(s string) (Fault, error) {
	fields := map[string]any{}
	for item := range strings.SplitSeq(s, ",") {
		name, value, given := strings.Cut(strings.TrimSpace(item), "=")
		switch number, err := strconv.ParseFloat(value, 64); {
		case !given:
			fields[name] = true
		case err == nil && name != "slow" && name != "refuse" && name != "crash":
			fields[name] = number
		default:
			fields[name] = value
		}
	}
	doc, err := json.Marshal(fields)
	if err != nil {
		return Fault{}, err
	}
	return decodeFault(doc)
}

func decodeFault(doc []byte) (Fault, error) {
	var f Fault
	d := json.NewDecoder(strings.NewReader(string(doc)))
	d.DisallowUnknownFields()
	if err := d.Decode(&f); err != nil {
		return Fault{}, fmt.Errorf("fault: %w", err)
	}
	switch {
	case f.Status != 0 && (f.Status < 400 || f.Status > 599):
		return Fault{}, fmt.Errorf("fault: status %d is no error", f.Status)
	case f.Close != "" && f.Close != "rst" && f.Close != "fin":
		return Fault{}, fmt.Errorf("fault: close %q is neither rst nor fin", f.Close)
	case !slices.Contains([]Leg{LegAny, LegWhole, LegPrefill, LegDecode}, f.Leg):
		return Fault{}, fmt.Errorf("fault: leg %q is none of prefill, decode and whole", f.Leg)
	case f.Probability < 0 || f.Probability > 1:
		return Fault{}, errors.New("fault: probability is not in 0..1")
	}
	return f, nil
}

// faults holds the engine's own fault and decides which requests it strikes.
type faults struct {
	mu     sync.Mutex
	set    *Fault
	left   int
	random *rand.Rand
	change chan struct{} // closed and replaced when the fault changes
	struck atomic.Int64
}

func newFaults(seed uint64) *faults {
	return &faults{random: rand.New(rand.NewPCG(seed, 1)), change: make(chan struct{})}
}

func (f *faults) replace(with *Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.set = with
	if with != nil {
		f.left = with.Count
	}
	close(f.change)
	f.change = make(chan struct{})
}

// strike returns the fault of a request: its own, else the engine's. The channel is closed when the
// engine's fault changes. leg is called if a fault asks for one.
func (f *faults) strike(path string, runsModel bool, asked *Fault, leg func() Leg) (Fault, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if asked != nil && asked.Leg != LegAny && asked.Leg != leg() {
		asked = nil
	}
	switch {
	case asked != nil:
		f.struck.Add(1)
		return *asked, nil
	case f.set == nil || !f.set.covers(path, runsModel):
		return Fault{}, nil
	case f.set.Leg != LegAny && f.set.Leg != leg():
		return Fault{}, nil
	case f.set.Probability > 0 && f.random.Float64() >= f.set.Probability:
		return Fault{}, nil
	}
	hit := *f.set
	f.struck.Add(1)
	if f.left--; f.left == 0 && hit.Count > 0 {
		f.set = nil
	}
	return hit, f.change
}

func (f *Fault) covers(path string, runsModel bool) bool {
	if f.Path == "" {
		return runsModel
	}
	return f.Path == "*" || f.Path == path
}
