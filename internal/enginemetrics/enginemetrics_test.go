package enginemetrics

import (
	"fmt"
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

// TestLoads: each rank has its own figures, and an equal part of the blocks.
func TestLoads(t *testing.T) {
	page := golden(t, "vllm_ranks.txt")
	s := Parse(page)
	all := s.Loads(s.ByRank(page))
	if len(all) != 2 || all[0].InFlight != load.Known(1) || all[1].InFlight != load.Known(3) ||
		all[1].QueueDepth != load.Known(0) || all[0].TotalBlocks != load.Known(256) ||
		all[0].FreeBlocks != load.Known(226) || all[1].FreeBlocks != load.Known(244) {
		t.Errorf("%+v", all)
	}
	s.Has &^= TotalBlocks
	if all = s.Loads(s.ByRank(page)); all[0].FreeBlocks != (load.Gauge{}) || all[0].TotalBlocks != (load.Gauge{}) {
		t.Errorf("blocks of an unknown total: %+v", all[0])
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

// adaptersOf returns what a page says about adapters, each with the latest time.
func adaptersOf(page string) (slots int, newest float64, at map[string]float64) {
	at = map[string]float64{}
	slots, newest = Adapters([]byte(page), func(name []byte, t float64) { at[string(name)] = max(at[string(name)], t) })
	return slots, newest, at
}

func TestAdaptersOfAGoldenPage(t *testing.T) {
	slots, newest, at := adaptersOf(string(golden(t, "vllm-lora.txt")))
	if slots != 1 || newest != 1.7957264553793015e+09 || len(at) != 2 || at["sql"] != 1.795726453090558e+09 ||
		at["chat"] != 1.7957264553734822e+09 {
		t.Errorf("%d slots, newest %v, %v", slots, newest, at)
	}
	if slots, newest, at := adaptersOf(string(golden(t, "vllm.txt"))); slots != 0 || newest != 0 || len(at) != 0 {
		t.Errorf("a page without adapters: %d %v %v", slots, newest, at)
	}
}

func TestAdapterSpellings(t *testing.T) {
	for page, want := range map[string]string{
		`vllm:lora_requests_info{max_lora="4",running_lora_adapters="a, b",waiting_lora_adapters="c"} 5`: "4 5 map[a:5 b:5]",
		`vllm_lora_requests_info{running_lora_adapters="a/b:c",max_lora="2"} 7 170000` + "\r\n":          "2 7 map[a/b:c:7]",
		"x\n" + `vllm:lora_requests_info{max_lora="2",running_lora_adapters=""} 9`:                       "2 9 map[]",
		`vllm:lora_requests_info{max_lora="0",running_lora_adapters="a"} NaN`:                            "0 0 map[]",
		`vllm:lora_requests_info{max_lora="1e9",running_lora_adapters="a"} 1`:                            "0 1 map[a:1]",
		`vllm:lora_requests_info_total{max_lora="3",running_lora_adapters="a"} 1`:                        "0 0 map[]",
		`other:lora_requests_info{max_lora="3",running_lora_adapters="a"} 1`:                             "0 0 map[]",
		`# TYPE vllm:lora_requests_info gauge`:                                                           "0 0 map[]",
		`vllm:lora_requests_info{max_lora="3",running_lora_adapters="a`:                                  "3 0 map[]",
		`a{b="vllm:lora_requests_info{max_lora=\"3\",running_lora_adapters=\"a\"} 1"} 1`:                 "0 0 map[]",
	} {
		slots, newest, at := adaptersOf(page)
		if got := fmt.Sprint(slots, newest, at); got != want {
			t.Errorf("%s: %s, want %s", page, got, want)
		}
	}
}

func TestAdaptersAllocateNothing(t *testing.T) {
	page, n := golden(t, "vllm-lora.txt"), 0
	if allocs := testing.AllocsPerRun(100, func() { Adapters(page, func([]byte, float64) { n++ }) }); allocs != 0 {
		t.Fatalf("%v allocations per page, want 0", allocs)
	}
}

func FuzzAdapters(f *testing.F) {
	f.Add(golden(f, "vllm-lora.txt"))
	f.Add([]byte(`vllm:lora_requests_info{max_lora="`))
	f.Fuzz(func(t *testing.T, page []byte) {
		slots, newest := Adapters(page, func(name []byte, at float64) {
			if len(name) == 0 || len(name) > len(page) || !(at >= 0) {
				t.Fatalf("%q at %v from %q", name, at, page)
			}
		})
		if slots < 0 || slots > maxAdapters || !(newest >= 0) {
			t.Fatalf("%d slots, newest %v from %q", slots, newest, page)
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
