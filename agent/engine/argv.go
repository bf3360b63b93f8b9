package engine

import (
	"cmp"
	"os"
	"slices"
	"strconv"
	"strings"
)

const loopback = "127.0.0.1" // here a started engine is reachable through its agent only

// Launch holds the settings that a node gives to its started engine.
type Launch struct {
	Port          int      // port to listen on
	TP            int      // tensor-parallel size; 0 or 1: no argument
	DataParallel  int      // data-parallel ranks; 0 or 1: no argument
	DType         string   // "": the engine's own choice
	MaxConcurrent int      // requests computed at once; 0: the engine's own choice
	APIKey        string   // "": none
	GPUs          []string // GPUs that it may see, by index or UUID; empty: all of the environment's
	Role          string   // prefill, decode or both
	Host          string   // host under which other nodes reach this one
	StateDir      string   // directory of LMCache's configuration
	Node          string   // id of the node; "": unknown
}

// Command returns the program, its arguments and the additions to its environment. The arguments
// make each kind of engine report the figures that routing needs: its metrics, and the cached-token
// count of every response. The configured arguments come last, so that they win.
func (c *Config) Command(l Launch) (argv, env []string) {
	host, port := c.listenHost(), strconv.Itoa(l.Port)
	switch c.Kind {
	case VLLM:
		argv = []string{cmp.Or(c.Binary, "vllm"), "serve", c.Model, "--host", host, "--port", port,
			"--enable-prompt-tokens-details"}
		argv = appendNumber(argv, "--tensor-parallel-size", l.TP, 2)
		argv = appendNumber(argv, "--data-parallel-size", l.DataParallel, 2)
		argv = appendNumber(argv, "--max-num-seqs", l.MaxConcurrent, 1)
		argv = appendText(argv, "--dtype", l.DType)
		env = appendEnv(env, "VLLM_API_KEY", l.APIKey)
	case SGLang:
		argv = []string{cmp.Or(c.Binary, "python3"), "-m", "sglang.launch_server", "--model-path", c.Model, "--host",
			host, "--port", port, "--enable-metrics", "--enable-cache-report"}
		argv = appendNumber(argv, "--tp-size", l.TP, 2)
		argv = appendNumber(argv, "--dp-size", l.DataParallel, 2)
		argv = appendNumber(argv, "--max-running-requests", l.MaxConcurrent, 1)
		argv = appendText(argv, "--dtype", l.DType)
	case LlamaCPP:
		argv = []string{cmp.Or(c.Binary, "llama-server"), "--model", c.Model, "--host", host, "--port", port,
			"--metrics"}
		argv = appendNumber(argv, "--parallel", l.MaxConcurrent, 1)
		env = appendEnv(env, "LLAMA_API_KEY", l.APIKey)
	default:
		argv = []string{c.Binary}
	}
	if len(l.GPUs) > 0 { // CUDA then numbers GPUs as NVML does, not by speed
		env = append(env, "CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES="+strings.Join(l.GPUs, ","))
	}
	flags, vars := c.offloadCommand(l)
	argv, env = append(argv, flags...), append(env, vars...)
	fill := strings.NewReplacer("{model}", c.Model, "{host}", host, "{port}", port)
	for _, a := range c.Args {
		argv = append(argv, fill.Replace(a))
	}
	return argv, append(env, c.Env...)
}

// appendNumber adds the flag if n is at least least.
func appendNumber(argv []string, flag string, n, least int) []string {
	if n < least {
		return argv
	}
	return append(argv, flag, strconv.Itoa(n))
}

func appendText(argv []string, flag, value string) []string {
	if value == "" {
		return argv
	}
	return append(argv, flag, value)
}

func appendEnv(env []string, name, value string) []string {
	if value == "" {
		return env
	}
	return append(env, name+"="+value)
}

// environment returns the agent's own environment without its settings, plus add.
func environment(add []string) []string {
	own := slices.DeleteFunc(os.Environ(), func(e string) bool { return strings.HasPrefix(e, "CGN_") })
	return append(own, add...)
}
