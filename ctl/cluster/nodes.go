package cluster

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/cognitora/dataplane/ctl/cell"
	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/fleet"
)

// nodeRow is one node in the output of `cluster nodes`.
type nodeRow struct {
	ID     string              `json:"id"`
	Number uint64              `json:"number"` // names the node too, as a worker id of nvext
	Health *cluster.NodeHealth `json:"health,omitempty"`
	Error  string              `json:"error,omitempty"`
	Cordon *cluster.Cordon     `json:"cordon,omitempty"`
	// LeaseSecs is the time, by etcd's clock, until etcd removes the node without a further
	// heartbeat; absent: never.
	LeaseSecs *float64 `json:"lease_seconds_left,omitempty"`
	// Router is the node in the view of the router at --admin; nil: no router answers there, or it
	// does not know the node.
	Router *fleet.NodeView `json:"router,omitempty"`
}

func newNodes(s *state) *cobra.Command {
	c := &cobra.Command{
		Use: "nodes", Short: "List the registered nodes", Args: cli.NoArguments,
		Long: "Lists the nodes as their agents' last heartbeats have them. " +
			"KERNEL is what the agent's host tells: CPUs that the engine's processes use (100 % is one)\n" +
			"and how long they wait for one, the wait for a CPU that 99 % of the host's waits do not exceed, " +
			"the median round trip between the agent and its clients, and how many in a million\n" +
			"segments it sends them again. In parentheses: how old the sample was at the heartbeat. " +
			"\"-\": the agent cannot tell; its /readyz says why.\n" +
			"ROLE has in parentheses the connector by which the node hands KV blocks over, or takes them " +
			"(docs/engines.md).\n" +
			"LABELS are those of the agent's configuration, which requests can require or prefer.\n" +
			"Routers hear of changes between heartbeats: cgn-ctl top and cgn-ctl route explain.\n\n" +
			"SLOTS is how many requests at once the operator has stated, " +
			"and in parentheses how many the engine says that it computes.\n\n" +
			"ROUTER is the node's state in the router at --admin, if one answers there: " +
			"suspect, and why, while packets to the node are not acknowledged. PATH is what\n" +
			"the kernel of the router's host measures of connections to the node (router.kernel_events): " +
			"the round trip, in parentheses how long ago, and how many in\n" +
			"a million segments are sent again.\n\n" +
			"NUMBER names the node too, where a request has a worker id: x-cgn-node, nvext " +
			"(docs/nvext.md). It follows from the name.",
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
	s.router.Flags(c.Flags(), s.Getenv)
	return c
}

// listNodes combines nodes with cordons, and includes cordoned nodes that are gone.
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
		rows = append(rows, nodeRow{ID: id, Number: fleet.NumberOf(id), Error: "not registered", Cordon: &cordon})
	}
	return rows, nil
}

const (
	leasesAtOnce = 16              // concurrent requests
	leasesLimit  = 5 * time.Second // time limit for all of them together
)

// rowsOf returns a row for each node. If etcd does not return a node's lease, its row has the
// error.
func rowsOf(ctx context.Context, client *cluster.Client, nodes []cluster.Node) []nodeRow {
	ctx, cancel := context.WithTimeout(ctx, leasesLimit)
	defer cancel()
	rows := make([]nodeRow, len(nodes))
	var asking errgroup.Group
	asking.SetLimit(leasesAtOnce)
	for i, n := range nodes {
		asking.Go(func() error {
			rows[i] = nodeRow{ID: n.ID, Number: fleet.NumberOf(n.ID), Health: n.Health}
			left, ok, err := client.LeaseLeft(ctx, n)
			if ok {
				seconds := left.Seconds()
				rows[i].LeaseSecs = &seconds
			}
			if err = cmp.Or(n.Err, err); err != nil {
				rows[i].Error = err.Error()
			}
			return nil
		})
	}
	_ = asking.Wait() // each row has its own error
	return rows
}

func writeNodes(t *cli.Table, rows []nodeRow) {
	if len(rows) == 0 {
		t.Line("no node is registered; start an agent with --etcd")
		return
	}
	t.Row("NODE", "STATE", "ROLE", "ENGINE", "MODELS", "LABELS", "IN FLIGHT", "QUEUED", "SLOTS", "KERNEL", "GPU",
		"POWER", "ROUTER", "PATH", "ADDRESS", "NUMBER", "LEASE")
	for _, r := range rows {
		h := r.Health
		if h == nil {
			t.Row(r.ID, r.state(), "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", r.routerCell(), r.pathCell(), "-",
				r.Number, r.Error)
			continue
		}
		t.Row(r.ID, r.state(), roleCell(h), cell.Dash(h.Engine), cell.Dash(strings.Join(h.Models, ",")),
			cell.Dash(strings.Join(h.Labels, ",")), h.InFlight, h.QueueDepth, slotsCell(h),
			cell.Sample(&h.Load, "kernel"), cell.Sample(&h.Load, "sm"), cell.Sample(&h.Load, "watts"),
			r.routerCell(), r.pathCell(), h.Address, r.Number, r.lease())
	}
}

// roleCell formats the role, with the connector in parentheses.
func roleCell(h *cluster.NodeHealth) string {
	if name := h.Hands(); name != "" {
		return string(h.Role) + " (" + name + ")"
	}
	return string(h.Role)
}

// slotsCell formats the operator's limit of concurrent requests, with the engine's own number in
// parentheses.
func slotsCell(h *cluster.NodeHealth) string {
	slots := cell.Limit(h.MaxConcurrent)
	if h.EngineSlots > 0 {
		slots += fmt.Sprintf(" (%d)", h.EngineSlots)
	}
	return slots
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
	case r.Health.Ready && r.Health.Role == cluster.RolePrefill && r.Health.Hands() == "":
		return "ready, unused: its role is prefill, and it has no connector"
	case r.Health.Ready:
		return "ready"
	}
	return "not ready"
}
