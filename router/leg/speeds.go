package leg

import (
	"fmt"
	"strings"
	"time"

	"github.com/cognitora/dataplane/router/predict"
)

// NodeSpeed is what the router has learned about a node's speed.
type NodeSpeed struct {
	Prefill NodePace `json:"prefill,omitzero"` // absent in /debug/fleet while it cannot be compared
	Decode  NodePace `json:"decode,omitzero"`
	Slow    string   `json:"slow,omitempty"` // in words, while the node is slow
	// Silent is the seconds without a token, while mode predicted counts them as stalled. Explained
	// picks have stalled_s instead.
	Silent float64 `json:"silent_s,omitempty"`
	// Tried says that an explained pick counts the node as like its kind, to try it again.
	Tried bool `json:"tried,omitempty"`
}

// NodePace is one part of a NodeSpeed.
type NodePace struct {
	Factor   float64  `json:"factor,omitempty"`   // of the rates of the node's kind
	Slowdown float64  `json:"slowdown,omitempty"` // as cgn_router_node_slowdown_ratio; absent if unknown
	Answers  int      `json:"answers"`            // first tokens or stretches of tokens behind the factors
	Age      *float64 `json:"age_s,omitempty"`    // since the last of them; absent if there was none
}

// Speeds returns the speeds of the nodes that can be compared, are slow or stand still, by their
// ids.
func (d *Dispatcher) Speeds(now time.Time) map[string]*NodeSpeed {
	nodes, _ := d.paces(now)
	all := make(map[string]*NodeSpeed, len(nodes))
	for n, p := range nodes {
		all[n.ID] = n.speed(&p, now)
	}
	for n, silence := range d.silences(now) {
		if all[n.ID] == nil {
			all[n.ID] = n.speed(&paces{}, now)
		}
		all[n.ID].Silent = silence.Seconds()
	}
	return all
}

// silences returns how long the nodes that stand still have given no token, as far as picks count
// it. Of a node's ranks the most silent one counts.
func (d *Dispatcher) silences(now time.Time) map[*nodeState]time.Duration {
	all := map[*nodeState]time.Duration{}
	for _, m := range d.current().models {
		l := Leg{d: d}
		if l.picks.policy = d.policyOf(m); !l.foresees() {
			continue
		}
		for work := range m.pools {
			for _, n := range m.pools[work].members {
				if l.timing(n, n.rank.InFlight(), now).Silent > 0 {
					all[n.node] = max(all[n.node], n.rank.Book.Silence(now))
				}
			}
		}
	}
	return all
}

// paced adds what is known about the speed of the node's engine. all are the paces of all engines,
// or nil if picks do not count them.
func (e *ExplainedNode) paced(l *Leg, n *member, all map[*predict.Engine]paces, now time.Time) {
	if all == nil {
		return
	}
	p, s := all[n.engine], l.speed(n)
	e.Speed = n.node.speed(&p, now)
	e.Speed.Prefill.Factor, e.Speed.Decode.Factor = s.PrefillFactor, s.DecodeFactor
}

// speed returns p for people.
func (n *nodeState) speed(p *paces, now time.Time) *NodeSpeed {
	return &NodeSpeed{p[ofPrefill].told(now), p[ofDecode].told(now), n.slowness().words(now), 0, false}
}

func (p *pace) told(now time.Time) (x NodePace) {
	if p.Taught > 0 {
		age := now.Sub(p.At).Seconds()
		x = NodePace{Factor: p.Factor, Slowdown: p.ratio, Answers: p.Taught, Age: &age}
	}
	return x
}

// words says which parts are slow, how slow they were at their last slow answers, and when that
// was, such as "prefill 5.0x its like, 12m ago"; "" if none is.
func (s slowness) words(now time.Time) string {
	var all []string
	for part, x := range s.parts {
		if x.engine == nil {
			continue
		}
		text := fmt.Sprintf("%s %.1fx its like", partNames[part], x.ratio)
		if age := now.Sub(x.At).Truncate(time.Minute); age > 0 {
			text += ", " + strings.TrimSuffix(age.String(), "0s") + " ago"
		}
		all = append(all, text)
	}
	return strings.Join(all, "; ")
}
