// Command cgn-ctl is the operator's tool for a fleet. cgn-ctl runs a fleet on a laptop, explains
// where requests go and why, and changes the state in etcd.
package main

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/admin"
	"github.com/cognitora/dataplane/ctl/batch"
	"github.com/cognitora/dataplane/ctl/bench"
	"github.com/cognitora/dataplane/ctl/bpf"
	"github.com/cognitora/dataplane/ctl/cascade"
	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/ctl/cluster"
	"github.com/cognitora/dataplane/ctl/doctor"
	"github.com/cognitora/dataplane/ctl/etcd"
	"github.com/cognitora/dataplane/ctl/key"
	"github.com/cognitora/dataplane/ctl/kv"
	"github.com/cognitora/dataplane/ctl/model"
	"github.com/cognitora/dataplane/ctl/pki"
	"github.com/cognitora/dataplane/ctl/rdma"
	"github.com/cognitora/dataplane/ctl/reference"
	"github.com/cognitora/dataplane/ctl/route"
	"github.com/cognitora/dataplane/ctl/sim"
	"github.com/cognitora/dataplane/ctl/top"
	"github.com/cognitora/dataplane/ctl/up"
	"github.com/cognitora/dataplane/ctl/usage"
	"github.com/cognitora/dataplane/internal/config"
)

func main() {
	warnOfVariables(os.Stderr, os.Environ())
	os.Exit(cli.Run(newRoot(os.Stdout, os.Stderr, os.Getenv), os.Stderr))
}

func newRoot(out, errOut io.Writer, getenv func(string) string) *cobra.Command {
	a := &cli.App{Out: out, Err: errOut, Getenv: getenv}
	return cli.Root(a, up.Command(a), route.Command(a), top.Command(a), cluster.Command(a), model.Command(a),
		key.Command(a), usage.Command(a), cascade.Command(a), kv.Command(a), rdma.Command(a), pki.Command(a),
		doctor.Command(a), bpf.Command(a), sim.Command(a), batch.Command(a), bench.Command(a),
		reference.Command(a))
}

// warnOfVariables warns of variables in env whose names resemble one that cgn-ctl reads. Other
// CGN_* variables are settings of router and agent.
func warnOfVariables(w io.Writer, env []string) {
	variables := append(etcd.Variables(), admin.Variables()...)
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		short, ours := strings.CutPrefix(name, "CGN_")
		if !ours || slices.Contains(variables, name) {
			continue
		}
		for _, v := range variables {
			if config.Nearest(short, []string{strings.TrimPrefix(v, "CGN_")}) != "" {
				fmt.Fprintf(w, "cgn-ctl: %s is not read; did you mean %s?\n", name, v)
				break
			}
		}
	}
}
