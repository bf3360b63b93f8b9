package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/internal/cluster"
)

// change is what a command did to a node.
type change struct {
	Node   string `json:"node"`
	State  string `json:"state"`
	Was    bool   `json:"was_cordoned,omitempty"`
	Detail string `json:"detail,omitempty"`
}

func newCordon(a *app) *cobra.Command {
	var reason string
	c := &cobra.Command{
		Use: "cordon NODE", Short: "Keep new requests away from a node", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.mark(c.Context(), args[0], cluster.Cordon{Reason: reason, Stamp: time.Now().UnixMilli()}, "cordoned")
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for whoever looks later")
	return c
}

// mark cordons a node, and warns if no agent has registered it: a mistyped name
// would otherwise look like success.
func (a *app) mark(ctx context.Context, id string, cordon cluster.Cordon, state string) error {
	if err := cluster.CheckNodeID(id); err != nil {
		return err
	}
	return a.withEtcd(ctx, func(ctx context.Context, client *cluster.Client) error {
		known, err := isRegistered(ctx, client, id)
		if err != nil {
			return err
		}
		if err := client.PutCordon(ctx, id, cordon); err != nil {
			return err
		}
		done := change{Node: id, State: state}
		if !known {
			done.Detail = "no such node is registered; it will be " + state + " when it comes"
		}
		return a.showChange(done)
	})
}

func isRegistered(ctx context.Context, client *cluster.Client, id string) (bool, error) {
	n, err := findNode(ctx, client, id)
	return n != nil, err
}

func findNode(ctx context.Context, client *cluster.Client, id string) (*cluster.Node, error) {
	nodes, err := client.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	for i := range nodes {
		if nodes[i].ID == id {
			return &nodes[i], nil
		}
	}
	return nil, nil
}

func (a *app) showChange(c change) error {
	return a.show(c, func(t *table) {
		text := c.Node + " is " + c.State
		if c.Detail != "" {
			text += " (" + c.Detail + ")"
		}
		t.line(text)
	})
}

func newUncordon(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "uncordon NODE", Short: "Let a cordoned or draining node take requests again", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return a.withEtcd(c.Context(), func(ctx context.Context, client *cluster.Client) error {
				was, err := client.Uncordon(ctx, args[0])
				if err != nil {
					return err
				}
				done := change{Node: args[0], State: "open for requests", Was: was}
				if !was {
					done.Detail = "it was not cordoned"
				}
				return a.showChange(done)
			})
		},
	}
}

func newDrain(a *app) *cobra.Command {
	var reason string
	var wait time.Duration
	c := &cobra.Command{
		Use:   "drain NODE",
		Short: "Keep new requests away from a node and wait until it has finished the running ones",
		Args:  cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			cordon := cluster.Cordon{Reason: reason, Drain: true, Stamp: time.Now().UnixMilli()}
			if err := a.mark(c.Context(), args[0], cordon, "draining"); err != nil || wait == 0 {
				return err
			}
			return a.withEtcd(c.Context(), func(ctx context.Context, client *cluster.Client) error {
				return a.awaitDrained(ctx, client, args[0], wait)
			})
		},
	}
	c.Flags().StringVar(&reason, "reason", "", "why, for whoever looks later")
	c.Flags().DurationVar(&wait, "wait", 60*time.Second, "how long to wait for running requests; 0 does not wait")
	return c
}

const drainPoll = 500 * time.Millisecond

// awaitDrained polls until the node reports nothing in flight in a heartbeat
// written after the call, or is gone. Heartbeats are told apart by the node's
// own stamp: its clock need not agree with this one.
func (a *app) awaitDrained(ctx context.Context, client *cluster.Client, id string, wait time.Duration) error {
	before, err := findNode(ctx, client, id)
	if err != nil {
		return err
	}
	begin, tick := time.Now(), time.NewTicker(drainPoll)
	defer tick.Stop()
	for {
		n, err := findNode(ctx, client, id)
		if err != nil {
			return err
		}
		left := drainLeft(n, before)
		if left == 0 {
			return a.showChange(change{Node: id, State: "drained"})
		}
		if time.Since(begin) > wait {
			return fmt.Errorf("%s is still draining after %s (%s)", id, wait, describeLeft(left))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// drainLeft is the number of requests a node still works on; -1 if it has said
// nothing since before, or cannot.
func drainLeft(n, before *cluster.Node) int {
	if n == nil || n.Health == nil {
		return 0
	}
	if before != nil && before.Health != nil && before.Health.Stamp == n.Health.Stamp {
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
