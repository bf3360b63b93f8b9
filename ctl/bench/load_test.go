package bench

import (
	"strings"
	"testing"

	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/perf/instant"
	"github.com/cognitora/dataplane/sim/engine"
)

func TestBenchLoadRefuses(t *testing.T) {
	e, err := instant.Start(instant.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	for args, want := range map[string]string{
		"":                    "the mode is missing: must be closed, open or streams",
		"both":                "\"both\": must be closed, open or streams",
		"closed open":         "must be closed, open or streams",
		"closed --rate 5":     "--rate means nothing for closed: it is for open",
		"open --shared 2":     "--shared 2: must be 0 to 1",
		"open --for 1us":      "--for 1µs: must be 1ms or more",
		"closed --streams 2":  "--streams means nothing for closed: it is for streams",
		"streams --clients 2": "--clients means nothing for streams: it is for closed and open",
	} {
		out, err := ctl(t, nil, append([]string{"bench", "load", "--url", e.URL()}, strings.Fields(args)...)...)
		if err == nil || !strings.Contains(err.Error(), want) || out != "" {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
}

// TestBenchLoadSaysWhatFailed: the output shows one failed answer, and the models that exist.
func TestBenchLoadSaysWhatFailed(t *testing.T) {
	e, err := engine.New(engine.Config{Models: []string{"served"}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	args := []string{"bench", "load", "closed", "--clients", "1", "--warmup", "0s", "--for", "100ms", "--url"}
	_, err = ctl(t, nil, append(args, e.URL(), "--model", "other")...)
	if err == nil || !strings.Contains(err.Error(), "nothing was measured: status 404: {") {
		t.Fatal(err)
	}
	ctltest.Want(t, ctltest.Hint(err), "\"other\" was asked for", "--model", "/v1/models lists served")
	for at, want := range map[string]string{
		e.URL() + "/some/v1": "with /v1 or without", "http://127.0.0.1": "must be http://HOST:PORT",
		"https://127.0.0.1:1": "must be http://HOST:PORT", "http://a:secret@127.0.0.1:1": `"http://***@127.0.0.1:1"`,
	} {
		if _, err = ctl(t, nil, append(args, at)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", at, err)
		}
	}
	_, err = ctl(t, nil, append(args, "http://127.0.0.1:1")...)
	if err == nil || !strings.Contains(err.Error(), "nothing was measured: ") ||
		!strings.Contains(err.Error(), "127.0.0.1:1: connect") {
		t.Error(err)
	}
}

func TestStreamsThatEndTooSoon(t *testing.T) {
	e, err := instant.Start(instant.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	out, err := ctl(t, nil, "bench", "load", "streams", "--streams", "2", "--pace", "0s", "--ramp", "0s", "--warmup",
		"2s", "--url", e.URL())
	if err == nil || !strings.Contains(err.Error(), "nothing was answered within the measured time") || out != "" {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := ctl(t, nil, "bench", "engine", "--listen", "foo"); err == nil || strings.Contains(err.Error(), "\n") ||
		!strings.Contains(err.Error(), "HOST:PORT, with --listen") {
		t.Error(err)
	}
	if _, err := ctl(t, nil, "bench", "engine", "--listen", e.Addr()); err == nil ||
		!strings.Contains(err.Error(), "the port is in use") {
		t.Error(err)
	}
}
