package leg

import (
	"slices"
	"time"

	"github.com/cognitora/dataplane/router/predict"
)

// pace is how long an engine takes for one part of its work, beside its like.
type pace struct {
	predict.Known
	// ratio is the engine's factor in parts of the median factor of its kind. 0: too little is
	// known. The median of two factors is the lower one.
	ratio float64
}

// paces are the paces of one engine, by part.
type paces [len(partNames)]pace

// These are the indices of paces.
const (
	ofPrefill = iota
	ofDecode
)

var partNames = [...]string{ofPrefill: "prefill", ofDecode: "decode"}

const (
	// paceMin is the number of answers from which on a factor counts in comparisons.
	paceMin = 16
	// paceFor is how long a factor counts in comparisons after its last answer.
	paceFor = 10 * time.Minute
)

// paces returns the paces of the engines that have taught something.
func (d *Dispatcher) paces(now time.Time) map[*predict.Engine]paces {
	d.rebuilding.Lock()
	defer d.rebuilding.Unlock()
	return d.compare(now)
}

// compare returns the paces of the engines that have taught something. The factors of a whole kind
// are off until its rates are learned. So an engine is compared with the other engines' factors.
// The caller holds d.rebuilding.
func (d *Dispatcher) compare(now time.Time) map[*predict.Engine]paces {
	all, like := map[*predict.Engine]paces{}, map[*predict.Kind]*[len(partNames)][]float64{}
	for _, n := range d.table.Load().nodes {
		for _, e := range n.engines {
			prefills, decodes := e.Known()
			if prefills.Answers+decodes.Answers == 0 {
				continue
			}
			p := paces{ofPrefill: {Known: prefills}, ofDecode: {Known: decodes}}
			all[e] = p
			k := like[e.Kind()]
			if k == nil {
				k = new([len(partNames)][]float64)
				like[e.Kind()] = k
			}
			for part := range p {
				if p[part].counts(now) {
					k[part] = append(k[part], p[part].Factor)
				}
			}
		}
	}
	for _, k := range like {
		for part := range k {
			slices.Sort(k[part])
		}
	}
	for e, p := range all {
		for part := range p {
			if factors := like[e.Kind()][part]; p[part].counts(now) {
				p[part].ratio = p[part].Factor / factors[(len(factors)-1)/2]
			}
		}
		all[e] = p
	}
	return all
}

// counts says whether enough is known of the part to compare it.
func (p *pace) counts(now time.Time) bool { return p.Answers >= paceMin && now.Sub(p.At) <= paceFor }

// slowest returns the paces of a node: for each part, that of the engine with the highest ratio. A
// node has several engines if it serves several models.
func (n *nodeState) slowest(all map[*predict.Engine]paces) (p paces) {
	for _, e := range n.engines {
		for part, of := range all[e] {
			if of.ratio > p[part].ratio {
				p[part] = of
			}
		}
	}
	return p
}

// byNode returns the nodes of which enough is known to compare them.
func (d *Dispatcher) byNode(now time.Time) map[*nodeState]paces {
	d.rebuilding.Lock()
	defer d.rebuilding.Unlock()
	all, nodes := d.compare(now), map[*nodeState]paces{}
	if len(all) == 0 {
		return nil
	}
	for _, n := range d.table.Load().nodes {
		if p := n.slowest(all); p[ofPrefill].ratio+p[ofDecode].ratio > 0 {
			nodes[n] = p
		}
	}
	return nodes
}

// Slowdowns calls emit for each node and part of its work, prefill or decode, that can be compared
// with other nodes of its kind. ratio 2 is twice their time.
func (d *Dispatcher) Slowdowns(now time.Time, emit func(node, part string, ratio float64)) {
	for n, p := range d.byNode(now) {
		for part := range p {
			if p[part].ratio > 0 {
				emit(n.ID, partNames[part], p[part].ratio)
			}
		}
	}
}

const (
	// slowFrom is the ratio from which on a node is slower than its like, and slowUntil the ratio
	// below which it is not any more.
	slowFrom, slowUntil = 2, 1.5
	// slowEvery is the least time between two log lines about one node's speed.
	slowEvery = time.Minute
)

// slowness is what the log says about a node's speed. Only the goroutine of Run uses it.
type slowness struct {
	said bool      // the last line said that the node is slow
	next time.Time // earliest time of the next line
}

// turns says whether a line is due because the node has become slow, or as fast as its like again.
func (s *slowness) turns(p *paces, now time.Time) bool {
	highest := max(p[ofPrefill].ratio, p[ofDecode].ratio)
	if now.Before(s.next) || s.said && highest >= slowUntil || !s.said && highest < slowFrom {
		return false
	}
	s.said, s.next = !s.said, now.Add(slowEvery)
	return true
}

// noteSlow logs which nodes have become slower than their like, and which are as fast again.
func (d *Dispatcher) noteSlow(now time.Time) {
	for n, p := range d.byNode(now) {
		if !n.slow.turns(&p, now) {
			continue
		}
		args := []any{"node", n.ID}
		for part, of := range p {
			if of.ratio > 0 {
				args = append(args, partNames[part]+"_ratio", tenths(of.ratio), partNames[part]+"_answers", of.Answers)
			}
		}
		if n.slow.said {
			d.log.Warn("node is slower than nodes of its kind", args...)
		} else {
			d.log.Info("node is as fast as nodes of its kind again", args...)
		}
	}
}

// ExplainedSpeed is what the router has learned about the times of a node's engine.
type ExplainedSpeed struct {
	Prefill ExplainedPace `json:"prefill"`
	Decode  ExplainedPace `json:"decode"`
}

// ExplainedPace is one part of an ExplainedSpeed.
type ExplainedPace struct {
	Factor   float64  `json:"factor"`             // of the rates of the node's kind, as a pick counts it now
	Last     float64  `json:"last_factor"`        // at the last answer
	Slowdown float64  `json:"slowdown,omitempty"` // as cgn_router_node_slowdown_ratio; absent if unknown
	Answers  int      `json:"answers"`            // first tokens or stretches of tokens behind the factors
	Age      *float64 `json:"age_s,omitempty"`    // since the last of them; absent if there was none
}

// paced adds what is known about the node's speed. all are the dispatcher's paces, or nil if picks
// do not count them.
func (e *ExplainedNode) paced(l *Leg, n *member, all map[*predict.Engine]paces, now time.Time) {
	if all == nil {
		return
	}
	p, s := all[n.engine], l.speed(n, now)
	e.Speed = &ExplainedSpeed{p[ofPrefill].explained(s.Prefills, now), p[ofDecode].explained(s.Decodes, now)}
}

// explained returns p for an explanation. factor is what a pick counts.
func (p *pace) explained(factor float64, now time.Time) ExplainedPace {
	x := ExplainedPace{Factor: factor, Last: 1, Slowdown: p.ratio, Answers: p.Answers}
	if p.Answers > 0 {
		age := now.Sub(p.At).Seconds()
		x.Last, x.Age = p.Factor, &age
	}
	return x
}
