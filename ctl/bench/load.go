package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/perf/instant"
	"github.com/cognitora/dataplane/perf/load"
)

// loadFlags are the flags of bench load.
type loadFlags struct {
	mode, url        string
	clients, streams int
	rate             float64
	window           load.Window
	ramp, timeout    time.Duration
	chat             load.ChatConfig
	pace             time.Duration
}

func newLoad(a *cli.App) *cobra.Command {
	f := loadFlags{}
	c := &cobra.Command{
		Use:   "load closed|open|streams",
		Short: "Put load on an OpenAI endpoint and check every answer",
		Long: "closed keeps --clients requests in flight; open sends at --rate and counts times " +
			"from when a request\n" +
			"is due; streams holds --streams streams and checks that every token arrives once and in order. With " +
			"`bench engine` behind\n" +
			"the endpoint, tokens carry the time they were sent, and streams come at --pace. The result is JSON with " +
			"-o json.",
		Example: "  cgn-ctl bench load closed --clients 16\n  cgn-ctl bench load open --rate 500 --stream\n  cgn-ctl " +
			"bench load streams --streams 512 --pace 20ms",
		Args: loadMode, ValidArgs: loadModes,
		RunE: cli.Interruptible(func(ctx context.Context, c *cobra.Command, args []string) error {
			f.mode = args[0]
			if err := errors.Join(f.idle(c.Flags().Changed), cli.InRanges(c.Flags(), loadRanges)); err != nil {
				return cli.Misused(err)
			}
			return runLoad(ctx, a, &f)
		}),
	}
	fl := c.Flags()
	fl.StringVar(&f.url, "url", "http://127.0.0.1:8080", "endpoint, http only; its key is taken from "+
		"OPENAI_API_KEY")
	fl.StringVar(&f.chat.Model, "model", instant.Model, "model to ask for")
	fl.IntVar(&f.clients, "clients", 16, "closed: requests in flight; open: most connections, at least 1024")
	fl.IntVar(&f.streams, "streams", 512, "streams held at once")
	fl.DurationVar(&f.pace, "pace", 20*time.Millisecond, "time between the tokens of a stream, for bench engine; 0: "+
		"no pause")
	fl.IntVar(&f.chat.Tokens, "tokens", 16, "max_tokens of each request; streams last as long as they must")
	fl.BoolVar(&f.chat.Stream, "stream", false, "closed and open: ask for streams")
	fl.IntVar(&f.chat.PromptBytes, "prompt-bytes", 2048, "length of a prompt")
	fl.Float64Var(&f.chat.Shared, "shared", 0, "part of a prompt, 0 to 1, that other requests begin with too")
	fl.IntVar(&f.chat.Documents, "documents", 1, "number of different shared beginnings")
	fl.Float64Var(&f.rate, "rate", 100, "open: requests per second, in a Poisson process")
	fl.DurationVar(&f.window.Warmup, "warmup", time.Second, "time before the measured window")
	fl.DurationVar(&f.window.Measure, "for", 10*time.Second, "length of the measured window")
	fl.DurationVar(&f.ramp, "ramp", time.Second, "time in which streams are opened")
	fl.DurationVar(&f.timeout, "timeout", time.Minute, "time one request has")
	return c
}

var loadModes = []string{"closed", "open", "streams"}

// loadMode accepts exactly one argument, the mode.
func loadMode(_ *cobra.Command, args []string) error {
	const must = "must be closed, open or streams"
	switch {
	case len(args) == 0:
		return errors.New("the mode is missing: " + must)
	case len(args) > 1:
		return fmt.Errorf("%d modes are given, %s: %s", len(args), strings.Join(args, ", "), must)
	case !slices.Contains(loadModes, args[0]):
		return fmt.Errorf("%q: %s", args[0], must)
	}
	return nil
}

// idle returns an error for a given flag that the mode does not use.
func (f *loadFlags) idle(given func(flag string) bool) error {
	for _, flag := range []struct{ name, modes string }{
		{"clients", "closed open"}, {"stream", "closed open"}, {"rate", "open"}, {"streams", "streams"}, {"ramp", "streams"},
	} {
		if modes := strings.Fields(flag.modes); given(flag.name) && !slices.Contains(modes, f.mode) {
			return fmt.Errorf("--%s means nothing for %s: it is for %s", flag.name, f.mode,
				strings.Join(modes, " and "))
		}
	}
	return nil
}

// loadRanges are the allowed values of the flags. No machine has more than 1<<20 connections.
var loadRanges = map[string][2]float64{
	"clients": {1, 1 << 20}, "streams": {1, 1 << 20}, "tokens": {1, cli.Most}, "prompt-bytes": {1, 1 << 30},
	"documents": {1, cli.Most}, "rate": {1e-6, 1e9}, "shared": {0, 1}, "for": {0.001, cli.Most},
	"timeout": {0.001, cli.Most}, "warmup": {0, cli.Most}, "ramp": {0, cli.Most}, "pace": {0, cli.Most},
}

