package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/config"
)

// change is the result of a command on a node.
type change struct {
	Node   string `json:"node"`
	State  string `json:"state"`
	Was    bool   `json:"was_cordoned,omitempty"`
	Detail string `json:"detail,omitempty"`
}

func newCordon(s *state) *cobra.Command {
	var reason string
	var unregistered bool
	c := &cobra.Command{
		Use: "cordon NODE", Short: "Keep new requests away from a node", Args: cli.OneArgument("NODE"),
		Example: "  cgn-ctl cluster cordon gpu1-9081 --reason 'new driver'",
		RunE: func(c *cobra.Command, args []string) error {
			return s.store.With(c.Context(), func(ctx context.Context, client *cluster.Client) error {
				done := change{Node: args[0], State: "cordoned"}
				r, err := callRoll(ctx, client, args[0])
				if err != nil {
					return err
				}
				if r.node == nil && !unregistered {
					return r.unknown("For a router's static backend, or a node that is yet to come, add " +
						"--unregistered.")
				}
				if r.node == nil {
					done.Detail = "no agent has registered it; a static backend of that id is cordoned now, an agent " +
						"when it comes"
				}
				if err := client.PutCordon(ctx, args[0], cluster.Cordon{Reason: reason}); err != nil {
					return err
				}
				return s.showChange(done)
			})
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for whoever looks later")
	c.Flags().BoolVar(&unregistered, "unregistered", false, "also a node that no agent has registered: a router's "+
		"static backend, or one that is yet to come")
	return c
}

// roll holds etcd's data about one node name, and all names in etcd.
type roll struct {
	id       string
	node     *cluster.Node // nil: not registered by any agent
	cordoned bool
	names    []string // names of registered nodes, sorted
	cordons  []string // names of cordoned nodes, sorted
}

// callRoll looks up id. callRoll returns an error for an invalid node name.
func callRoll(ctx context.Context, client *cluster.Client, id string) (*roll, error) {
	if err := cluster.CheckNodeID(id); err != nil {
		return nil, err
	}
	nodes, err := client.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	cordons, err := client.Cordons(ctx)
	if err != nil {
		return nil, err
	}
	r := &roll{id: id, cordons: slices.Sorted(maps.Keys(cordons))}
	_, r.cordoned = cordons[id]
	for i := range nodes {
		r.names = append(r.names, nodes[i].ID)
		if nodes[i].ID == id {
			r.node = &nodes[i]
		}
	}
	return r, nil
}

const mostNames = 10 // names in an error

// unknown returns an error for a node that is not registered. unknown lists the registered nodes,
// suggests the probable one, and says what else can be done.
func (r *roll) unknown(otherwise string) error {
	known := "; none is"
	if len(r.names) > 0 {
		known = "; registered: " + strings.Join(r.names[:min(len(r.names), mostNames)], ", ")
	}
	if more := len(r.names) - mostNames; more > 0 {
		known += fmt.Sprintf(" and %d more (cgn-ctl cluster nodes)", more)
	}
	err := fmt.Errorf("no node %q is registered, nothing was changed%s", r.id, known)
	if near := config.Nearest(r.id, slices.Concat(r.names, r.cordons)); near != "" && near != r.id {
		otherwise = strings.TrimSpace("Did you mean " + near + "? " + otherwise)
	}
	if otherwise == "" {
		return err
	}
	return cli.WithHint(err, otherwise)
}

func (s *state) showChange(c change) error {
	return s.Show(c, func(t *cli.Table) {
		text := c.Node + " is " + c.State
		if c.Detail != "" {
			text += " (" + c.Detail + ")"
		}
		t.Line(text)
	})
}

func newUncordon(s *state) *cobra.Command {
	var unregistered bool
	c := &cobra.Command{
		Use: "uncordon NODE", Short: "Let a cordoned or draining node take requests again",
		Args: cli.OneArgument("NODE"),
		Long: "Lets a cordoned or draining node take requests again. Routers keep the cordons that they know where " +
			"etcd has lost its data:\n" +
			"cgn-ctl top shows them, cgn-ctl cluster nodes does not. They are lifted in the same way.",
		Example: "  cgn-ctl cluster uncordon gpu1-9081",
		RunE: func(c *cobra.Command, args []string) error {
			return s.store.With(c.Context(), func(ctx context.Context, client *cluster.Client) error {
				r, err := callRoll(ctx, client, args[0])
				if err != nil {
					return err
				}
				if r.node == nil && !r.cordoned && !unregistered {
					return r.unknown("For a static backend, or a node that is gone, whose cordon etcd has lost and " +
						"routers remember, add --unregistered.")
				}
				was, err := client.Uncordon(ctx, args[0])
				if err != nil {
					return err
				}
				done := change{Node: args[0], State: "open for requests", Was: was}
				if !was {
					done.Detail = "it was not cordoned in etcd; routers that remember a cordon have been told"
				}
				return s.showChange(done)
			})
		},
	}
	c.Flags().BoolVar(&unregistered, "unregistered", false, "also a node of which etcd knows nothing, but routers may")
	return c
}

func newDrain(s *state) *cobra.Command {
	var reason string
	var wait time.Duration
	c := &cobra.Command{
		Use:     "drain NODE",
		Short:   "Keep new requests away from a node and wait until it has finished the running ones",
		Example: "  cgn-ctl cluster drain gpu1-9081 --reason 'new driver' --wait 5m",
		Args:    cli.OneArgument("NODE"),
		RunE: func(c *cobra.Command, args []string) error {
			return s.store.With(c.Context(), func(ctx context.Context, client *cluster.Client) error {
				return s.drain(ctx, client, args[0], reason, wait)
			})
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for whoever looks later")
	c.Flags().DurationVar(&wait, "wait", 60*time.Second, "how long to wait for running requests; 0 does not wait")
	return c
}

// drain marks a registered node as draining and waits for it. drain's output has only the result.
func (s *state) drain(ctx context.Context, client *cluster.Client, id, reason string, wait time.Duration) error {
	r, err := callRoll(ctx, client, id)
	if err != nil {
		return err
	}
	if r.node == nil {
		return r.unknown("A router's static backend has no agent to wait for: use cgn-ctl cluster cordon " +
			"--unregistered " + id)
	}
	if err := client.PutCordon(ctx, id, cluster.Cordon{Reason: reason, Drain: true}); err != nil {
		return err
	}
	if wait == 0 {
		return s.showChange(change{Node: id, State: "draining"})
	}
	fmt.Fprintf(s.Err, "%s is draining; waiting up to %s for its running requests\n", id, wait)
	return s.awaitDrained(ctx, client, id, wait)
}

const drainPoll = 500 * time.Millisecond

// awaitDrained polls until the node reports no request in flight in a heartbeat written after the
// call, or is gone. awaitDrained distinguishes heartbeats by the node's own stamp, because the two
// clocks need not agree.
func (s *state) awaitDrained(ctx context.Context, client *cluster.Client, id string, wait time.Duration) error {
	before, err := callRoll(ctx, client, id)
	if err != nil {
		return err
	}
	begin, tick := time.Now(), time.NewTicker(drainPoll)
	defer tick.Stop()
	for {
		r, err := callRoll(ctx, client, id)
		if err != nil {
			return err
		}
		left := drainLeft(r.node, before.node)
		if left == 0 {
			done := change{Node: id, State: "drained"}
			if r.node == nil {
				done.Detail = "it has left the fleet meanwhile"
			}
			return s.showChange(done)
		}
		if time.Since(begin) > wait {
			return cli.WithHint(fmt.Errorf("%s is still draining after %s (%s)", id, wait, describeLeft(left)),
				"it gets no new requests; give the command again to go on waiting, or take it back with cgn-ctl "+
					"cluster uncordon "+id)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// drainLeft returns the number of requests that a node still works on; -1 if the node has not
// reported since before, or cannot report this number.
func drainLeft(n, before *cluster.Node) int {
	if n == nil {
		return 0
	}
	if n.Health == nil || before != nil && before.Health != nil && before.Health.Stamp == n.Health.Stamp {
		return -1
	}
	left, known := n.Health.InFlight.Get()
	if !known {
		return -1
	}
	return int(left)
}

func describeLeft(left int) string {
	if left < 0 {
		return "its agent has not reported what it still works on"
	}
	return fmt.Sprintf("%d requests in flight", left)
}
