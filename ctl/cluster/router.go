package cluster

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cognitora/dataplane/ctl/cell"
	"github.com/cognitora/dataplane/router/fleet"
)

// routerLimit is how long `cluster nodes` waits for a router, which it does not need.
const routerLimit = 2 * time.Second

// askRouter adds a router's view of the nodes, if a router answers.
func (s *state) askRouter(ctx context.Context, rows []nodeRow) {
	ctx, cancel := context.WithTimeout(ctx, routerLimit)
	defer cancel()
	v, err := s.router.Fleet(ctx)
	if err != nil {
		return
	}
	known := make(map[string]*fleet.NodeView, len(v.Nodes))
	for i := range v.Nodes {
		known[v.Nodes[i].ID] = &v.Nodes[i].NodeView
	}
	for i := range rows {
		rows[i].Router = known[rows[i].ID]
	}
}

// routerCell formats the node's state in the router, and why it gets no requests or few.
func (r *nodeRow) routerCell() string {
	n := r.Router
	switch {
	case n == nil:
		return "-"
	case n.Suspect && n.SuspectMs != nil:
		return fmt.Sprintf("suspect for %s: %s", time.Duration(*n.SuspectMs)*time.Millisecond, n.SuspectWhy)
	case n.Reason != "":
		return n.State + ": " + n.Reason
	}
	return n.State
}

// pathCell formats the counts of connections to the node in the kernel of the router's host.
func (r *nodeRow) pathCell() string {
	if r.Router == nil || r.Router.Path == nil {
		return "-"
	}
	p := r.Router.Path
	var parts []string
	if p.RTTMs != nil && p.RTTAgeMs != nil {
		parts = append(parts, fmt.Sprintf("rtt %s ms (%s)", cell.Digits(*p.RTTMs),
			(time.Duration(*p.RTTAgeMs)*time.Millisecond).Round(100*time.Millisecond)))
	}
	if p.Retransmitted != nil {
		parts = append(parts, cell.Digits(1e6**p.Retransmitted)+" ppm again")
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}