func runLoad(ctx context.Context, a *cli.App, f *loadFlags) error {
	site, err := cli.Endpoint("url", f.url)
	if err != nil {
		return err
	}
	at, plain := strings.CutPrefix(site, "http://")
	if _, _, err := net.SplitHostPort(at); err != nil || !plain {
		return cli.Misused(fmt.Errorf("--url %q: must be http://HOST:PORT", site))
	}
	f.url = site
	target := load.Target{Address: at, Key: os.Getenv("OPENAI_API_KEY")}
	if f.pace > 0 && (f.chat.Stream || f.mode == "streams") {
		f.chat.Wish = fmt.Sprintf("pace=%d", f.pace.Microseconds())
	}
	f.chat.Salt = uint64(time.Now().UnixNano())
	if err := f.tryModel(ctx); err != nil {
		return err
	}
	f.window.Stop = ctx.Done()
	var result *load.Result
	switch f.mode {
	case "closed":
		result, _ = load.Closed{Target: target, Bodies: load.NewChat(f.chat), Clients: f.clients, Window: f.window,
			Timeout: f.timeout}.Run()
	case "open":
		result = load.Open{Target: target, Bodies: load.NewChat(f.chat), Arrivals: load.Poisson(f.rate, f.chat.Salt),
			MaxClients: max(f.clients, 1024), Window: f.window, Timeout: f.timeout}.Run()
	case "streams":
		f.chat.Stream = true
		if f.pace > 0 {
			f.chat.Tokens = int((f.ramp+f.window.Warmup+f.window.Measure)/f.pace) + 1
		}
		result = load.Streams{Target: target, Bodies: load.NewChat(f.chat), N: f.streams, Ramp: f.ramp,
			Window: f.window, Timeout: f.timeout + f.window.Measure}.Run()
	}
	return showLoad(ctx, a, f, result)
}

// showLoad shows the result, if there is one.
func showLoad(ctx context.Context, a *cli.App, f *loadFlags, r *load.Result) error {
	nothing := r.Requests+r.Tokens == 0 || f.mode == "streams" && r.Tokens == 0
	if !nothing || r.Failed() > 0 {
		if err := a.Show(r, func(t *cli.Table) { t.Line(f.text(r)) }); err != nil {
			return err
		}
	}
	switch {
	case r.Failed() > 0:
		err := fmt.Errorf("%d requests failed: %v; the first: %s", r.Failed(), r.Failures, oneLine(r.Sample))
		if r.Failures["status 404"] > 0 {
			return cli.WithHint(err, f.unknownModel())
		}
		return err
	case ctx.Err() != nil:
		return errors.New("interrupted")
	case nothing && f.mode == "streams":
		return errors.New("nothing was answered within the measured time: the streams ended before it; give a longer " +
			"--pace, which bench engine keeps to, or more --tokens, or less --warmup")
	case nothing:
		return errors.New("nothing was answered within the measured time: give it more with --for, or look at --rate " +
			"and --warmup")
	}
	return nil
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// tryLimit is the time limit of the request that checks early whether the model is served.
const tryLimit = 5 * time.Second

// tryModel sends one request for one token. tryModel returns an error only if nobody listens at the
// endpoint, or if the model does not exist. The load itself reports other errors, or a slow answer.
func (f *loadFlags) tryModel(ctx context.Context) error {
	body, err := json.Marshal(map[string]any{
		"model": f.chat.Model, "max_tokens": 1, "messages": []map[string]string{{"role": "user", "content": "Hello"}},
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, tryLimit)
	defer cancel()
	answer, err := f.ask(ctx, http.MethodPost, "/v1/chat/completions", body)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return cli.WithHint(fmt.Errorf("nothing was measured: %w", err),
			"is something serving at "+f.url+"? Give its address with --url")
	}
	defer answer.Body.Close()
	page, _ := io.ReadAll(io.LimitReader(answer.Body, 4<<10))
	if answer.StatusCode != http.StatusNotFound {
		return nil
	}
	return cli.WithHint(fmt.Errorf("nothing was measured: status 404: %s", oneLine(string(page))), f.unknownModel())
}

// ask sends one request to the endpoint.
func (f *loadFlags) ask(ctx context.Context, method, path string, body []byte) (*http.Response, error) {
	ask, err := http.NewRequestWithContext(ctx, method, f.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	ask.Header.Set("Content-Type", "application/json")
	if key := os.Getenv("OPENAI_API_KEY"); key != "" {
		ask.Header.Set("Authorization", "Bearer "+key)
	}
	return (&http.Transport{DisableKeepAlives: true}).RoundTrip(ask)
}

// unknownModel returns a text with the served models, if the endpoint has answered 404 and can list
// them.
func (f *loadFlags) unknownModel() string {
	hint := fmt.Sprintf("%q was asked for; give the served model with --model", f.chat.Model)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	answer, err := f.ask(ctx, http.MethodGet, "/v1/models", nil)
	if err != nil {
		return hint
	}
	defer answer.Body.Close()
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, 1<<20)).Decode(&list); err != nil || len(list.Data) == 0 {
		return hint
	}
	var names []string
	for _, m := range list.Data[:min(len(list.Data), 20)] {
		names = append(names, m.ID)
	}
	return hint + ": /v1/models lists " + strings.Join(names, ", ")
}

func (f *loadFlags) text(r *load.Result) string {
	rate := fmt.Sprintf(" (%.0f/s)", float64(r.Requests)/r.Seconds)
	if f.mode == "streams" { // all streams count, whenever they end
		rate = ""
	}
	text := fmt.Sprintf("%d answers in %.1f s%s, %d failed; this program used %.2f s of CPU", r.Requests, r.Seconds,
		rate, r.Failed(), r.OwnCPUSeconds)
	if r.Tokens > 0 {
		text += fmt.Sprintf("\n%d tokens (%.0f/s)", r.Tokens, float64(r.Tokens)/r.Seconds)
	}
	for _, q := range []struct {
		name string
		q    load.Quantiles
	}{{"whole answer", r.Latency}, {"first token", r.TTFT}, {"token, from sending", r.Token},
		{"sent late by", r.Late}} {
		if q.q.Count > 0 {
			text += fmt.Sprintf("\n%-20s p50 %.3f  p90 %.3f  p99 %.3f  max %.3f ms", q.name, q.q.P50*1e3, q.q.P90*1e3,
				q.q.P99*1e3, q.q.Max*1e3)
		}
	}
	return text
}
