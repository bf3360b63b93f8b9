package leg

import (
	"fmt"
	"testing"

	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/request"
)

// divided returns a dispatcher over nodes for which another of them may compute a prompt of 200
// tokens or more.
func divided(t testing.TB, prefills, decodes int) *Dispatcher {
	t.Helper()
	var all []fleet.Backend
	for i := range prefills + decodes {
		role := "prefill"
		if i >= prefills {
			role = "decode"
		}
		all = append(all, fleet.Backend{URL: fmt.Sprintf("http://10.0.%d.%d:1", i/250, i%250+1),
			ID: fmt.Sprint(role, "-", i), Model: "sim", Role: role, Connector: "nixl"})
	}
	return still(t, Options{MaxNodes: 2, Limits: Limits{FirstByte: 1e9}, Disagg: Disagg{ColocateBelow: 200}}, all...)
}

// pickBoth runs the steps of a request until both of its nodes are picked, with the memory of r and
// l. pickBoth returns the leg's way.
func pickBoth(d *Dispatcher, r *request.Request, l *Leg, body []byte) (Way, error) {
	defer r.Scan.Reset()
	defer l.reset()
	if err := ask(d, r, body); err != nil {
		return 0, err
	}
	l.d, l.Request, l.began = d, r, r.Received
	defer l.permit.Release()
	at, err := l.first()
	if err != nil {
		return 0, err
	}
	a, h := l.spare(), l.hand
	a.member = l.pool.members[at]
	if a.split {
		p := h.prefill
		if _, err := p.choose(r.Received); err != nil {
			return 0, err
		}
		p.drop(p.spare())
	}
	w := l.way
	l.drop(a)
	if h != nil {
		h.release()
		l.hand = nil
	}
	return w, nil
}

// BenchmarkBothPicks measures the way from a body of 2 KB to both nodes of a hand-over, beside the
// way to the one node of a request that is not split.
func BenchmarkBothPicks(b *testing.B) {
	body := chat(2 << 10)
	for name, d := range map[string]*Dispatcher{"one": divided(b, 0, 8), "both": divided(b, 8, 8)} {
		for _, mode := range []policy.Mode{policy.Score, policy.Predicted} {
			b.Run(name+"/"+mode.String(), func(b *testing.B) {
				p := policy.Default()
				p.Mode = mode
				d.policy.Store(p)
				r, l := request.New(), newLeg()
				for b.Loop() {
					if _, err := pickBoth(d, r, l, body); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
