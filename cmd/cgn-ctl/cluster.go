package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/admin"
	"github.com/cognitora/dataplane/ctl/cell"
	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/ctl/etcd"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/policy"
)

// state is the commands on a fleet's state in etcd.
type state struct {
	*cli.App
	store  etcd.Store
	router admin.Port // tells what it makes of the nodes
}

func newCluster(a *cli.App) *cobra.Command {
	s := &state{App: a}
	c := cli.Group("cluster", "Look at and change the fleet's state in etcd",
		newNodes(s), newPolicy(s), newSetPolicy(s), newCordon(s), newUncordon(s), newDrain(s))
	s.store.Flags(c.PersistentFlags(), a.Getenv)
	return c
}

// nodeRow is one node as `cluster nodes` shows it.
type nodeRow struct {
	ID     string              `json:"id"`
	Health *cluster.NodeHealth `json:"health,omitempty"`
	Error  string              `json:"error,omitempty"`
	Cordon *cluster.Cordon     `json:"cordon,omitempty"`
	// LeaseSecs is when etcd, by its own clock, drops the node unless its agent is heard of again;
	// absent: never.
	LeaseSecs *float64 `json:"lease_seconds_left,omitempty"`
	// Router is the node as the router at --admin has it; nil: none answers there, or it does not
	// know the node.
	Router *fleet.NodeView `json:"router,omitempty"`
}

func newNodes(s *state) *cobra.Command {
	c := &cobra.Command{
		Use: "nodes", Short: "List the registered nodes", Args: cobra.NoArgs,
		Long: "Lists the nodes as their agents' last heartbeats have them. " +
			"KERNEL is what the agent's host tells: CPUs that the engine's processes use (100 % is one)\n" +
			"and how long they wait for one, the wait for a CPU that 99 % of the host's waits do not exceed, " +
			"the median round trip between the agent and its clients, and how many in a million\n" +
			"segments it sends them again. In parentheses: how old the sample was at the heartbeat. " +
			"\"-\": the agent cannot tell; its /readyz says why.\n" +
			"Routers hear of changes between heartbeats: cgn-ctl top and cgn-ctl route explain.\n\n" +
			"SLOTS is how many requests at once the operator has stated, " +
			"and in parentheses how many the engine says that it computes.\n\n" +
			"ROUTER is the node's state in the router at --admin, if one answers there: " +
			"suspect, and why, while packets to the node are not acknowledged. PATH is what\n" +
			"the kernel of the router's host measures of connections to the node (router.kernel_events): " +
			"the round trip, in parentheses how long ago, and how many in\n" +
			"a million segments are sent again.",
		RunE: func(c *cobra.Command, _ []string) error {
			return s.store.With(c.Context(), func(ctx context.Context, client *cluster.Client) error {
				rows, err := listNodes(ctx, client)
				if err != nil {
					return err
				}
				s.askRouter(ctx, rows)
				return s.Show(rows, func(t *cli.Table) { writeNodes(t, rows) })
			})
		},
	}
	s.router.Flag(c.Flags(), s.Getenv)
	return c
}

// listNodes joins nodes with cordons, cordoned nodes that are gone included.
func listNodes(ctx context.Context, client *cluster.Client) ([]nodeRow, error) {
	nodes, err := client.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	cordons, err := client.Cordons(ctx)
	if err != nil {
		return nil, err
	}
	rows := rowsOf(ctx, client, nodes)
	for i := range rows {
		if cordon, ok := cordons[rows[i].ID]; ok {
			rows[i].Cordon = &cordon
			delete(cordons, rows[i].ID)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(cordons)) {
		cordon := cordons[id]
		rows = append(rows, nodeRow{ID: id, Error: "not registered", Cordon: &cordon})
	}
	return rows, nil
}

const (
	leasesAtOnce = 16              // are asked for
	leasesLimit  = 5 * time.Second // for all of them together
)

// rowsOf makes a row of each node. One whose lease etcd does not tell of carries the error.
func rowsOf(ctx context.Context, client *cluster.Client, nodes []cluster.Node) []nodeRow {
	ctx, cancel := context.WithTimeout(ctx, leasesLimit)
	defer cancel()
	rows := make([]nodeRow, len(nodes))
	var asking sync.WaitGroup
	room := make(chan struct{}, leasesAtOnce)
	for i, n := range nodes {
		room <- struct{}{}
		asking.Go(func() {
			defer func() { <-room }()
			rows[i] = nodeRow{ID: n.ID, Health: n.Health}
			left, ok, err := client.LeaseLeft(ctx, n)
			if ok {
				seconds := left.Seconds()
				rows[i].LeaseSecs = &seconds
			}
			if err = cmp.Or(n.Err, err); err != nil {
				rows[i].Error = err.Error()
			}
		})
	}
	asking.Wait()
	return rows
}

func writeNodes(t *cli.Table, rows []nodeRow) {
	if len(rows) == 0 {
		t.Line("no node is registered; start an agent with --etcd")
		return
	}
	t.Row("NODE", "STATE", "ROLE", "ENGINE", "MODELS", "IN FLIGHT", "QUEUED", "SLOTS", "KERNEL", "GPU", "POWER",
		"ROUTER", "PATH", "ADDRESS", "LEASE")
	for _, r := range rows {
		h := r.Health
		if h == nil {
			t.Row(r.ID, r.state(), "-", "-", "-", "-", "-", "-", "-", "-", "-", r.routerCell(), r.pathCell(), "-",
				r.Error)
			continue
		}
		t.Row(r.ID, r.state(), h.Role, cell.Dash(h.Engine), cell.Dash(strings.Join(h.Models, ",")), h.InFlight,
			h.QueueDepth,
			slotsCell(h), cell.Sample(&h.Load, "kernel"), cell.Sample(&h.Load, "sm"), cell.Sample(&h.Load, "watts"),
			r.routerCell(), r.pathCell(), h.Address, r.lease())
	}
}

// slotsCell is the stated limit of requests at once, and in parentheses the engine's own number.
func slotsCell(h *cluster.NodeHealth) string {
	cell := "-"
	if h.MaxConcurrent > 0 {
		cell = strconv.Itoa(h.MaxConcurrent)
	}
	if h.EngineSlots > 0 {
		cell += fmt.Sprintf(" (%d)", h.EngineSlots)
	}
	return cell
}

func (r *nodeRow) lease() string {
	if r.LeaseSecs == nil {
		return cmp.Or(r.Error, "none")
	}
	return fmt.Sprintf("%.0fs left", *r.LeaseSecs)
}

func (r *nodeRow) state() string {
	switch {
	case r.Cordon != nil:
		return r.Cordon.String()
	case r.Health == nil:
		return "unusable"
	case r.Health.Ready && r.Health.Role == cluster.RolePrefill:
		return "ready, unused: routers send nothing to role prefill yet"
	case r.Health.Ready:
		return "ready"
	}
	return "not ready"
}

func newPolicy(s *state) *cobra.Command {
	return &cobra.Command{
		Use: "policy", Short: "Print the routing policy in force", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return s.store.With(c.Context(), func(ctx context.Context, client *cluster.Client) error {
				doc, err := client.Policy(ctx)
				if err != nil {
					return err
				}
				p, source := policy.Default(), "default: none is stored"
				if doc != nil {
					source = "etcd"
					if p, err = policy.Parse(doc); err != nil {
						return cli.WithHint(fmt.Errorf("the stored policy is not valid, so routers ignore it: %w", err),
							"store a good one with `cgn-ctl cluster set-policy`")
					}
				}
				return s.showPolicy(p, source)
			})
		},
	}
}

