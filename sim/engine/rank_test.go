package engine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/go-zeromq/zmq4"
)

// The files ranks_* in testdata are answers of vLLM 0.32 with --data-parallel-size 2: to a request
// with x-data-parallel-rank 2, and on the metrics page after three requests at each rank.

func twoRanks(c *Config) { c.DataParallel = 2 }

// askRank sends a prompt to a rank, and returns its number of cached tokens. The empty rank sends
// no header.
func askRank(t *testing.T, e *Engine, path, rank, text string) (cached float64) {
	t.Helper()
	body := fmt.Sprintf(`{"model":"sim","prompt":%q,"max_tokens":2}`, text)
	if path != "/v1/completions" {
		body = chatBody(text, `,"max_tokens":2`)
	}
	var header []string
	if rank != "" {
		header = []string{RankHeader, rank}
	}
	doc := object(t, post(t, e, path, body, header...), 200)
	if path == "/v1/messages" {
		return at(t, doc, "usage", "cache_read_input_tokens").(float64)
	}
	return at(t, doc, "usage", "prompt_tokens_details", "cached_tokens").(float64)
}

func TestRanksHaveCachesOfTheirOwn(t *testing.T) {
	e := start(t, twoRanks)
	text := strings.Repeat("hello world ", 40)
	for _, path := range []string{"/v1/completions", "/v1/chat/completions", "/v1/messages"} {
		for round, rank := range []string{"0", "1", " 1 ", "0"} {
			cached := askRank(t, e, path, rank, path+text)
			if (cached > 0) != (round >= 2) {
				t.Errorf("%s: request %d at rank %q found %v tokens", path, round, rank, cached)
			}
		}
	}
	all := e.RankStats()
	if len(all) != 2 || all[0].Completed != 6 || all[1].Completed != 6 || e.Stats().Completed != 12 {
		t.Errorf("completed %+v", all)
	}
}

// TestEngineChoosesTheRank: without a usable header, and for endpoints at which vLLM ignores the
// header, the engine takes the rank with the fewest requests.
func TestEngineChoosesTheRank(t *testing.T) {
	e := start(t, twoRanks)
	e.core().ranks[0].calls.Add(1) // a request that does not end
	text := strings.Repeat("hello world ", 40)
	askRank(t, e, "/v1/completions", "", text)
	askRank(t, e, "/v1/completions", "x", text)
	object(t, post(t, e, "/v1/responses", `{"model":"sim","input":"hi","max_output_tokens":2}`, RankHeader, "0"), 200)
	if all := e.RankStats(); all[0].Completed != 0 || all[1].Completed != 3 {
		t.Errorf("%d and %d completed, want 0 and 3", all[0].Completed, all[1].Completed)
	}
}

func TestRankOutOfRange(t *testing.T) {
	e := start(t, twoRanks)
	want := decoded(t, golden(t, "ranks_refused.json"))
	got := object(t, post(t, e, "/v1/completions", `{"model":"sim","prompt":"hi"}`, RankHeader, "2"), 400)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("answer %v, want %v", got, want)
	}
	object(t, post(t, e, "/v1/completions", `{"model":"sim","prompt":"hi"}`, RankHeader, "-1"), 400)
	object(t, post(t, start(t), "/v1/completions", `{"model":"sim","prompt":"hi"}`, RankHeader, "1"), 400)
}

// TestMetricsOfRanks: the series are those of vLLM, in its order.
func TestMetricsOfRanks(t *testing.T) {
	e := start(t, twoRanks, func(c *Config) { c.BlockTokens, c.CacheBlocks, c.Models = 32, 256, []string{"tiny"} })
	prompt := strings.Repeat("abcd", 80)
	for _, rank := range []string{"0", "0", "0", "1", "1", "1"} {
		object(t, post(t, e, "/v1/completions", `{"prompt":"`+prompt+`","max_tokens":2}`, RankHeader, rank), 200)
	}
	var page string
	eventually(t, "both ranks are idle", func() bool {
		page = get(t, e, "/metrics")
		return strings.Count(page, `,model_name="tiny"} 0.0`) > 0 &&
			strings.Contains(page, "\nvllm:num_requests_running{engine=\"0\",model_name=\"tiny\"} 0.0\n") &&
			strings.Contains(page, "\nvllm:num_requests_running{engine=\"1\",model_name=\"tiny\"} 0.0\n")
	})
	lines := strings.Split(page, "\n")
	at := -1
	for want := range strings.Lines(golden(t, "ranks_metrics.txt")) {
		want = strings.TrimSpace(want)
		if strings.HasPrefix(want, "#") {
			continue
		}
		if strings.HasPrefix(want, "vllm:cache_config_info") {
			want = cacheLabels(want)
		}
		found := slices.IndexFunc(lines, func(l string) bool {
			return l == want || strings.HasPrefix(l, "vllm:cache_config_info") && cacheLabels(l) == want
		})
		switch {
		case found < 0:
			t.Errorf("no line %s", want)
		case strings.Contains(want, `engine="1"`) && found != at+1:
			t.Errorf("line %s is not behind that of rank 0", want)
		}
		at = found
	}
}

// cacheLabels returns the labels of vllm:cache_config_info that the simulated engine has.
func cacheLabels(line string) string {
	var kept []string
	_, labels, _ := strings.Cut(line, "{")
	for _, label := range strings.Split(labels, ",") {
		for _, name := range []string{"block_size=", "engine=", "kv_cache_size_tokens=", "num_gpu_blocks="} {
			if strings.HasPrefix(label, name) {
				kept = append(kept, strings.TrimSuffix(label, "} 1.0"))
			}
		}
	}
	return strings.Join(kept, ",")
}

// TestEventsOfRanks: each rank publishes its own blocks under its number, at the first rank's port
// plus its number.
func TestEventsOfRanks(t *testing.T) {
	e := kvEngine(t, twoRanks)
	first, replay := e.KVEndpoints()
	for rank := range 2 {
		ctx, cancel := context.WithTimeout(context.Background(), soon)
		defer cancel()
		s := zmq4.NewSub(ctx)
		defer s.Close()
		endpoint, err := offset(first, rank)
		if err == nil {
			err = s.Dial(endpoint)
		}
		if err == nil {
			err = s.SetOption(zmq4.OptionSubscribe, "kv")
		}
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "a subscriber", func() bool { return e.core().ranks[rank].events.subscribers() == 1 })
		askRank(t, e, "/v1/completions", fmt.Sprint(rank), strings.Repeat("abcd", 40))
		msg, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if batch := unpack(t, msg.Frames[2]); fmt.Sprint(batch[2]) != fmt.Sprint(rank) {
			t.Errorf("a batch of rank %v at the port of rank %d", batch[2], rank)
		}
		if seq := msg.Frames[1][7]; seq != 0 {
			t.Errorf("rank %d begins with batch %d", rank, seq)
		}
	}
	e.Kill()
	if err := e.Accept(); err != nil {
		t.Fatal(err)
	}
	if again, replayAgain := e.KVEndpoints(); again != first || replayAgain != replay {
		t.Errorf("endpoints %s and %s after a restart", again, replayAgain)
	}
}
