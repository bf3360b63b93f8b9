package leg

import (
	"time"

	"github.com/cognitora/dataplane/router/policy"
)

// adapterLong is the loading time from which on a node that would have to load a request's LoRA
// adapter is left out while another one has it.
const adapterLong = time.Second

// lacksAdapter says whether the node's engine must load the leg's model, a LoRA adapter, before it
// computes the request. lacksAdapter returns false if that is unknown.
func (l *Leg) lacksAdapter(n *member) bool {
	if !l.model.view.Adapter {
		return false
	}
	loaded, known := n.node.AdapterResident(l.model.name)
	return known && !loaded
}

// stayWithAdapter removes from the candidates the nodes that would have to load the leg's adapter,
// or that may have to, if loading takes long, and a node that has loaded it has room and no queue.
// With a queue there, loading elsewhere may be faster, and spreads a busy adapter.
func (l *Leg) stayWithAdapter() {
	if !l.model.slowAdapter {
		return
	}
	for i, at := range l.picks.able {
		n, c := l.pool.members[at], &l.picks.cands[i]
		if loaded, known := n.node.AdapterResident(l.model.name); known && loaded && n.unqueued(c) {
			l.keep(unloaded, func(at int32) bool {
				loaded, known := l.pool.members[at].node.AdapterResident(l.model.name)
				return known && loaded
			})
			return
		}
	}
}

// unqueued says whether the rank n, with the load of candidate c, would begin another request at
// once, as far as that is known.
func (n *member) unqueued(c *policy.Candidate) bool {
	held := c.InFlight + c.Others
	if !c.Room() || c.EngineSlots > 0 && held >= c.EngineSlots {
		return false
	}
	if c.Load == nil {
		return true
	}
	waiting, known := c.Load.QueueDepth.Get()
	if !known || waiting == 0 {
		return true
	}
	// A report of a queue may be seconds old. The requests in it may have ended since, such as
	// those that waited for the adapter. The engine has no queue with as many requests as it then
	// ran.
	reported, known := c.Load.InFlight.Get()
	return known && float64(held) <= reported-waiting
}

// useAdapter notes that the attempt's node computes for the leg's adapter from now on.
func (l *Leg) useAdapter(a *attempt) {
	if !l.model.view.Adapter {
		return
	}
	if l.lacksAdapter(a.member) {
		l.d.metrics.AdapterLoads.Inc()
	}
	a.member.node.UseAdapter(l.model.name, a.sent)
}

// failAdapter takes back useAdapter after an error of the engine, which may be unable to load the
// adapter. vLLM answers 400 if it has found an adapter and cannot load it.
func (l *Leg) failAdapter(a *attempt) {
	if a.status >= 400 && l.model.view.Adapter {
		a.member.node.UnuseAdapter(l.model.name, a.sent)
	}
}

// The states of a leg's LoRA adapter on a node, in explanations.
const (
	adapterLoaded  = "loaded"
	adapterLacking = "not loaded"
	adapterUnknown = "unknown"
)

// adapterState returns the state of the leg's adapter on n; "" if the leg's model is none.
func (l *Leg) adapterState(n *member) string {
	if !l.model.view.Adapter {
		return ""
	}
	switch loaded, known := n.node.AdapterResident(l.model.name); {
	case !known:
		return adapterUnknown
	case loaded:
		return adapterLoaded
	}
	return adapterLacking
}
