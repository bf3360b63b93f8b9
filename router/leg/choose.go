package leg

import (
	"errors"
	"math"
	"slices"
	"time"

	"github.com/cognitora/dataplane/router/admission"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/health"
	"github.com/cognitora/dataplane/router/holdings"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/prefix"
)

// picks is the scratch memory of a pick.
type picks struct {
	cands  []policy.Candidate
	able   []int32 // places of the candidates in the pool
	capped bool    // the last look found a node whose pool is full
}

// choose reserves a slot for the spare attempt on the node that the policy picks. The candidates
// are the nodes that may take the request and have not been asked. If there are none, the nodes of
// last resort are the candidates. choose returns the node's place in l.pool.members.
func (l *Leg) choose(now time.Time) (int, *apierror.Error) {
	d := l.d
	p := d.policyOf(l.model)
	// Another request may take the last slot, or the last room in the pool, between the look and
	// the reservation. The next look then sees the change.
	for range len(l.pool.members) + 1 {
		l.candidates(now)
		l.calm(now)
		l.stayWithAdapter()
		turn := d.random(p)
		pick, last := p.Pick(l.picks.cands, l.prompt.Blocks, l.prompt, turn), false
		if pick < 0 && l.admitOthers() {
			pick = p.Pick(l.picks.cands, l.prompt.Blocks, l.prompt, turn)
		}
		if pick < 0 && l.lastResort() {
			pick, last = p.Pick(l.picks.cands, l.prompt.Blocks, l.prompt, turn), true
		}
		if pick < 0 {
			return 0, l.noNode(now)
		}
		at := int(l.picks.able[pick])
		n, a := l.pool.members[at], l.spare()
		if !n.Acquire() && !(last && n.AcquireLastResort()) {
			continue
		}
		a.node = n
		err := l.enter(n)
		if err == nil {
			if last {
				d.metrics.LastResort.Inc()
			}
			return at, nil
		}
		l.drop(a)
		if err == errGlobalFull {
			return 0, err
		}
	}
	return 0, l.noNode(now)
}

// noNode returns the error of a request that no node may take. A pinned node that does not exist is
// the client's mistake.
func (l *Leg) noNode(now time.Time) *apierror.Error {
	switch {
	case l.picks.capped && len(l.picks.cands) == 0:
		return errModelFull
	case l.Bond == Continued:
		return l.holderOut(now)
	case l.Bond == Named && l.known(l.Node):
		return errPinnedOut
	case l.Bond == Named:
		return errPinnedNode
	case len(l.picks.cands) > 0:
		return errAllBusy
	}
	return ErrNoNode
}

// known says whether the node serves the model, or has not yet named its models.
func (l *Leg) known(id string) bool {
	if slices.ContainsFunc(l.pool.members, func(n *member) bool { return n.ID == id }) {
		return true
	}
	n := l.d.current().snap.Node(id)
	return n != nil && n.Health.State() == health.Unproven
}

// random returns the random bits, or the turn, that the policy's mode needs.
func (d *Dispatcher) random(p *policy.Policy) uint64 {
	if p.Mode.Counts() {
		return d.turn.Add(1)
	}
	return d.o.Random()
}

// candidates fills l.picks.cands with the nodes that may take the request, full ones included.
// candidates fills l.picks.able with their places in l.pool.members.
func (l *Leg) candidates(now time.Time) {
	l.picks.cands, l.picks.able, l.picks.capped = l.picks.cands[:0], l.picks.able[:0], false
	suspects := 0
	for i, n := range l.pool.members {
		if l.excludes(n) {
			continue
		}
		if ok, _ := n.Eligible(now); !ok {
			continue
		}
		if !l.fits(n) {
			l.picks.capped = true
			continue
		}
		if n.Health.Suspect() {
			suspects++
		}
		l.candidate(i)
	}
	l.leaveOut(suspects, func(at int32) bool { return l.pool.members[at].Health.Suspect() })
}

// lastResort replaces the candidates if there are none, or all are full. The new candidates are the
// nodes whose own server errors keep them out of service, or whose trial requests are all in use.
// lastResort returns false and changes nothing if no node is left as a last resort, or if an
// engine's answer is kept to fall back on.
func (l *Leg) lastResort() bool {
	if l.picks.capped || l.kept != nil {
		return false
	}
	found := false
	for i, n := range l.pool.members {
		if l.excludes(n) || !n.LastResort() || !l.fits(n) {
			continue
		}
		if !found {
			l.picks.cands, l.picks.able, found = l.picks.cands[:0], l.picks.able[:0], true
		}
		l.candidate(i)
	}
	return found
}

