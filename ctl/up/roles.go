package up

import (
	"errors"
	"fmt"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/policy"
)

// divided says whether some engines compute prompts and others answer.
func (f *flags) divided() bool { return f.prefillGiven || f.decodeGiven }

// checkRoles checks --prefill and --decode.
func (f *flags) checkRoles() error {
	if !f.divided() {
		return nil
	}
	switch {
	case !f.decodeGiven:
		return cli.WithHint(fmt.Errorf("--prefill %d: no engine would answer", f.prefill), "add --decode N, the engines "+
			"that answer")
	case !f.prefillGiven:
		return cli.WithHint(fmt.Errorf("--decode %d: no engine would compute prompts for them", f.decode),
			"add --prefill N, or give --engines N for engines that do both")
	case f.enginesGiven:
		return errors.New("--prefill and --engines: give --prefill and --decode, or --engines; they name the same engines")
	case f.modelGiven:
		return cli.WithHint(errors.New("--prefill and --model: llama.cpp hands no KV blocks to another engine"),
			"leave --model away for simulated engines; vLLM and SGLang can do it: docs/disagg.md")
	case len(f.backends) > 0:
		return cli.WithHint(errors.New("--prefill and --backend: no engine is started beside running ones"),
			"name the roles in the backends: --backend URL,role=prefill --backend URL,role=decode")
	}
	return errors.Join(cli.InRange("prefill", fmt.Sprint(f.prefill), 1, mostEngines),
		cli.InRange("decode", fmt.Sprint(f.decode), 1, mostEngines))
}

// started is a node that is to be started.
type started struct {
	id   string
	role cluster.Role
}

// started returns the nodes that are to be started.
func (f *flags) started() (all []started) {
	add := func(n int, name string, role cluster.Role) {
		for i := range n {
			all = append(all, started{fmt.Sprintf("%s-%d", name, i+1), role})
		}
	}
	switch {
	case f.divided():
		add(f.prefill, "prefill", cluster.RolePrefill)
		add(f.decode, "decode", cluster.RoleDecode)
	case f.model != "":
		add(f.engines, "llama", cluster.RoleBoth)
	default:
		add(f.engines, "sim", cluster.RoleBoth)
	}
	return all
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
