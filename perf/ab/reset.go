package ab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/cognitora/dataplane/perf/replay"
	"github.com/cognitora/dataplane/perf/trace"
)

// Reset is the way in which a run finds no cached blocks of earlier runs.
type Reset string

// These are the ways.
const (
	ByText      Reset = "text"       // every run has another text
	ByCacheSalt Reset = "cache_salt" // every run has another cache_salt
	ByVLLM      Reset = "vllm"       // POST /reset_prefix_cache to each engine
	BySGLang    Reset = "sglang"     // POST /flush_cache to each engine
	None        Reset = "none"       // the caches stay as they are
)

// Resets lists the ways.
func Resets() []string {
	return []string{string(ByText), string(ByCacheSalt), string(ByVLLM), string(BySGLang), string(None)}
}

// ofEngine says how to empty the cache of an engine.
type ofEngine struct{ path, missing string }

var engineResets = map[Reset]ofEngine{
	ByVLLM:   {"/reset_prefix_cache", "vLLM has it only with VLLM_SERVER_DEV_MODE=1 in its environment"},
	BySGLang: {"/flush_cache", "is this SGLang?"},
}

// AsksEngines says whether the engines themselves must be asked.
func (r Reset) AsksEngines() bool { return engineResets[r].path != "" }

// empty lets the next run find empty caches.
func (r *runner) empty(ctx context.Context, cfg *replay.Config, site *Site) error {
	r.runs++
	salt := r.Salt + uint64(r.runs)
	switch r.Reset {
	case ByText:
		cfg.Text.Salt = salt
	case ByCacheSalt:
		cfg.CacheSalt = fmt.Sprintf("ab-%016x", salt)
	case ByVLLM, BySGLang:
		for _, n := range site.Nodes {
			if err := r.emptyNode(ctx, *cfg, n); err != nil {
				return fmt.Errorf("emptying the cache of %s: %w", n.ID, err)
			}
		}
	}
	return nil
}

// These constants bound the tries to empty a cache. Engines do not empty it while a request runs,
// and some say so only in their logs.
const (
	flushWithin = 30 * time.Second
	flushPause  = 200 * time.Millisecond
	flushTries  = 5
)

// emptyNode empties the cache of an engine and checks that it is empty.
func (r *runner) emptyNode(ctx context.Context, cfg replay.Config, n Node) error {
	for range flushTries {
		if err := engineResets[r.Reset].flush(ctx, n.Address, cfg.APIKey); err != nil {
			return err
		}
		if holds, err := r.holds(ctx, cfg, n); !holds {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(flushPause):
		}
	}
	return errors.New("it still has blocks from before after its reset" + instead)
}

// instead ends the errors of a reset.
const instead = "; or reset by text, which works with every engine (--reset text)"

// flush empties the cache of the engine at a URL.
func (e ofEngine) flush(ctx context.Context, at, key string) error {
	if !strings.HasPrefix(at, "http") {
		return fmt.Errorf("%s is no HTTP address%s", at, instead)
	}
	ctx, cancel := context.WithTimeout(ctx, flushWithin)
	defer cancel()
	for {
		status, page, err := post(ctx, at+e.path, key)
		switch {
		case err != nil:
			return fmt.Errorf("%w%s", err, instead)
		case status == http.StatusNotFound:
			return fmt.Errorf("%s answers 404 to POST %s: %s%s", at, e.path, e.missing, instead)
		case status < 300 && !refuses(page):
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s answers %d to POST %s: %.200s%s", at, status, e.path, page, instead)
		case <-time.After(flushPause):
		}
	}
}

// refuses says whether an engine answers that it has not emptied its cache.
func refuses(page []byte) bool {
	var said struct {
		Success *bool `json:"success"`
	}
	return json.Unmarshal(page, &said) == nil && said.Success != nil && !*said.Success
}

// post sends an empty POST.
func post(ctx context.Context, url, key string) (status int, page []byte, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return 0, nil, err
	}
	return send(req, key)
}

// answerBytes is the most that is read of an answer.
const answerBytes = 8 << 20

// send sends a request on a connection of its own.
func send(req *http.Request, key string) (status int, page []byte, err error) {
	if key != "" {
		req.Header.Set("Authorization", "Bearer "+key)
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	page, err = io.ReadAll(io.LimitReader(resp.Body, answerBytes))
	return resp.StatusCode, page, err
}

// canary is a prompt that no trace has, long enough for several blocks of an engine. Each engine
// gets it right after its reset.
var canary = trace.Request{InputLength: 200, OutputLength: 1, HashIDs: []int64{1 << 61}}

// holds says whether a node has the canary of an earlier run. A node that does not count its cached
// tokens is believed.
func (r *runner) holds(ctx context.Context, cfg replay.Config, n Node) (bool, error) {
	cfg.Source, cfg.Node = &list{[]trace.Request{canary}}, n.ID
	result, err := replay.Run(ctx, cfg)
	if err == nil && result.Failed() > 0 {
		err = fmt.Errorf("it does not answer after its reset: %v; %s", result.Failures, result.Sample)
	}
	return err == nil && result.Uncounted == 0 && 2*result.CachedTokens > result.PromptTokens, err
}
