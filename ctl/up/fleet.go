package up

import (
	"errors"
	"fmt"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/sim/engine"
)

const (
	simModel   = "sim"
	simSlots   = 64
	smallModel = "small"
	largeModel = "large"
	smartModel = "smart" // answered by smallModel, or else by largeModel
)

// divided says whether some engines compute prompts and others answer.
func (f *flags) divided() bool { return f.prefillGiven || f.decodeGiven }

// checkFleet checks the flags that say which engines are started.
func (f *flags) checkFleet() error {
	if f.cascade {
		return f.checkCascade()
	}
	if f.divided() {
		return f.checkDivided()
	}
	return nil
}

// checkDivided checks --prefill and --decode.
func (f *flags) checkDivided() error {
	switch {
	case !f.decodeGiven:
		return cli.WithHint(fmt.Errorf("--prefill %d: no engine would answer", f.prefill),
			"add --decode N, the engines that answer")
	case !f.prefillGiven:
		return cli.WithHint(fmt.Errorf("--decode %d: no engine would compute prompts for them", f.decode),
			"add --prefill N, or give --engines N for engines that do both")
	case f.enginesGiven:
		return errors.New("--prefill and --engines: give --prefill and --decode, or --engines; they name the same " +
			"engines")
	case f.model != "":
		return cli.WithHint(errors.New("--prefill and --model: llama.cpp hands no KV blocks to another engine"),
			"leave --model away for simulated engines; vLLM and SGLang can do it: docs/disagg.md")
	case len(f.backends) > 0:
		return cli.WithHint(errors.New("--prefill and --backend: no engine is started beside running ones"),
			"name the roles in the backends: --backend URL,role=prefill --backend URL,role=decode")
	}
	return errors.Join(cli.InRange("prefill", fmt.Sprint(f.prefill), 1, mostEngines),
		cli.InRange("decode", fmt.Sprint(f.decode), 1, mostEngines))
}

// checkCascade checks --cascade.
func (f *flags) checkCascade() error {
	for _, other := range []struct {
		flag  string
		given bool
	}{
		{"--prefill", f.prefillGiven}, {"--decode", f.decodeGiven}, {"--engines", f.enginesGiven},
		{"--model", f.model != ""}, {"--backend", len(f.backends) > 0},
	} {
		if other.given {
			return cli.WithHint(fmt.Errorf("--cascade and %s: give one of them; --cascade starts two simulated engines, "+
				"of a small and a large model", other.flag), "docs/cascade.md has the settings for other engines")
		}
	}
	return nil
}

// started is a node that is to be started.
type started struct {
	id   string
	role cluster.Role
	sim  engine.Config // unless the agent starts a real engine
	does string        // what tells it from the other nodes
}

// started returns the nodes that are to be started.
func (f *flags) started() (all []started) {
	add := func(n int, name string, as started) {
		for i := range n {
			as.id = fmt.Sprintf("%s-%d", name, i+1)
			all = append(all, as)
		}
	}
	both := started{role: cluster.RoleBoth, sim: engine.Config{Models: []string{simModel}}}
	switch {
	case f.cascade:
		small, large := both, both
		small.sim = engine.Config{Models: []string{smallModel}, Quality: 0.6}
		small.does = ", right in 60 % of its answers"
		large.sim = engine.Config{Models: []string{largeModel}, Quality: 0.95, Seed: 1}
		large.does = ", right in 95 % of its answers"
		add(1, smallModel, small)
		add(1, largeModel, large)
	case f.divided():
		both.sim.Connector = engine.ConnectorNIXL
		prefill, decode := both, both
		prefill.role, prefill.sim.Role = cluster.RolePrefill, engine.RolePrefill
		prefill.does = ", which computes prompts"
		decode.role, decode.sim.Role = cluster.RoleDecode, engine.RoleDecode
		decode.does = ", which answers"
		add(f.prefill, "prefill", prefill)
		add(f.decode, "decode", decode)
	case f.model != "":
		add(f.engines, "llama", both)
	default:
		add(f.engines, "sim", both)
	}
	return all
}

// applyTo sets what the routers need for the fleet.
func (f *flags) applyTo(c *router.Config) {
	c.Router.Mode = f.routerMode()
	if f.cascade {
		c.Router.Cascade.Enabled = true
		c.Models = []router.ModelConfig{{Name: smartModel, Cascade: []string{smallModel, largeModel}}}
	}
}

// routerMode returns the mode of the routers; "": the policy's. Simulated engines of all roles are
// equally fast, so by expected times an idle node computes its prompts itself. In mode score the
// length of a prompt decides.
func (f *flags) routerMode() string {
	if f.mode == "" && f.divided() {
		return policy.Score.String()
	}
	return f.mode
}
