package dispatch

import (
	"slices"
	"time"

	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/holdings"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/prefix"
)

// match asks the index what each node of the model is believed to hold. It is done once per
// request: further attempts use the same answer.
func (d *Dispatcher) match(j *Job) {
	seed := j.model.seed
	if len(j.Scan.CacheSalt) > 0 {
		seed = prefix.Seed(j.model.name, "", j.Scan.CacheSalt)
	}
	if !d.exactly(j, seed) {
		d.begin(j, seed)
	}
	d.believe(j)
}

// believe asks the index what each node of the model is believed to hold of the job's chain.
func (d *Dispatcher) believe(j *Job) {
	nodes := j.model.nodes
	j.refs = j.refs[:0]
	for _, n := range nodes {
		j.refs = append(j.refs, n.Ref())
	}
	j.matched = slices.Grow(j.matched[:0], len(nodes))[:len(nodes)]
	j.Blocks = j.chain.Blocks()
	d.index.Match(&j.chain, j.refs, j.matched)
	d.believeCaches(j)
}

// believeCaches asks what the nodes' hosts have said that they hold; where an engine reports its own
// memory, that replaces the prediction, for prompts whose blocks are of the model's own tokens: engines know no others.
func (d *Dispatcher) believeCaches(j *Job) {
	j.reach = j.reach[:0]
	for _, device := range j.matched {
		j.reach = append(j.reach, holdings.Reach{Device: device})
	}
	if d.holdings == nil || !j.query.Begin(d.holdings, j.model.name) {
		return
	}
	for _, n := range j.model.nodes {
		j.query.Node(n.ID, n.Info().KVAddress)
	}
	d.holdings.Match(&j.chain, &j.query)
	for i, r := range j.query.Reach {
		if r.Device == holdings.Unknown || !j.exact {
			r.Device = j.matched[i]
		}
		j.reach[i] = r
	}
}

// choose reserves a slot on the node that the policy picks among those that may take the
// request and have not been asked yet, or else among the last resort. It returns the node's place in j.model.nodes.
func (d *Dispatcher) choose(j *Job, now time.Time) (int, *apierror.Error) {
	p := d.policy.Load()
	// Another request may take the last slot, or the last room in the pool, between the look
	// and the reservation: the next look sees that.
	for range len(j.model.nodes) + 1 {
		j.candidates(now)
		j.calm(now)
		turn := d.random(p)
		pick, last := p.Pick(j.cands, j.Blocks, j, turn), false
		if pick < 0 && j.admitOthers() {
			pick = p.Pick(j.cands, j.Blocks, j, turn)
		}
		if pick < 0 && j.lastResort() {
			pick, last = p.Pick(j.cands, j.Blocks, j, turn), true
		}
		if pick < 0 {
			return 0, d.noNode(j, now)
		}
		at := int(j.able[pick])
		n := j.model.nodes[at]
		if !n.Acquire() && !(last && n.AcquireLastResort()) {
			continue
		}
		err := j.enter(n)
		if err == nil {
			if last {
				d.metrics.LastResort.Inc()
			}
			return at, nil
		}
		n.Release()
		if err == errGlobalFull {
			return 0, err
		}
	}
	return 0, d.noNode(j, now)
}

// noNode says why nobody may take the request: a pinned node that is not there is the
// client's mistake.
func (d *Dispatcher) noNode(j *Job, now time.Time) *apierror.Error {
	switch {
	case j.capped && len(j.cands) == 0:
		return errModelFull
	case j.Stored:
		return j.holderOut(now)
	case len(j.cands) > 0:
		return errAllBusy
	case len(j.Pin) > 0 && !j.serves(j.Pin):
		return errPinnedNode
	}
	return errNoNode
}

func (j *Job) serves(id []byte) bool {
	for _, n := range j.model.nodes {
		if n.ID == string(id) {
			return true
		}
	}
	return false
}

// random is what the policy's mode wants to be fed with.
func (d *Dispatcher) random(p *policy.Policy) uint64 {
	if p.Mode.Counts() {
		return d.turn.Add(1)
	}
	return d.options.Random()
}

// candidates fills j.cands with the nodes that may take the request, full ones included, and j.able with their
// places in j.model.nodes.
func (j *Job) candidates(now time.Time) {
	j.cands, j.able, j.capped = j.cands[:0], j.able[:0], false
	suspects := 0
	for i, n := range j.model.nodes {
		if j.excludes(n) {
			continue
		}
		if ok, _ := n.Eligible(now); !ok {
			continue
		}
		if !j.fits(n) {
			j.capped = true
			continue
		}
		if n.Suspect() {
			suspects++
		}
		j.candidate(i)
	}
	j.leaveOut(suspects, func(at int32) bool { return j.model.nodes[at].Suspect() })
}

// lastResort makes candidates, where there is none or all are full, of the nodes that are kept out of service by their own
// server errors or have as many trial requests as they may. It changes nothing and returns false where there is no such
// node, or an engine's answer to fall back on.
func (j *Job) lastResort() bool {
	if j.capped || j.kept != nil {
		return false
	}
	found := false
	for i, n := range j.model.nodes {
		if j.excludes(n) || !n.LastResort() || !j.fits(n) {
			continue
		}
		if !found {
			j.cands, j.able, found = j.cands[:0], j.able[:0], true
		}
		j.candidate(i)
	}
	return found
}

// leaveOut takes the suspects out of the candidates, of which they are so many, unless they are more than half: then rather the network
// is at fault, or there is nobody else.
func (j *Job) leaveOut(suspects int, suspect func(at int32) bool) {
	if suspects == 0 || 2*suspects > len(j.cands) {
		return
	}
	j.keep(func(at int32) bool { return !suspect(at) }) // one may have become suspect since it was counted
}

// admitOthers makes the requests of others take slots only as far as they wait for one. Which of them run may be known from
// seconds ago, and that refuses nobody: where all nodes seem to be full of them, one is asked that nobody waits for.
func (j *Job) admitOthers() (changed bool) {
	for i, at := range j.able {
		waiting := j.model.nodes[at].Load().Waiting
		changed = changed || waiting < j.cands[i].Others
		j.cands[i].Others = waiting
	}
	return changed
}

func (j *Job) candidate(at int) {
	j.cands = append(j.cands, j.model.nodes[at].candidate(j.reach[at]))
	j.able = append(j.able, int32(at))
}

func (n *member) candidate(reach holdings.Reach) policy.Candidate {
	info, load := n.Info(), n.Load()
	return policy.Candidate{
		IDHash: n.IDHash, Matched: reach.Device, Host: reach.Host, Disk: reach.Disk,
		InFlight: n.InFlight(), Others: load.Others, MaxConcurrent: info.MaxConcurrent,
		SM: load.SMPct.Float32() / 100, Watts: load.Drawn().Float32(), VRAM: info.VRAM(), Throughput: info.Throughput(),
		EngineWait: load.EngineWaitPct.Float32() / 100, Retransmits: n.Resent(),
	}
}

// excludes tells whether the request must not go to n: it was tried, or another is pinned.
func (j *Job) excludes(n *member) bool {
	return len(j.Pin) > 0 && n.ID != string(j.Pin) || slices.Contains(j.tried, n)
}
