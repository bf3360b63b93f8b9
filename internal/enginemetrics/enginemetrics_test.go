package enginemetrics

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/load"
)

func golden(t testing.TB, name string) []byte {
	t.Helper()
	page, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

func TestGoldenPages(t *testing.T) {
	for _, c := range []struct {
		file string
		want Stats
	}{
		{"vllm.txt", Stats{
			Has: Running | Waiting | KVUsage | PromptTokens | GenerationTokens |
				TotalBlocks | BlockTokens | StartTime,
			PromptTokens: 223, GenerationTokens: 20,
			TotalBlocks: 1024, BlockTokens: 32, StartTime: 1.79524454362e+09, Ranks: 1,
		}},
		{"vllm_ranks.txt", Stats{
			Has: Running | Waiting | KVUsage | PromptTokens | GenerationTokens |
				TotalBlocks | BlockTokens | StartTime,
			Running: 4, KVUsage: (0.11372549019607847 + 0.04313725490196074) / 2,
			PromptTokens: 800, GenerationTokens: 828,
			TotalBlocks: 512, BlockTokens: 32, StartTime: 1.79573037173e+09, Ranks: 2,
		}},
		{"llamacpp.txt", Stats{
			Has:          Running | Waiting | PromptTokens | GenerationTokens,
			PromptTokens: 240, GenerationTokens: 28,
		}},
	} {
		if got := Parse(golden(t, c.file)); got != c.want {
			t.Errorf("%s:\n got %+v\nwant %+v", c.file, got, c.want)
		}
	}
}

func TestSpellings(t *testing.T) {
	for _, c := range []struct {
		name, page string
		want       Stats
	}{
		{"sglang colon", "sglang:num_running_reqs{model_name=\"m\"} 3.0\nsglang:num_queue_reqs{model_name=\"m\"} " +
			"2\nsglang:token_usage 0.25\n",
			Stats{Has: Running | Waiting | KVUsage, Running: 3, Waiting: 2, KVUsage: 0.25}},
		{"sglang underscore", "sglang_num_running_reqs 3\nsglang_max_running_requests 8",
			Stats{Has: Running | MaxSlots, Running: 3, MaxSlots: 8}},
		{"older vllm", "vllm:gpu_cache_usage_perc{m=\"x\"} 0.5\r\n", Stats{Has: KVUsage, KVUsage: 0.5}},
		{"ranks add up, usage is their mean",
			"vllm:num_requests_waiting{engine=\"0\"} 1\nvllm:num_requests_waiting{engine=\"1\"} 4\n" +
				"vllm:kv_cache_usage_perc{engine=\"0\"} 0.5\nvllm:kv_cache_usage_perc{engine=\"1\"} 0.25\n",
			Stats{Has: Waiting | KVUsage, Waiting: 5, KVUsage: 0.375}},
		{"the ranks of a hybrid load balancer begin with any number",
			"vllm:num_requests_running{engine=\"3\"} 1\nvllm:num_requests_running{engine=\"2\"} 4\n",
			Stats{Has: Running, Running: 5, Ranks: 2, FirstRank: 2}},
		{"the ranks of an engine without a request so far",
			"vllm:cache_config_info{block_size=\"32\",engine=\"0\",num_gpu_blocks=\"512\"} 1.0\n" +
				"vllm:cache_config_info{block_size=\"32\",engine=\"1\",num_gpu_blocks=\"512\"} 1.0\n",
			Stats{Has: TotalBlocks | BlockTokens, TotalBlocks: 512, BlockTokens: 32, Ranks: 2}},
		{"too many ranks are not told apart",
			"vllm:num_requests_running{engine=\"0\"} 1\nvllm:num_requests_running{engine=\"64\"} 4\n",
			Stats{Has: Running, Running: 5}},
		{"a rank that is no number", "vllm:num_requests_running{engine=\"-1\"} 1\nsglang:num_running_reqs{dp_rank=\"\"} 4\n",
			Stats{Has: Running, Running: 5}},
		{"braces and quotes in a label", `vllm:num_requests_running{model_name="a}\"b{ 9"} 7 1700000000000`,
			Stats{Has: Running, Running: 7}},
		{"NaN, negative and garbage are unknown", "vllm:num_requests_running NaN\nvllm:num_requests_waiting " +
			"-1\nvllm:kv_cache_usage_perc x\nvllm:prompt_tokens_total{a=\"b",
			Stats{}},
		{"near names are other metrics", "vllm:num_requests_waiting_by_reason{r=\"x\"} 3\nvllmx:num_requests_running " +
			"3\n# vllm:num_requests_running 1\n",
			Stats{}},
	} {
		if got := Parse([]byte(c.page)); got != c.want {
			t.Errorf("%s:\n got %+v\nwant %+v", c.name, got, c.want)
		}
	}
}

func TestByRank(t *testing.T) {
	const every = Running | Waiting | KVUsage
	page := golden(t, "vllm_ranks.txt")
	s := Parse(page)
	want := []Rank{
		{Has: every, Running: 1, KVUsage: 0.11372549019607847}, {Has: every, Running: 3, KVUsage: 0.04313725490196074},
	}
	if got := s.ByRank(page); !slices.Equal(got, want) {
		t.Errorf("ranks %+v, want %+v", got, want)
	}
	page = []byte("sglang:num_running_reqs{dp_rank=\"0\",tp_rank=\"0\"} 2\n" +
		"sglang:num_running_reqs{dp_rank=\"2\",tp_rank=\"2\"} 5\nsglang:num_queue_reqs{dp_rank=\"2\"} 3\n" +
		"sglang:token_usage{dp_rank=\"2\"} 0.25\nsglang:num_queue_reqs{dp_rank=\"9\"} 3\n")
	s = Parse(page)
	want = []Rank{{Has: Running, Running: 2}, {}, {Has: every, Running: 5, Waiting: 3, KVUsage: 0.25}}
	if got := s.ByRank(page); !slices.Equal(got, want) {
		t.Errorf("ranks %+v, want %+v", got, want)
	}
	page = []byte("vllm:cache_config_info{engine=\"0\",num_gpu_blocks=\"512\"} 1.0\n" +
		"vllm:cache_config_info{engine=\"1\",num_gpu_blocks=\"512\"} 1.0\n")
	if s = Parse(page); s.Ranks != 2 || s.ByRank(page) != nil {
		t.Errorf("%d ranks without numbers: %+v", s.Ranks, s.ByRank(page))
	}
	page = golden(t, "vllm.txt")
	if s = Parse(page); s.ByRank(page) != nil {
		t.Error("an engine with one rank has ranks")
	}
}

func TestFreeBlocks(t *testing.T) {
	s := Stats{Has: TotalBlocks | KVUsage, TotalBlocks: 1000, KVUsage: 0.25}
	if n, ok := s.FreeBlocks(); !ok || n != 750 {
		t.Fatalf("free blocks %v %v, want 750", n, ok)
	}
	if _, ok := (&Stats{Has: KVUsage}).FreeBlocks(); ok {
		t.Fatal("free blocks known without the total")
	}
}

func TestParseAllocatesNothing(t *testing.T) {
	page := golden(t, "vllm.txt")
	if n := testing.AllocsPerRun(100, func() { Parse(page) }); n != 0 {
		t.Fatalf("%v allocations per page, want 0", n)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(golden(f, "vllm.txt"))
	f.Add(golden(f, "llamacpp.txt"))
	f.Add(golden(f, "vllm_ranks.txt"))
	f.Add([]byte(`vllm:cache_config_info{num_gpu_blocks="12",block_size="` + strings.Repeat("9", 80) + `"} 1`))
	f.Add([]byte(`vllm:cache_config_info{a="\`))
	f.Fuzz(func(t *testing.T, page []byte) {
		s := Parse(page)
		if ranks := s.ByRank(page); len(ranks) > load.MaxRanks || len(ranks) > 0 && len(ranks) != s.Ranks {
			t.Fatalf("%d ranks of %d", len(ranks), s.Ranks)
		}
		for _, v := range []float64{s.Running, s.Waiting, s.KVUsage, s.TotalBlocks, s.BlockTokens} {
			if !(v >= 0) {
				t.Fatalf("value %v from %q", v, page)
			}
		}
	})
}

func BenchmarkParse(b *testing.B) {
	page := golden(b, "vllm.txt")
	b.SetBytes(int64(len(page)))
	for b.Loop() {
		Parse(page)
	}
}
