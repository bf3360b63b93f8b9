package admin

import (
	"context"

	"github.com/cognitora/dataplane/router/fleet"
)

// Fleet is the fleet as a router has it: what /debug/fleet answers.
type Fleet struct {
	fleet.View
	Nodes       []Node `json:"nodes"`
	IndexBlocks int    `json:"index_blocks"`
}

// Node is a node as the router has it.
type Node struct {
	fleet.NodeView
	Lifetime float64 `json:"learned_lifetime_s"`
}

// FirstModel is empty where no node serves one.
func (v *Fleet) FirstModel() string {
	if len(v.Models) == 0 {
		return ""
	}
	return v.Models[0].Name
}

// Fleet asks for the fleet as the router has it.
func (p *Port) Fleet(ctx context.Context) (*Fleet, error) {
	v := &Fleet{}
	return v, p.Decode(ctx, "/debug/fleet", "", v)
}
