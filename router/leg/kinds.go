package leg

import "time"

const (
	// idleKindFor is how long the rates of a kind are kept after its last engine has left. A model
	// that is served by day only, or engines that are all replaced, then need not be learned anew.
	idleKindFor = 24 * time.Hour
	// idleKindsMost bounds the kinds without an engine. Beyond it the kinds go that have had none
	// for the longest time.
	idleKindsMost = 1024
)

// engineKey names what a node's state knows about the times of its engine.
type engineKey struct {
	node *nodeState
	kind kindKey
}

// forgetKinds drops what is known about engines that are in no pool any more, and the kinds that
// have had no engine for long. What is known about the engines of a node that has left the fleet
// goes with the node's state.
func (d *Dispatcher) forgetKinds(now time.Time) {
	d.rebuilding.Lock()
	defer d.rebuilding.Unlock()
	t := d.table.Load()
	used, kinds := t.engines(), map[kindKey]bool{}
	for _, n := range t.nodes {
		for kind := range n.engines {
			if !used[engineKey{n, kind}] {
				delete(n.engines, kind)
				continue
			}
			kinds[kind] = true
		}
	}
	d.forecasts.keep(kinds, now)
}

// engines returns the engines of all pools.
func (t *servedFleet) engines() map[engineKey]bool {
	type group struct { // adapters of one base mostly have the same nodes
		model string
		*lineup
	}
	used, done := map[engineKey]bool{}, map[group]bool{}
	for _, s := range t.models {
		for work := range s.pools {
			g := group{timedAs(s.view), s.pools[work].lineup}
			if done[g] {
				continue
			}
			done[g] = true
			for i := range g.hosts {
				h := &g.hosts[i]
				used[engineKey{h.state, kindKey{g.model, h.like}}] = true
			}
		}
	}
	return used
}

// keep notes which kinds have an engine, and drops those that have had none for long.
func (f *forecasts) keep(used map[kindKey]bool, now time.Time) {
	for kind := range f.kinds {
		since, idle := f.idle[kind]
		switch {
		case used[kind]:
			delete(f.idle, kind)
		case !idle:
			f.idle[kind] = now
		case now.Sub(since) >= idleKindFor:
			f.drop(kind)
		}
	}
	for len(f.idle) > idleKindsMost {
		f.drop(f.idlest())
	}
}

func (f *forecasts) drop(kind kindKey) {
	delete(f.kinds, kind)
	delete(f.idle, kind)
}

// idlest returns the kind that has had no engine for the longest time. There is one without an
// engine.
func (f *forecasts) idlest() (kind kindKey) {
	var first time.Time
	for k, since := range f.idle {
		if first.IsZero() || since.Before(first) {
			kind, first = k, since
		}
	}
	return kind
}
