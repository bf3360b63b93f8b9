// Package sdk tests openai-go with the fleet that run.sh has started. The package is a separate
// module, so that the product does not depend on the SDK.
package sdk

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/packages/ssestream"
)

var (
	fleetURL = os.Getenv("CGN_SDK_FLEET") // three simulated engines behind agents, model "sim"
	// a router with one engine under the names of run.sh, and small limits
	strictURL = os.Getenv("CGN_SDK_STRICT")
	engines   = strings.Split(os.Getenv("CGN_SDK_ENGINES"), ",") // engines of the fleet
	locked    = os.Getenv("CGN_SDK_LOCKED")                      // engine of the strict router
)

const key = "sesame" // key that the locked engine requires

func client(router string, more ...option.RequestOption) openai.Client {
	all := []option.RequestOption{
		option.WithBaseURL(router + "/v1/"), option.WithAPIKey("none"), option.WithMaxRetries(0),
		option.WithRequestTimeout(30 * time.Second),
	}
	return openai.NewClient(append(all, more...)...)
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// control calls an endpoint of an engine's control API and returns the answer.
func control(t *testing.T, method, url string, body any) []byte {
	t.Helper()
	doc, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, url, bytes.NewReader(doc))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 300 {
		t.Fatalf("%s %s: %s %s %v", method, url, resp.Status, answer, err)
	}
	return answer
}

// setFault makes the engine's next requests fail with fault.
func setFault(t *testing.T, engine string, fault map[string]any) {
	t.Helper()
	control(t, http.MethodPost, engine+"/sim/fault", fault)
}

// engineSum returns the sum of a field of all engines' /sim/stats.
func engineSum(t *testing.T, field string) (sum float64) {
	t.Helper()
	for _, engine := range engines {
		var stats map[string]any
		if err := json.Unmarshal(control(t, http.MethodGet, engine+"/sim/stats", nil), &stats); err != nil {
			t.Fatal(err)
		}
		n, ok := stats[field].(float64)
		if !ok {
			t.Fatalf("no %s in %v", field, stats)
		}
		sum += n
	}
	return sum
}

func poll(t *testing.T, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}

// healthy clears the engines' faults and waits until every node takes requests again and its
// earlier failures no longer matter.
func healthy(t *testing.T) {
	t.Helper()
	for _, engine := range append([]string{locked}, engines...) {
		control(t, http.MethodDelete, engine+"/sim/fault", nil)
	}
	for _, node := range []string{"sim-1", "sim-2", "sim-3"} {
		settle(t, client(fleetURL, option.WithHeader("x-cgn-node", node)), "sim")
	}
	settle(t, client(strictURL), "keyed")
	settle(t, client(strictURL), "narrow")
}

func settle(t *testing.T, c openai.Client, model string) {
	t.Helper()
	poll(t, 15*time.Second, model+" answers", func() bool {
		for range 2 {
			_, err := c.Completions.New(t.Context(), completion(model, 1))
			var e *openai.Error
			if errors.As(err, &e) && e.StatusCode == http.StatusServiceUnavailable {
				return false
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		return true
	})
}

// holdStreams keeps one stream of the strict router open for each of models until release is
// called.
func holdStreams(t *testing.T, models []string) (release func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	for _, model := range models {
		c := client(strictURL)
		s := c.Completions.NewStreaming(ctx, completion(model, 4000))
		if !s.Next() {
			t.Fatalf("no stream to hold: %v", s.Err())
		}
	}
	return cancel
}

// engineNotices calls leave. Then some engine must see its client leave and stop computing.
func engineNotices(t *testing.T, leave func()) {
	t.Helper()
	before := engineSum(t, "aborted")
	leave()
	poll(t, 2*time.Second, "the engine notices that its client has left", func() bool {
		return engineSum(t, "aborted") > before && engineSum(t, "running") == 0
	})
}

func collect[T any](t *testing.T, s *ssestream.Stream[T]) (all []T) {
	t.Helper()
	for s.Next() {
		all = append(all, s.Current())
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}
