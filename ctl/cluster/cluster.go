// Package cluster has the commands for a fleet's state in etcd: nodes, cordons and the policy.
package cluster

import (
	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/admin"
	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/ctl/etcd"
)

// state has the commands for a fleet's state in etcd.
type state struct {
	*cli.App
	store  etcd.Store
	router admin.Port // gives its view of the nodes
}

// Command is cgn-ctl cluster.
func Command(a *cli.App) *cobra.Command {
	s := &state{App: a}
	c := cli.Group("cluster", "Look at and change the fleet's state in etcd",
		newNodes(s), newPolicy(s), newSetPolicy(s), newRemovePolicy(s), newCordon(s), newUncordon(s), newDrain(s))
	s.store.Flags(c.PersistentFlags(), a.Getenv)
	return c
}
