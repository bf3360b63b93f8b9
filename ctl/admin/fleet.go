package admin

import (
	"context"

	"github.com/cognitora/dataplane/router/busy"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/router/policy"
)

// Fleet is the fleet in a router's view: the answer of /debug/fleet.
type Fleet struct {
	fleet.View
	Nodes       []Node          `json:"nodes"`
	Models      []Model         `json:"models"`
	IndexBlocks int             `json:"index_blocks"`
	Policy      *policy.InForce `json:"policy"` // nil: the router is older than the field
}

// Model is a model in the router's view.
type Model struct {
	fleet.ModelInfo
	TokenizerError string         `json:"tokenizer_error,omitempty"`
	BusyThreshold  *busy.Document `json:"busy_threshold,omitempty"`
}

// Node is a node in the router's view.
type Node struct {
	fleet.NodeView
	Lifetime float64        `json:"learned_lifetime_s"`
	Speed    *leg.NodeSpeed `json:"speed,omitempty"`
}

// FirstModel returns the first model; empty if no node serves one.
func (v *Fleet) FirstModel() string {
	if len(v.Models) == 0 {
		return ""
	}
	return v.Models[0].Name
}

// Fleet returns the fleet in the router's view.
func (p *Port) Fleet(ctx context.Context) (*Fleet, error) {
	v := &Fleet{}
	return v, p.Decode(ctx, "/debug/fleet", "", v)
}
