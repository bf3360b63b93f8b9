package dispatch

import (
	"time"

	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/prefix"
)

// Rehearsal is a request that is sent nowhere: the node is chosen, counted and learned from as Do and Finish do it, and
// whoever rehearses says what time it is and what the engine found. It is for simulations. Patience, retries and health
// take no part.
type Rehearsal struct {
	j *Job
}

// Rehearse chooses the node for a prompt of which only the keys of its blocks are known, all of it one user turn. known, if
// not nil, tells for each node of the model what it holds, instead of the index.
func (d *Dispatcher) Rehearse(keys []uint64, known func(n *fleet.Node) int32, now time.Time) (Rehearsal, *apierror.Error) {
	j := d.Job()
	j.Received = now
	if err := d.rehearse(j, keys, known); err != nil {
		j.permit.Release()
		j.recycle()
		return Rehearsal{}, err
	}
	return Rehearsal{j}, nil
}

func (d *Dispatcher) rehearse(j *Job, keys []uint64, known func(n *fleet.Node) int32) *apierror.Error {
	if err := d.admit(j); err != nil {
		return err
	}
	j.Scan.FirstTurn = len(keys) * prefix.BlockBytes
	j.chain.Reset(j.model.seed, nil, nil)
	j.chain.Skip(keys, prefix.Digest{})
	d.believe(j)
	if known != nil {
		for i, n := range j.model.nodes {
			j.matched[i] = known(n.Node)
			j.reach[i].Device = j.matched[i]
		}
	}
	at, err := d.choose(j, j.Received)
	if err != nil {
		return err
	}
	a := j.slot()
	a.node, a.sent = j.model.nodes[at], j.Received
	a.believe(j, at)
	a.ref, a.recorded = a.node.Ref(), true
	j.cur = a
	d.index.Record(&j.chain, a.ref, a.sent)
	return nil
}

// Node is the one that was chosen.
func (r Rehearsal) Node() *fleet.Node { return r.j.cur.node.Node }

// Matched is how many leading blocks the node was believed to hold.
func (r Rehearsal) Matched() int { return r.j.cur.matched }

// Finish ends the request, of whose prompt tokens the engine found so many cached. r must not be used afterwards.
func (r Rehearsal) Finish(promptTokens, cachedTokens int) {
	j := r.j
	j.Usage = usage.Counts{Prompt: int64(promptTokens), HasPrompt: true, Cached: int64(cachedTokens), HasCached: true}
	j.d.learn(j, j.cur, true, false, j.Received)
	j.drop(j.cur)
	j.permit.Release()
	j.recycle()
}
