package agent

import (
	"errors"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/config"
)

// loaded reads a configuration file, as --check-config does; err is nil if the file is valid.
func loaded(t *testing.T, doc string, args ...string) (c Config, err error) {
	t.Helper()
	err = config.Load(&c, config.Options{
		Program: "cgn-agent", Args: append([]string{"--config", "agent.toml", "--check-config"}, args...),
		Out:      io.Discard,
		ReadFile: func(string) ([]byte, error) { return []byte(doc), nil },
	})
	if errors.Is(err, config.ErrAnswered) {
		err = nil
	}
	return c, err
}

// first is a list with one engine, to which tests add others.
const first = "[[engine]]\nid = \"a\"\nlisten = \"127.0.0.1:9081\"\nurl = \"http://127.0.0.1:8001\"\n" +
	"gpus = [\"0\", \"1\"]\n"

// second begins another engine after first, and attached ends it.
const (
	second   = first + "[[engine]]\nid = \"b\"\nlisten = \"127.0.0.1:9082\"\n"
	attached = second + "url = \"http://127.0.0.1:8002\"\n"
)

func TestSeveralEnginesAreChecked(t *testing.T) {
	program := filepath.Join(t.TempDir(), "engine")
	for _, c := range []struct{ name, doc, want string }{
		{"two", attached + "gpus = [\"2\", \"GPU-8f6a\"]\n[engine.kv_events]\nendpoint = \"tcp://127.0.0.1:5557\"\nreport = \"/run/kv.sock\"\n", ""},
		{"one in a list", first, ""},
		{"both forms", "[engine]\nurl = \"http://127.0.0.1:8001\"\n" + first, "agent.toml:3: engine is written as one table, [engine], and as a list of them, [[engine]]; write one of the two"},
		{"a section of the short form",
			"[kv_events]\nendpoint = \"tcp://127.0.0.1:5557\"\nreport = \"/run/kv.sock\"\n" + first,
			"kv_events.endpoint: is set, and so is [[engine]]: it is of the short form, for one engine; set " +
				"engine[0].kv_events.endpoint and so on in its place, or remove [[engine]]"},
		{"a front of the short form", "[agent]\nlisten = \"127.0.0.1:9085\"\ntp = 2\n" + first, "agent.listen: is set, and so is [[engine]]"},
		{"GPUs of the short form", "[gpu]\ndevices = [\"1\"]\n" + first, "gpu.devices: is set, and so is [[engine]]: it is of the short form, for one engine; set engine[0].gpus"},
		{"the first GPU", "[agent]\ngpu_index = 1\n" + first, "set engine[0].gpus"},
		{"no front", first + "[[engine]]\nurl = \"http://127.0.0.1:8002\"\n", "engine[1].listen: empty; give each engine an address of its own"},
		{"no engine", second, "engine[1].model: empty; give the model to load, or engine[1].url to attach to a running engine"},
		{"a wrong URL", second + "url = \"nowhere\"\n", "engine[1].url: "},
		{"an unknown key", attached + "gpu = [\"1\"]\n", "agent.toml:10: engine[1].gpu: unknown key; did you mean gpus?"},
		{"an unknown key further in", attached + "[engine.kv_events]\nendpoints = \"x\"\n", "agent.toml:11: engine[1].kv_events.endpoints: unknown key; did you mean endpoint?"},
		{"one id", first + "[[engine]]\nid = \"a\"\nlisten = \"127.0.0.1:9082\"\nurl = \"http://127.0.0.1:8002\"\n", "engine[1].id: \"a\" is engine[0].id too"},
		{"an impossible id", strings.Replace(first, `"a"`, `"a/b"`, 1), "engine[0].id: node id \"a/b\" holds"},
		{"one front", first + "[[engine]]\nlisten = \"127.0.0.1:9081\"\nurl = \"http://127.0.0.1:8002\"\n", "engine[1].listen: \"127.0.0.1:9081\" cannot be listened on next to engine[0].listen"},
		{"a front on the admin port", first + "[[engine]]\nlisten = \"127.0.0.1:9092\"\nurl = \"http://127.0.0.1:8002\"\n", "agent.admin: \"127.0.0.1:9092\" cannot be listened on next to engine[1].listen"},
		{"an open front", strings.Replace(first, "127.0.0.1:9081", ":9081", 1), "engine[0].listen: \":9081\" is reachable from other hosts without authentication; set tls.ca"},
		{"one engine", second + "url = \"http://localhost:8001\"\n", "engine[1].url: localhost:8001 is the engine of engine[0].url too"},
		{"one engine, started", second + "kind = \"openai_compat\"\nbinary = \"" + program + "\"\nport = 8001\n", "engine[1].port: 127.0.0.1:8001 is the engine of engine[0].url too"},
		{"another's front as engine", second + "url = \"http://127.0.0.1:9081\"\n", "engine[1].url: 127.0.0.1:9081 is where the agent itself listens (engine[0].listen)"},
		{"one GPU", attached + "gpus = [\"2\", \"1\"]\n", "engine[1].gpus: \"1\" is in engine[0].gpus too"},
		{"part of a GPU", attached + "gpus = [\"1:3\"]\n", "engine[1].gpus: \"1:3\" is in engine[0].gpus too"},
		{"no such GPU", attached + "gpus = [\"first\"]\n", "engine[1].gpus: \"first\" is no device; write an index"},
		{"a MIG device by its place", second + "model = \"m\"\ngpus = [\"2:3\"]\n", "engine[1].gpus: \"2:3\": CUDA knows GPU instances by their UUID only"},
		{"one publisher", strings.Replace(attached, "[[engine]]\nid = \"b\"",
			"[engine.kv_events]\nendpoint = \"tcp://127.0.0.1:5557\"\nreport = \"/x\"\n[[engine]]\nid = \"b\"", 1) +
			"[engine.kv_events]\nendpoint = \"tcp://127.0.0.1:5557\"\nreport = \"/x\"\n",
			"engine[1].kv_events.endpoint: \"tcp://127.0.0.1:5557\" is engine[0].kv_events.endpoint too"},
		{"nobody is told of events", attached + "[engine.kv_events]\nendpoint = \"tcp://127.0.0.1:5557\"\n", "engine[1].kv_events.report: routers learn what the engine has from the cgn-kvcached of this host, or from the agent: set either engine[1].kv_events.report, or engine[1].kv_events.listen"},
		{"events of nobody", attached + "[engine.kv_events]\ntopic = \"x\"\n", "engine[1].kv_events.topic: is for engine[1].kv_events.endpoint, which is empty"},
		{"one side channel", "[[engine]]\nlisten = \"127.0.0.1:9081\"\nmodel = \"m\"\nkv_offload = \"nixl\"\ntp = 4\n" +
			"[[engine]]\nlisten = \"127.0.0.1:9082\"\nmodel = \"m\"\nkv_offload = \"nixl\"\n" +
			"[engine.offload]\nnixl_port = 5603\n",
			"engine[1].offload.nixl_port: 5603 to 5603, one for each rank, are of engine[0].offload.nixl_port too"},
		{"nowhere to write", "[[engine]]\nlisten = \"127.0.0.1:9081\"\nmodel = \"m\"\nkv_offload = \"lmcache\"\n", "engine[0].offload.lmcache_config: empty"},
		{"an impossible pair", "[[engine]]\nlisten = \"127.0.0.1:9081\"\nmodel = \"m\"\nkind = \"llama_cpp\"\nkv_offload = \"lmcache\"\n", "engine[0].kv_offload: llama_cpp cannot offload with lmcache"},
		{"no such role", attached + "role = \"dekode\"\n", "engine[1].role = \"dekode\": must be one of prefill, decode, both; did you mean decode?"},
		{"too few requests", attached + "max_concurrent = -1\n", "engine[1].max_concurrent: -1 is not in 0..1048576"},
		{"too many requests", attached + "max_concurrent = 1048577\n", "engine[1].max_concurrent: 1048577 is not in 0..1048576"},
		{"labels", attached + "labels = [\"gpu=h100\", \"zone=a\"]\n", ""},
		{"a label in two words", attached + "labels = [\"gpu h100\"]\n", "engine[1].labels: \"gpu h100\" holds a space"},
		{"experts", attached + "experts = [\"0-127\", \"code\"]\n", ""},
		{"a range that ends before it begins", attached + "experts = [\"127-0\"]\n", "engine[1].experts: \"127-0\" is no number"},
		{"experts of the short form", "[agent]\nexperts = [\"1\"]\n" + first, "agent.experts: is set, and so is [[engine]]"},
		{"labels of the short form", "[agent]\nlabels = [\"x\"]\n" + first, "agent.labels: is set, and so is [[engine]]"},
		{"an impossible batch", attached + "max_batched_tokens = -1\n", "engine[1].max_batched_tokens: -1 is not in 0.."},
		{"less than one GPU", attached + "tp = -1\n", "engine[1].tp: -1: must not be negative"},
		{"a key that is not there", attached + "api_key_file = \"/no/such\"\n", "engine[1].api_key_file: open /no/such"},
		{"a program that is not there", second + "kind = \"openai_compat\"\nbinary = \"" + program + "\"\n", "engine[1].binary: \"" + program + "\" cannot be run"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := loaded(t, c.doc)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestHandoversOfEnginesAreChecked: the settings of engines that hand blocks over are checked with
// their roles, and beside each other.
func TestHandoversOfEnginesAreChecked(t *testing.T) {
	for _, c := range []struct{ name, doc, want string }{
		{"one bootstrap server", "[[engine]]\nlisten = \"127.0.0.1:9081\"\nmodel = \"m\"\nkind = \"sglang\"\nrole = \"prefill\"\nkv_offload = \"nixl\"\n" +
			"[[engine]]\nlisten = \"127.0.0.1:9082\"\nmodel = \"m\"\nrole = \"prefill\"\nkv_offload = \"mooncake\"\n",
			"engine[1].bootstrap: port 8998 is that of engine[0].bootstrap too; give each engine's bootstrap server its own, such as bootstrap = \":8999\""},
		{"a role without a connector", second + "model = \"m\"\nrole = \"prefill\"\n", "engine[1].kv_offload: none cannot hand KV blocks to another engine"},
		{"a role that the engine cannot have", attached + "kind = \"llama_cpp\"\nrole = \"decode\"\n", "engine[1].role: decode: a llama_cpp cannot"},
	} {
		if _, err := loaded(t, c.doc); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

// TestEnginesAreRefused: a flag of the short form beside [[engine]] is refused, as are more than
// maxEngines engines.
func TestEnginesAreRefused(t *testing.T) {
	if _, err := loaded(t, first, "--engine", "http://127.0.0.1:8009"); err == nil ||
		!strings.Contains(err.Error(), "engine.url: is set, and so is [[engine]]") {
		t.Errorf("a flag beside [[engine]]: %v", err)
	}
	many := ""
	for range maxEngines + 1 {
		many += "[[engine]]\n"
	}
	if _, err := loaded(t, many); err == nil ||
		!strings.Contains(err.Error(), "engine: 33 tables; one agent has 32 engines at most") {
		t.Errorf("%.300v", err)
	}
}

// TestUnits: the name, the settings and the announcement of a unit, in both forms.
func TestUnits(t *testing.T) {
	c, err := loaded(t, "[agent]\nnode_id = \"h\"\nstate_dir = \"/s\"\nkv_address = \"h:7072\"\n"+first+
		"role = \"prefill\"\ntp = 2\ndata_parallel_size = 4\nmax_concurrent = 8\nlabels = [\"gpu=h100\"]\nexperts = [\"0-7\"]\nmax_batched_tokens = 8192\n[[engine]]\nlisten = \"127.0.0.1:9082\"\nurl = "+
		"\"http://127.0.0.1:8002\"\ngpus = [\"2:1\"]\n")
	if err != nil {
		t.Fatal(err)
	}
	at := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9082}
	a, b := c.units()[0], c.units()[1]
	if id, other := a.nodeID(at), b.nodeID(at); id != "h-a" || other != "h-9082" {
		t.Errorf("%s and %s", id, other)
	}
	if h := a.describe("h-a", "http://127.0.0.1:9081"); h.Role != "prefill" || h.TP != 2 ||
		h.DataParallel != 4 || h.MaxConcurrent != 8 ||
		h.Device != "gpu" || h.GPUIndex != 0 || h.KVAddress != "h:7072" || h.Engine != "vllm" ||
		!slices.Equal(h.Labels, []string{"gpu=h100"}) || !slices.Equal(h.Experts, []string{"0-7"}) ||
		h.MaxBatchedTokens != 8192 {
		t.Errorf("%+v", h)
	}
	if h := b.describe("h-9082", "http://127.0.0.1:9082"); h.Role != "both" || h.GPUIndex != 2 ||
		h.KVAddress != "h:7072" || len(h.Labels) != 0 {
		t.Errorf("%+v", h)
	}
	short, err := loaded(t, "[agent]\nlabels = [\"zone=a\"]\nexperts = [\"8\"]\nmax_batched_tokens = 2048\n[engine]\nurl = \"http://127.0.0.1:8001\"\n")
	if err != nil {
		t.Fatal(err)
	}
	if h := short.units()[0].describe("h", "http://127.0.0.1:9081"); h.MaxBatchedTokens != 2048 ||
		!slices.Equal(h.Labels, []string{"zone=a"}) || !slices.Equal(h.Experts, []string{"8"}) {
		t.Errorf("in the short form %+v", h)
	}
	c.Agent.NodeID = ""
	if id := a.nodeID(at); id != hostname()+"-a" {
		t.Errorf("%s", id)
	}
}

// TestSettingsOfRanks checks data_parallel_size.
func TestSettingsOfRanks(t *testing.T) {
	const second = first + "[[engine]]\nid = \"b\"\nlisten = \"127.0.0.1:9082\"\n"
	attached := second + "url = \"http://127.0.0.1:8002\"\n"
	for _, c := range []struct{ name, doc, want string }{
		{"ranks", attached + "data_parallel_size = 2\n", ""},
		{"impossibly many ranks", attached + "data_parallel_size = 65\n", "engine[1].data_parallel_size: 65 is not in 0..64"},
		{"ranks of one that has none", second + "model = \"m.gguf\"\nkind = \"llama_cpp\"\ndata_parallel_size = 2\n", "engine[1].data_parallel_size: 2: a llama_cpp has one rank"},
		{"ranks that share a port", attached + "data_parallel_size = 2\n[engine.kv_events]\nendpoint = \"tcp://127.0.0.1:5557\"\nreplay = \"tcp://127.0.0.1:5558\"\nreport = \"/x\"\n",
			"engine[1].data_parallel_size: endpoints \"tcp://127.0.0.1:5557\" and \"tcp://127.0.0.1:5558\" are 1 ports apart"},
		{"ranks of the short form", "[agent]\ndata_parallel_size = 2\n" + first, "agent.data_parallel_size: is set, and so is [[engine]]"},
		{"a side channel of each rank", "[[engine]]\nlisten = \"127.0.0.1:9081\"\nmodel = \"m\"\nkv_offload = \"nixl\"\ntp = 2\ndata_parallel_size = 2\n" +
			"[[engine]]\nlisten = \"127.0.0.1:9082\"\nmodel = \"m\"\nkv_offload = \"nixl\"\n" +
			"[engine.offload]\nnixl_port = 5603\n",
			"engine[1].offload.nixl_port: 5603 to 5603, one for each rank, are of engine[0].offload.nixl_port too"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := loaded(t, c.doc)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
