package gate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

func TestThresholds(t *testing.T) {
	th, err := readThresholds(thresholdsTOML)
	if err != nil || len(th.Gates) != len(gauges) {
		t.Fatalf("%d of %d gates have a limit: %v", len(th.Gates), len(gauges), err)
	}
	for _, bad := range []string{
		"[[gate]]\nname = \"calls_per_token\"\nlimit = 1.0\n",
		"[[gate]]\nname = \"nothing\"\nlimit = 1.0\nreason = \"r\"\n",
		"[[gate]]\nname = \"calls_per_token\"\nlimit = 0.0\nreason = \"r\"\n",
		"[[gates]]\n", "[",
	} {
		if _, err := readThresholds(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// TestAttempts: a figure over its limit is measured again, and the gate fails only if it stays
// there.
func TestAttempts(t *testing.T) {
	var values []float64
	var failure error
	gauges["test"] = func(context.Context, *site) (float64, string, error) {
		if failure != nil {
			return 0, "", failure
		}
		v := values[0]
		values = values[1:]
		return v, "detail", nil
	}
	defer delete(gauges, "test")
	check := func(v ...float64) Report {
		values = v
		o, err := (&site{}).check(context.Background(), Gate{"test", 2, "the reason"}, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		return Report{Outcomes: []Outcome{o}}
	}
	for _, tc := range []struct {
		values []float64
		used   int
		passes bool
	}{{[]float64{1, 9}, 1, true}, {[]float64{3, 2, 9}, 2, true}, {[]float64{3, 4, 1}, 3, true}, {[]float64{3, 4, 5, 1},
		3, false}} {
		r := check(tc.values...)
		if len(r.Outcomes[0].Values) != tc.used || (r.Err() == nil) != tc.passes {
			t.Errorf("%v: %v, %v", tc.values, r.Outcomes[0], r.Err())
		}
		if text := r.String(); !tc.passes && (!strings.Contains(text, "FAIL test") ||
			!strings.Contains(text, "the reason") || !strings.Contains(text, "detail")) {
			t.Errorf("a failure is reported as %s", text)
		}
	}
	failure = fmt.Errorf("%w: no strace", errUnmeasured)
	r := check()
	if r.Err() != nil || !strings.Contains(r.String(), "SKIP test") || !strings.Contains(r.String(), "no strace") {
		t.Errorf("not measured: %v\n%s", r.Err(), r.String())
	}
	if r.Strict = true; r.Err() == nil || !strings.Contains(r.String(), "FAIL test") {
		t.Errorf("not measured, strictly: %v\n%s", r.Err(), r.String())
	}
}

// TestInterrupted: the value of an interrupted measurement is not used.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	gauges["test"] = func(context.Context, *site) (float64, string, error) {
		cancel()
		return 1, "", nil
	}
	defer delete(gauges, "test")
	if o, err := (&site{}).check(ctx, Gate{"test", 2, "the reason"}, io.Discard); !errors.Is(err, errInterrupted) ||
		len(o.Values) > 0 {
		t.Errorf("%v, %v", o, err)
	}
	if _, err := Run(ctx, Config{Root: "/nope"}); err == nil || !strings.Contains(err.Error(), "--root /nope") {
		t.Errorf("a root that is not there: %v", err)
	}
}
