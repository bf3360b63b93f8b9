package dispatch

import (
	"time"

	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/prefix"
)

// Rehearsal is a streamed request that is sent nowhere. The node is chosen, counted and learned
// from as Do and Finish do it. The caller says what time it is, when the answer begins and what
// the engine found. It is for simulations: nobody gives up, retries or checks health.
type Rehearsal struct {
	j *Job
}

// Rehearse chooses the node for a prompt given as the keys of its blocks, all of it one user
// turn. known, if not nil, tells for each node of the model what it holds, instead of the index.
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
	j.Scan.Stream = true
	j.Scan.FirstTurn = len(keys) * prefix.BlockBytes
	j.chain.Reset(j.model.seed, nil, nil)
	j.chain.Skip(keys, prefix.Digest{})
	d.believe(j)
	if known != nil {
		for i, n := range j.model.nodes {
			holds := known(n.Node)
			if holds < j.matched[i] {
				j.coming[i] = holds
			}
			j.matched[i], j.reach[i].Device = holds, holds
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
	a.node.waits.Begin(&j.wait, a.sent, j.work(a.matched))
	d.index.Record(&j.chain, a.ref, a.sent)
	return nil
}

// Node is the one that was chosen.
func (r Rehearsal) Node() *fleet.Node { return r.j.cur.node.Node }

// Matched is how many leading blocks the node was believed to hold.
func (r Rehearsal) Matched() int { return r.j.cur.matched }

// Begun notes that the first token came.
func (r Rehearsal) Begun(now time.Time) {
	r.j.wait.FirstByte(now)
	r.j.d.index.Begun(&r.j.chain, r.j.cur.ref)
}

// Finish ends the request. The engine found cachedTokens of its promptTokens cached. r must not
// be used afterwards.
func (r Rehearsal) Finish(promptTokens, cachedTokens int, now time.Time) {
	j := r.j
	j.wait.Done(now, 0, true)
	j.Usage = usage.Counts{Prompt: int64(promptTokens), HasPrompt: true, Cached: int64(cachedTokens), HasCached: true}
	j.d.learn(j, j.cur, true, false, j.Received)
	j.drop(j.cur)
	j.permit.Release()
	j.recycle()
}
