// Package model has the commands for the models of a fleet: their settings in etcd, and their LoRA
// adapters on engines.
package model

import (
	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/admin"
	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/ctl/etcd"
)

// commands are the commands for models.
type commands struct {
	*cli.App
	store  etcd.Store
	router admin.Port // gives its view of the models
}

// Command is cgn-ctl model.
func Command(a *cli.App) *cobra.Command {
	m := &commands{App: a}
	settings := []*cobra.Command{newSet(m), newList(m), newRm(m)}
	for _, c := range settings {
		m.store.Flags(c.Flags(), a.Getenv)
	}
	return cli.Group("model", "Look at and change the models of a fleet", append(settings, newAdapter(m))...)
}
