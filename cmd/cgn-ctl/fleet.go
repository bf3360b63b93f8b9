package main

import (
	"context"

	"github.com/cognitora/dataplane/router/fleet"
)

// fleetView is what ADMIN/debug/fleet answers.
type fleetView struct {
	fleet.View
	Nodes       []fleetNode `json:"nodes"`
	IndexBlocks int         `json:"index_blocks"`
}

type fleetNode struct {
	fleet.NodeView
	Lifetime float64 `json:"learned_lifetime_s"`
}

func (v *fleetView) firstModel() string {
	if len(v.Models) == 0 {
		return ""
	}
	return v.Models[0].Name
}

// fleet asks for the fleet as the router has it.
func (p *port) fleet(ctx context.Context) (*fleetView, error) {
	v := &fleetView{}
	return v, p.decode(ctx, "/debug/fleet", "", v)
}