func (s *state) showPolicy(p *policy.Policy, source string) error {
	return s.Show(p, func(t *cli.Table) {
		t.Row("mode", p.Mode)
		t.Row("kv", p.KV)
		t.Row("load", p.Load)
		t.Row("power", p.Power)
		t.Row("capacity", p.Capacity)
		t.Row("pending", fmt.Sprintf("%v%s", p.Pending, unused(p.Pending, "prefill that waits does not count")))
		t.Row("tiers", fmt.Sprintf("device %g, host %g, disk %g", p.Tiers.Device, p.Tiers.Host, p.Tiers.Disk))
		t.Row("epsilon", p.Epsilon)
		t.Row("max_share", fmt.Sprintf("%v%s", p.MaxShare, unused(p.MaxShare, "no node is left out for its share")))
		t.Row("max_queue", p.MaxQueue)
		t.Row("ttft_slo_ms", fmt.Sprintf("%v (not used yet)", p.TTFTSLOms))
		t.Row("run_delay_ms", fmt.Sprintf("%v%s", p.RunDelayMs, unused(p.RunDelayMs, "waits for a CPU do not count")))
		t.Row("retransmit_pct", fmt.Sprintf("%v%s",
			p.RetransmitPct, unused(p.RetransmitPct, "segments sent again do not count")))
		t.Row("source", source)
	})
}

// unused explains a setting that is 0.
func unused(v float64, why string) string {
	if v != 0 {
		return ""
	}
	return " (" + why + ")"
}

func newSetPolicy(s *state) *cobra.Command {
	return &cobra.Command{
		Use:   "set-policy FILE|-|JSON",
		Short: "Check a routing policy and store it for all routers",
		Long: "Checks a policy, a JSON document, and stores it in etcd, from where every router takes it at once. " +
			"Its keys: mode\n" +
			"(" + strings.Join(policy.ModeNames(), ", ") + "), the weights kv, load, power, capacity and\n" +
			"pending, tiers, epsilon, max_share, max_queue, run_delay_ms and retransmit_pct; " +
			"docs/policy.md has the meaning and\n" +
			"the default of each, which holds where a key is left out. " +
			"`cgn-ctl cluster policy -o json` prints a document to\n" +
			"begin with.",
		Example: "  cgn-ctl cluster set-policy policy.json\n" +
			`  cgn-ctl cluster set-policy '{"mode":"score","kv":0.6,"load":0.3,"power":0,"capacity":0.1}'`,
		Args: cli.OneArgument("a policy (FILE, - or JSON)"),
		RunE: func(c *cobra.Command, args []string) error {
			doc := args[0]
			if !strings.HasPrefix(strings.TrimSpace(doc), "{") {
				var err error
				if doc, err = cli.ReadInput(c, doc); err != nil {
					return err
				}
			}
			p, err := policy.Parse([]byte(doc))
			if err != nil {
				return fmt.Errorf("the policy is not valid and was not stored: %w", err)
			}
			if p.TTFTSLOms != 0 {
				fmt.Fprintln(s.Err, "cgn-ctl: ttft_slo_ms is stored, and nothing uses it yet")
			}
			return s.store.With(c.Context(), func(ctx context.Context, client *cluster.Client) error {
				if err := client.PutPolicy(ctx, compact(doc)); err != nil {
					return err
				}
				return s.showPolicy(p, "etcd, stored now")
			})
		},
	}
}

// compact takes the spaces out of a JSON document that has been parsed before.
func compact(doc string) []byte {
	b, err := json.Marshal(json.RawMessage(doc))
	if err != nil {
		return []byte(doc)
	}
	return b
}
