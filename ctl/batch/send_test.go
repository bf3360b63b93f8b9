package batch

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestOverload checks that requests for which the router has no room are sent again.
func TestOverload(t *testing.T) {
	f := newFleet(t, engine.Config{DecodeStep: 5 * time.Millisecond},
		func(c *router.Config) { c.Router.Backends[0] += ",max_concurrent=2" })
	name := file(t, many(8, 20)...)
	s, _, err := ctl(t, t.Context(), nil, name, "--url", f.url)
	if err != nil || s.Answered != 8 || f.engine.Stats().MaxRunning > 2 {
		t.Errorf("%+v, %v", s, err)
	}
	name = file(t, many(8, 20)...)
	s, _, err = ctl(t, t.Context(), nil, name, "--url", f.url, "--patience", "0s")
	if err == nil || s.Failed == 0 {
		t.Errorf("without patience: %+v, %v", s, err)
	}
	for _, r := range records(t, strings.Replace(name, ".jsonl", ".errors.jsonl", 1)) {
		if r.Response == nil || r.Response.StatusCode != http.StatusServiceUnavailable {
			t.Errorf("%+v", r)
		}
	}
}

// endpoint answers each request by its custom_id, which is also its prompt's.
func endpoint(t *testing.T, answer func(w http.ResponseWriter, id string, try int)) string {
	var mu sync.Mutex
	tries := map[string]int{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			return
		}
		if p := r.Header.Get("x-dynamo-request-priority"); p != "-2147483648" {
			t.Errorf("priority %q", p)
		}
		body, _ := io.ReadAll(r.Body)
		_, id, _ := strings.Cut(string(body), "<b>")
		id, _, _ = strings.Cut(id, "<")
		mu.Lock()
		tries[id]++
		try := tries[id]
		mu.Unlock()
		answer(w, id, try)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// TestAnswers checks which answers are tried again, and what becomes of the others.
func TestAnswers(t *testing.T) {
	var mu sync.Mutex
	last := map[string]int{}
	url := endpoint(t, func(w http.ResponseWriter, id string, try int) {
		mu.Lock()
		last[id] = try
		mu.Unlock()
		status, header, text := 200, "", `{"n":12345678901234567890, "t":"<&>\u2028"}`
		switch {
		case id == "quota":
			status, header, text = 429, "x-should-retry: false", `{"error":{}}`
		case id == "late":
			status, header = 429, "retry-after: 90000"
		case id == "page":
			status, text = 418, "<html>"
		case id == "text":
			text = "not JSON"
		case id == "broken":
			status = 500
		case id == "cut":
			panic(http.ErrAbortHandler)
		case id == "twice" && try == 1:
			status, header = 429, "retry-after-ms: 1"
		}
		if name, value, ok := strings.Cut(header, ": "); ok {
			w.Header().Set(name, value)
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	})
	var lines []string
	tries := map[string]int{"good": 1, "quota": 1, "late": 1, "page": 1, "text": 1, "broken": 3, "cut": 3, "twice": 2}
	for id := range tries {
		lines = append(lines, line(id, 1))
	}
	name := file(t, lines...)
	s, _, err := ctl(t, t.Context(), nil, name, "--url", url)
	if err == nil || s.Answered != 2 || s.Failed != 6 {
		t.Errorf("%+v, %v", s, err)
	}
	mu.Lock()
	defer mu.Unlock()
	for id, n := range tries {
		if last[id] != n {
			t.Errorf("%s was sent %d times, want %d", id, last[id], n)
		}
	}
	for _, r := range records(t, s.Out) {
		if string(r.Response.Body) != `{"n":12345678901234567890,"t":"<&>\u2028"}` {
			t.Errorf("%s", r.Response.Body)
		}
	}
	got := map[string]string{}
	for _, r := range records(t, s.Errors) {
		if r.Error != nil {
			got[r.CustomID] = r.Error.Code
		} else {
			got[r.CustomID] = fmt.Sprint(r.Response.StatusCode, string(r.Response.Body))
		}
	}
	for id, want := range map[string]string{"quota": `429{"error":{}}`, "late": "429{", "page": `418"\u003chtml`,
		"text": "invalid_answer", "broken": "500{", "cut": "no_answer"} {
		if !strings.HasPrefix(got[id], want) {
			t.Errorf("%s: %q, want %q", id, got[id], want)
		}
	}
}

// TestProgress checks the line of a run in which something waits.
func TestProgress(t *testing.T) {
	p := newProgress(io.Discard, 100, 10)
	p.begun = time.Now().Add(-10 * time.Second)
	for range 20 {
		p.ended(true)
	}
	p.ended(false)
	p.retrying(2)
	ctltest.Want(t, p.line(), "31 of 100 done, 2.1/s, 3", "s left, 1 failed, 2 wait to be tried again")
}

// TestPause checks the bounds of a pause.
func TestPause(t *testing.T) {
	for try := 1; try < 100; try++ {
		d := (&attempt{}).pause(try)
		if least := min(firstPause<<min(try-1, 20), mostPause) / 2; d < least || d > 2*least {
			t.Errorf("try %d: %v", try, d)
		}
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for header, want := range map[string]time.Duration{
		"retry-after: 7": 7 * time.Second, "retry-after: 0.5": 500 * time.Millisecond, "retry-after-ms: 12.5": 12500 *
			time.Microsecond,
		"retry-after: Fri, 02 Jan 2026 03:04:09 GMT": 4 * time.Second, "retry-after: Fri, 02 Jan 2026 03:04:01 GMT": 0,
		"retry-after: -1": 0, "retry-after: soon": 0, "retry-after: 1e300": 0, "retry-after: NaN": 0, "x: 1": 0,
	} {
		name, value, _ := strings.Cut(header, ": ")
		h := http.Header{}
		h.Set(name, value)
		if got := retryAfter(h, now); got != want {
			t.Errorf("%s: %v", header, got)
		}
	}
}
