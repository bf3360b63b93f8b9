package cluster

import (
	"fmt"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/load"
	"github.com/cognitora/dataplane/perf/trace"
)

// Telemetry says how a router learns of the engines' load: as from an agent, a heartbeat with a
// sample that is some time old. The zero value means that a router knows only its own requests.
type Telemetry struct {
	Every time.Duration // time between two heartbeats of a node; 0: there are none
	Age   time.Duration // age of a sample when its heartbeat comes
}

// telemetry takes samples of the engines and hands each to the routers once it is old enough. The
// nodes take turns, so their samples spread evenly over the time between two heartbeats.
type telemetry struct {
	Telemetry
	taken    int                   // samples so far
	underway []*cluster.NodeHealth // samples whose heartbeats have not come, the oldest first
}

// due returns the time of the next sample, or of the next heartbeat if that is earlier. There is
// none if ok is false.
func (t *telemetry) due(nodes int) (at time.Duration, sample, ok bool) {
	if t.Every == 0 {
		return 0, false, false
	}
	at = t.sampleAt(t.taken, nodes)
	if len(t.underway) > 0 {
		if came := t.sampleAt(t.taken-len(t.underway), nodes) + t.Age; came <= at {
			return came, false, true
		}
	}
	return at, true, true
}

// sampleAt returns the time of the i-th sample.
func (t *telemetry) sampleAt(i, nodes int) time.Duration {
	return t.Every * time.Duration(i) / time.Duration(nodes)
}

// listen takes the samples and the heartbeats that are due until now.
func (s *simulation) listen(now time.Duration) {
	for {
		at, sample, ok := s.telemetry.due(len(s.nodes))
		if !ok || at > now {
			return
		}
		if sample {
			s.telemetry.underway = append(s.telemetry.underway, s.sample(s.telemetry.taken%len(s.nodes)))
			s.telemetry.taken++
			continue
		}
		for _, r := range s.routers {
			r.fleet.Beat(epoch.Add(at), s.telemetry.underway[0])
		}
		s.telemetry.underway = s.telemetry.underway[1:]
	}
}

// sample returns the heartbeat of a node's agent with the present state of its engine. Without
// telemetry the agent knows nothing about its engine.
func (s *simulation) sample(node int) *cluster.NodeHealth {
	h := &cluster.NodeHealth{
		NodeID: nodeName(node), Models: []string{model}, Role: cluster.RoleBoth, Ready: true,
		Address:       fmt.Sprintf("http://10.%d.%d.%d:8000", node>>16&255, node>>8&255, node&255), // never dialled
		MaxConcurrent: max(s.cfg.Limit, 0),
	}
	if s.cfg.Roles != nil {
		h.Role, h.Engine, h.Connector = s.cfg.Roles[node], "vllm", cluster.ConnectorNIXL
	}
	if s.telemetry.Every == 0 {
		return h
	}
	h.EngineSlots, h.MaxBatchedTokens = s.cfg.Engine.MaxSeqs, s.cfg.Engine.MaxBatchTokens
	h.BlockTokens = trace.BlockTokens
	u := s.nodes[node].model.Usage()
	h.InFlight, h.QueueDepth = load.Known(float64(u.Running+u.Waiting)), load.Known(float64(u.Waiting))
	h.FreeBlocks, h.TotalBlocks = load.Known(float64(u.Blocks-u.UsedBlocks)), load.Known(float64(u.Blocks))
	return h
}
