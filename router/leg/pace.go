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
	// known, or no other engine of the kind has answered lately. The median of two factors is the
	// lower one.
	ratio  float64
	engine *predict.Engine
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
	paceMin = 8
	// paceFor is how long a factor counts in comparisons after its last answer.
	paceFor = 10 * time.Minute
)

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
			p := paces{ofPrefill: {Known: prefills, engine: e}, ofDecode: {Known: decodes, engine: e}}
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
			of, factors := &p[part], like[e.Kind()][part]
			if peers := len(factors) - 1; peers > 0 && of.counts(now) {
				of.ratio = of.Factor / factors[peers/2]
			}
		}
		all[e] = p
	}
	return all
}

// counts says whether enough is known of the part to compare it.
func (p *pace) counts(now time.Time) bool { return p.Taught >= paceMin && now.Sub(p.At) <= paceFor }

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

// paces returns the paces of the nodes of which enough is known to compare them, and of those that
// are slow. all are the paces of all engines that have taught something.
func (d *Dispatcher) paces(now time.Time) (nodes map[*nodeState]paces, all map[*predict.Engine]paces) {
	d.rebuilding.Lock()
	defer d.rebuilding.Unlock()
	all, nodes = d.compare(now), map[*nodeState]paces{}
	for _, n := range d.table.Load().nodes {
		s := n.slowness()
		if p := n.slowest(all); p[ofPrefill].ratio+p[ofDecode].ratio > 0 || s.isSlow() || s.logged {
			nodes[n] = p
		}
	}
	return nodes, all
}

// Slowdowns calls emit for each node and part of its work, prefill or decode, that can be compared
// with other nodes of its kind. ratio 2 is twice their time.
func (d *Dispatcher) Slowdowns(now time.Time, emit func(node, part string, ratio float64)) {
	nodes, _ := d.paces(now)
	for n, p := range nodes {
		for part := range p {
			if p[part].ratio > 0 {
				emit(n.ID, partNames[part], p[part].ratio)
			}
		}
	}
}

const (
	// slowFrom is the ratio from which on a node is slower than its like, and slowUntil the ratio
	// below which each part of its work must come until it is not any more.
	slowFrom, slowUntil = 2, 1.5
	// slowEvery is the least time between two log lines about one node's speed.
	slowEvery = time.Minute
)

// slowness is whether a node is slow. It does not change once it is stored.
type slowness struct {
	parts  paces     // of the slow parts, at their last slow answers; a part without an engine is not slow
	logged bool      // the log says that the node is slow
	told   time.Time // time of the last line
}

// slowness returns whether the node is slow, as of the last look.
func (n *nodeState) slowness() slowness {
	if s := n.slow.Load(); s != nil {
		return *s
	}
	return slowness{}
}

func (s slowness) isSlow() bool { return s.parts != paces{} }

// after returns the slowness after a look at p, the paces of the node, and at those of all engines.
// A slow engine is fast again once a new answer of it is compared with others' and is not slow.
// When its own or all others' answers are too old to be compared, it stays slow. gone says that a
// slow engine has left, so no answer has shown it to be fast.
func (s slowness) after(p *paces, all map[*predict.Engine]paces) (next slowness, gone bool) {
	from := float64(slowFrom)
	if s.isSlow() {
		from = slowUntil
	}
	for part := range s.parts {
		x := &s.parts[part]
		engine, known := all[x.engine]
		switch own := engine[part]; {
		case x.engine != nil && !known:
			*x, gone = pace{}, true
		case own.ratio >= slowUntil:
			*x = own
		case own.ratio > 0 && own.At.After(x.At):
			*x = pace{}
		}
		if x.engine == nil && p[part].ratio >= from {
			*x = p[part]
		}
	}
	return s, gone
}

// noteSlow logs which nodes have become slower than their like, and which are as fast again. Only
// the goroutine of Run calls it.
func (d *Dispatcher) noteSlow(now time.Time) {
	nodes, all := d.paces(now)
	for n, p := range nodes {
		s, gone := n.slowness().after(&p, all)
		if gone && !s.isSlow() {
			s.logged = false
		}
		if s.isSlow() != s.logged && now.Sub(s.told) >= slowEvery {
			s.logged, s.told = s.isSlow(), now
			d.logSlow(n, s.isSlow(), &p)
		}
		n.slow.Store(&s)
	}
}

// logSlow logs that the node, with the paces p, is slow, or fast again.
func (d *Dispatcher) logSlow(n *nodeState, slow bool, p *paces) {
	args := []any{"node", n.ID}
	for part, of := range p {
		if of.ratio > 0 {
			args = append(args, partNames[part]+"_ratio", tenths(of.ratio), partNames[part]+"_answers", of.Answers)
		}
	}
	if slow {
		d.log.Warn("node is slower than nodes of its kind", args...)
	} else {
		d.log.Info("node is as fast as nodes of its kind again", args...)
	}
}
