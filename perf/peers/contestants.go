package peers

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cognitora/dataplane/perf/compare"
)

// contestant is a router that is compared.
type contestant struct {
	name, note string
	// extra means that a setting of its own asks for it.
	extra bool
	// native means that the router reaches its workers only through Dynamo's own protocols.
	native bool
	// shim means that the router expects vLLM's endpoints for tokens.
	shim bool
	row  func(b *bench, f *Fleet) compare.Contestant
}

// Names of contestants.
const (
	ours       = "ours"
	roundRobin = "round robin"
	dynamo     = "dynamo"
)

// contestants returns all contestants. The modes are further modes of our router. With events our
// router takes part with KV events too.
func contestants(modes []string, events bool) []contestant {
	all := []contestant{{name: ours, note: "the default mode", row: inMode("")}}
	for _, mode := range modes {
		all = append(all, contestant{name: ours + ", " + mode, note: "mode " + mode, extra: true, row: inMode(mode)})
	}
	if events {
		all = append(all, contestant{name: ours + ", KV events", note: "the default mode with KV events", extra: true,
			row: withEvents})
	}
	return append(all,
		contestant{name: dynamo, note: "its frontend in mode kv with native workers", native: true, row: ofDynamo},
		contestant{name: "smg", note: "cache_aware", row: ofPeer("smg")},
		contestant{name: "vllm-router", note: "cache_aware, with a shim for vLLM's endpoints", shim: true,
			row: ofPeer("vllm-router")},
		contestant{name: roundRobin, note: "ours in mode round_robin", row: inMode("round_robin")},
	)
}

// Contestants returns the names of the contestants that need no setting of their own.
func Contestants() (names []string) {
	for _, c := range contestants(nil, false) {
		names = append(names, c.name)
	}
	return names
}

// ofPeer returns a router as perf/compare starts it.
func ofPeer(name string) func(*bench, *Fleet) compare.Contestant {
	return func(*bench, *Fleet) compare.Contestant { return *compare.ContestantNamed(name) }
}

// inMode returns our router as perf/compare starts it, in another mode. Without a mode it is the
// default mode.
func inMode(mode string) func(*bench, *Fleet) compare.Contestant {
	return func(*bench, *Fleet) compare.Contestant {
		c := *compare.ContestantNamed(ours)
		command := c.Processes[0].Command
		at := slices.Index(command, "--mode")
		if at < 0 {
			panic("the contestant ours has no --mode")
		}
		if command[at+1] = mode; mode == "" {
			c.Processes[0].Command = slices.Delete(command, at, at+2)
		}
		return c
	}
}

// withEvents returns our router in its default mode with the workers' KV events.
func withEvents(b *bench, f *Fleet) compare.Contestant {
	c := inMode("")(b, f)
	p := &c.Processes[0]
	p.Files = map[string]string{
		"router.toml": fmt.Sprintf("[[model]]\nname = %q\ntokenizer = %q\n", modelName, b.model)}
	p.Command, p.Each = append(p.Command, "--config", "router.toml"), nil
	for i, addr := range f.Addrs {
		p.Command = append(p.Command, "--backend", fmt.Sprintf("http://%s,kv-events=%s,kv-replay=%s", addr, f.Events[i],
			f.Replays[i]))
	}
	return c
}

// ofDynamo returns Dynamo's frontend in mode kv. The frontend waits for all native workers.
func ofDynamo(b *bench, f *Fleet) compare.Contestant {
	command := frontend("{{.Cache}}/dynamo/bin/python", "kv", "{{port `front`}}")
	return compare.Contestant{
		Name: dynamo, Peer: true, Program: command[0], Install: "perf/compare/install.sh dynamo",
		Version: []string{command[0], "-c", "import importlib.metadata as m; print('ai-dynamo', m.version('ai-dynamo'))"},
		Health:  "/v1/models",
		Processes: []compare.ProcessRow{{Env: environment(f.Store),
			Command: append(command, "--router-min-initial-workers", fmt.Sprint(b.Engines.Workers))}},
	}
}

// awaitNative waits until Dynamo's frontend knows all workers.
func (b *bench) awaitNative(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/health", nil)
		if err != nil {
			return err
		}
		var page bytes.Buffer
		err = fetch(req, &page)
		known := strings.Count(page.String(), `"endpoint":"generate"`)
		if err == nil && known == b.Engines.Workers {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("dynamo's frontend knows %d of %d workers: %w", known, b.Engines.Workers, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// python returns the program of the environment with Dynamo.
func python(cache string) string { return filepath.Join(cache, "dynamo", "bin", "python") }
