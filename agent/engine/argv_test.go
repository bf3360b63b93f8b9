package engine

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/config"
)

func TestCommand(t *testing.T) {
	for _, c := range []struct {
		name      string
		config    Config
		launch    Launch
		argv, env string
	}{
		{"vllm", Config{Kind: VLLM, Model: "org/m"}, Launch{Port: 9},
			"vllm serve org/m --host 127.0.0.1 --port 9 --enable-prompt-tokens-details", ""},
		{"vllm, everything", Config{Kind: VLLM, Model: "org/m", Binary: "/opt/vllm", Args: []string{"--seed", "1"},
			Env: []string{"A=b"}},
			Launch{Port: 9, TP: 4, DataParallel: 2, DType: "bfloat16", MaxConcurrent: 128, APIKey: "k"},
			"/opt/vllm serve org/m --host 127.0.0.1 --port 9 --enable-prompt-tokens-details --tensor-parallel-size 4 " +
				"--data-parallel-size 2 --max-num-seqs 128 --dtype bfloat16 --seed 1", "VLLM_API_KEY=k A=b"},
		{"sglang", Config{Kind: SGLang, Model: "org/m"},
			Launch{Port: 9, TP: 2, DataParallel: 4, DType: "half", MaxConcurrent: 8},
			"python3 -m sglang.launch_server --model-path org/m --host 127.0.0.1 --port 9 --enable-metrics " +
				"--enable-cache-report --tp-size 2 --dp-size 4 --max-running-requests 8 --dtype half", ""},
		{"llama.cpp", Config{Kind: LlamaCPP, Model: "m.gguf"},
			Launch{Port: 9, TP: 2, DType: "q4", MaxConcurrent: 2, APIKey: "k"},
			"llama-server --model m.gguf --host 127.0.0.1 --port 9 --metrics --parallel 2", "LLAMA_API_KEY=k"},
		{"openai_compat", Config{Kind: OpenAICompat, Binary: "srv", Model: "m",
			Args: []string{"-l", "{host}:{port}", "--m={model}"}}, Launch{Port: 9, TP: 1},
			"srv -l 127.0.0.1:9 --m=m", ""},
		{"on GPUs of its own", Config{Kind: OpenAICompat, Binary: "srv", Env: []string{"CUDA_VISIBLE_DEVICES=7"}},
			Launch{Port: 9, GPUs: []string{"2", "GPU-8f6a"}},
			"srv", "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=2,GPU-8f6a CUDA_VISIBLE_DEVICES=7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			argv, env := c.config.Command(c.launch)
			if got := strings.Join(argv, " "); got != c.argv {
				t.Errorf("argv\n %s\nwant\n %s", got, c.argv)
			}
			if got := strings.Join(env, " "); got != c.env {
				t.Errorf("env %q, want %q", got, c.env)
			}
		})
	}
}

func TestEnvironmentLeavesOutTheAgentsSettings(t *testing.T) {
	t.Setenv("CGN_ETCD_PASSWORD_FILE", "/secret")
	env := environment([]string{"A=b"})
	if slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, "CGN_") }) ||
		env[len(env)-1] != "A=b" {
		t.Error(env)
	}
}

func valid(change func(*Config)) *Config {
	c := &Config{}
	if err := config.Defaults(c); err != nil {
		panic(err)
	}
	c.Model = "m"
	change(c)
	return c
}

func TestValidate(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"spawn", func(*Config) {}, ""},
		{"attach", func(c *Config) { c.URL, c.Model = "http://h:1", "" }, ""},
		{"attach to a socket", func(c *Config) { c.URL = "unix:///run/e.sock" }, ""},
		{"bad url", func(c *Config) { c.URL = "h:1" }, "engine.url"},
		{"url and binary", func(c *Config) { c.URL, c.Binary = "http://h:1", "x" }, "remove binary"},
		{"no model", func(c *Config) { c.Model = "" }, "engine.model"},
		{"compat without either", func(c *Config) { c.Kind = OpenAICompat }, "engine.url"},
		{"port", func(c *Config) { c.Port = 70000 }, "engine.port"},
		{"port twice", func(c *Config) { c.Args = []string{"--port=1"} }, "engine.args"},
		{"env", func(c *Config) { c.Env = []string{"SECRET"} }, "NAME=value"},
		{"sglang key", func(c *Config) { c.Kind, c.APIKeyFile = SGLang, "f" }, "engine.api_key_file"},
		{"scrape too often", func(c *Config) { c.ScrapeInterval /= 2 }, "engine.scrape_interval"},
		{"scrape without a bound", func(c *Config) { c.ScrapeTimeout = 0 }, "engine.scrape_timeout"},
		{"delays", func(c *Config) { c.RestartDelayMax = 0 }, "engine.restart_delay"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := valid(c.change).Validate()
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	if err := valid(func(c *Config) {
		c.Port, c.ScrapeTimeout = -1, 0
	}).Validate(); len(err.(interface{ Unwrap() []error }).Unwrap()) != 2 {
		t.Errorf("not all problems at once: %v", errors.Unwrap(err))
	}
}