// leaveOut removes the suspects from the candidates. suspects is their number. leaveOut keeps
// suspects that are more than half of the candidates, because then the network is more likely at
// fault. leaveOut also keeps them if no other node is left.
func (l *Leg) leaveOut(suspects int, suspect func(at int32) bool) {
	if suspects == 0 || 2*suspects > len(l.picks.cands) {
		return
	}
	l.keep(func(at int32) bool { return !suspect(at) }) // a node may have become suspect since the count
}

// admitOthers counts only the queued ones among others' requests at a node. The count of the
// running ones may be seconds old, so that count refuses no request. A node that seems full with
// others' requests is then asked if it has no queue.
func (l *Leg) admitOthers() (changed bool) {
	for i, at := range l.picks.able {
		waiting := l.pool.members[at].Load().Waiting
		changed = changed || waiting < l.picks.cands[i].Others
		l.picks.cands[i].Others = waiting
	}
	return changed
}

func (l *Leg) candidate(at int) {
	l.picks.cands = append(l.picks.cands, l.pool.members[at].candidate(l.prompt.Reach(at), l.prompt.Coming(at)))
	l.picks.able = append(l.picks.able, int32(at))
}

func (n *member) candidate(reach holdings.Reach, coming int32) policy.Candidate {
	info, load := n.Info(), n.Load()
	return policy.Candidate{
		IDHash: n.IDHash, Matched: reach.Device, Coming: coming, Host: reach.Host, Disk: reach.Disk,
		Pending:  blocksOf(n.waits.Queued()),
		InFlight: n.InFlight(), Others: load.Others,
		MaxConcurrent: info.MaxConcurrent, EngineSlots: info.EngineSlots,
		VRAM: info.VRAM(), Throughput: info.Throughput(), Retransmits: n.Resent(),
		Load: &load.Load,
	}
}

// blocksOf converts tokens to blocks.
func blocksOf(tokens int64) int32 {
	return int32(min(max(tokens, 0)/prefix.BlockTokens, math.MaxInt32))
}

// excludes says whether the request must not go to n: n was tried, or another node is pinned.
func (l *Leg) excludes(n *member) bool {
	return l.Bond != Free && n.ID != l.Node || slices.Contains(l.tries.asked, n) || l.Filter != nil && !l.Filter(n.Node)
}

// calm removes from a retry's candidates the nodes whose connection has just failed, if another
// node has room. When several nodes end at once, a request then need not try each of these nodes.
func (l *Leg) calm(now time.Time) {
	if l.Attempts == 0 {
		return
	}
	room := false
	for i, at := range l.picks.able {
		c := &l.picks.cands[i]
		free := c.MaxConcurrent == 0 || c.InFlight < c.MaxConcurrent
		room = room || free && !l.pool.members[at].Health.FailedLately(now)
	}
	if room {
		l.keep(func(at int32) bool { return !l.pool.members[at].Health.FailedLately(now) })
	}
}

// keep reduces the candidates to those for which ok is true, unless that leaves none.
func (l *Leg) keep(ok func(at int32) bool) {
	kept := 0
	for i, at := range l.picks.able {
		if ok(at) {
			l.picks.cands[kept], l.picks.able[kept] = l.picks.cands[i], at
			kept++
		}
	}
	if kept > 0 {
		l.picks.cands, l.picks.able = l.picks.cands[:kept], l.picks.able[:kept]
	}
}

// enter gets the leg a permit for the pool of n. If the leg holds another pool's permit, enter
// moves that permit.
func (l *Leg) enter(n *member) *apierror.Error {
	var err error
	if l.permit.Out() {
		err = l.permit.Move(n.gate)
	} else {
		l.permit, err = n.gate.Admit()
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, admission.ErrGlobalFull):
		return errGlobalFull
	}
	return errModelFull
}

// fits says whether the pool of n has room for the leg, or counts it already.
func (l *Leg) fits(n *member) bool { return !n.gate.Full() || l.permit.On(n.gate) }

// others says whether a node that was not asked yet could take the leg now.
func (l *Leg) others(now time.Time) bool {
	for _, n := range l.pool.members {
		if l.excludes(n) || n.Health.Suspect() || n.Full() {
			continue
		}
		if ok, _ := n.Eligible(now); ok {
			return true
		}
	}
	return false
}
