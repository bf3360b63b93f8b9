package nvext

import (
	"math"
	"slices"
	"strconv"

	"github.com/cognitora/dataplane/internal/jsonscan"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/scan"
)

// texts reads a list of texts.
func (r *reader) texts() (all []string) {
	r.list("strings", func() { all = append(all, string(r.text(maxText))) })
	return all
}

// required reads the taints that a node must have, each once.
func (r *reader) required() {
	at, all := r.c.Pos(), r.texts()
	slices.Sort(all)
	if all = slices.Compact(all); len(all) > maxTaints {
		r.tooMany(at, maxTaints)
		return
	}
	r.x.RequiredTaints = all
}

// tokens checks a list of token ids, and keeps none.
func (r *reader) tokens() {
	if r.c.Kind() != jsonscan.Array {
		r.wrong("a list of token ids")
		return
	}
	at, n := r.c.Pos(), 0
	for ok := r.c.Array(); ok && r.err == nil; ok = r.c.NextElement() {
		if n == scan.TokensKept {
			r.tooMany(at, scan.TokensKept)
			return
		}
		r.index = n
		r.count()
		r.index = -1
		n++
	}
}

// pin reads backend_instance_id or decode_worker_id, which both name the answering worker.
func (r *reader) pin() {
	at, w := r.c.Pos(), r.choice()
	if was := r.x.Worker; was.ID != "" && was.ID != w.ID && r.header == nil {
		r.fail(at, scan.CodeValue, "names another worker than `"+was.By+"`; send one of them")
		return
	}
	r.x.Worker = w
}

// choice reads the id of a worker.
func (r *reader) choice() Worker { return Worker{r.workerID(), r.name()} }

// workerID reads a node's name, or its number.
func (r *reader) workerID() string {
	if r.header != nil {
		return r.headerID()
	}
	switch r.c.Kind() {
	case jsonscan.String:
		return string(r.text(maxWorkerID))
	case jsonscan.Number:
		at := r.c.Pos()
		digits := r.c.Number()
		if !isNodeNumber(digits) {
			r.fail(at, scan.CodeValue, "must be a node's name or its number; cgn-ctl cluster nodes prints both")
			return ""
		}
		return string(digits)
	}
	r.wrong("a node's name or its number")
	return ""
}

// isNodeNumber says whether digits are a whole number in its usual spelling, of at most 64 bits.
func isNodeNumber(digits []byte) bool {
	return len(digits) <= 20 && !slices.ContainsFunc(digits, func(d byte) bool { return d < '0' || d > '9' })
}

// allowed reads the set of workers that may answer.
func (r *reader) allowed() {
	at := r.c.Pos()
	all := Workers{}
	r.list("nodes' names or numbers", func() { all = append(all, r.workerID()) })
	if len(all) == 0 {
		r.fail(at, scan.CodeValue, "is empty, so that no worker might answer; name one or leave it out")
		return
	}
	r.allow(all)
}

// allow takes over a list of workers that may answer.
func (r *reader) allow(all Workers) {
	slices.Sort(all)
	r.x.Allowed, r.x.AllowedBy = slices.Compact(all), r.name()
}

func (r *reader) rank() { r.x.DPRank, r.x.DPRankBy = policy.Given(r.count()), r.name() }

// prefillRank reads the rank of the worker that computes the prompt. The largest number means none.
func (r *reader) prefillRank() {
	p := &r.x.Prefill
	if n := r.count(); n != math.MaxUint32 {
		p.Rank, p.RankBy = policy.Given(n), r.name()
	}
}

// engineRank reads the rank by the header that engines know. The router's own header wins.
func (r *reader) engineRank() {
	if r.x.DPRankBy == rankHeader {
		r.count()
		return
	}
	r.rank()
}

// priority reads the priority among the requests of an engine. Less than 0 means that the request
// comes after all others in the router's queue too.
func (r *reader) priority() { r.x.Last = r.whole(math.MinInt32, math.MaxInt32) < 0 }

// strictPriority reads the priority in the router's queue.
func (r *reader) strictPriority() { r.x.Priority = r.count() }

// taints reads preferred taints: an object with a weight for each name.
func (r *reader) taints() {
	start := r.c.Pos()
	var all []Taint
	r.members(func(at int, key []byte) {
		switch {
		case len(all) == maxTaints:
			r.tooMany(start, maxTaints)
			return
		case len(key) > maxText:
			r.fail(at, scan.CodeTooLong, "has a name longer than "+strconv.Itoa(maxText)+" bytes; send a shorter one")
			return
		}
		name := string(jsonscan.AppendUnescaped(nil, key))
		r.member = name
		if slices.ContainsFunc(all, func(t Taint) bool { return t.Name == name }) {
			r.fail(at, scan.CodeValue, "appears twice; send it once")
			return
		}
		all = append(all, Taint{name, r.finite()})
	})
	r.x.PreferredTaints = all
}

// overrides reads the object router.
func (r *reader) overrides() {
	r.object(routerFields)
	r.settleWeight()
}

// overlapWeight reads an older name of prefill_load_scale.
func (r *reader) overlapWeight() {
	at := r.c.Pos()
	if r.weight.Given {
		r.fail(at, scan.CodeValue, "is an older name of `prefill_load_scale`, which another member sets too; send one")
		return
	}
	r.weight = policy.Given(r.factor())
}

// settleWeight lets the older name win over prefill_load_scale. A weight of 0 also ignores cached
// blocks.
func (r *reader) settleWeight() {
	if !r.weight.Given {
		return
	}
	o := &r.x.Overrides
	if o.PrefillLoadScale = r.weight; r.weight.Value == 0 {
		o.OverlapScoreCredit = r.weight
	}
	r.weight = policy.Optional[float64]{}
}

// moeQuery reads the experts that the request needs. Without fallback_to_unlabeled other nodes are
// allowed.
func (r *reader) moeQuery() {
	at, q := r.c.Pos(), &r.x.MoE
	q.FallbackToUnlabeled = true
	r.object(moeFields)
	if len(q.Experts) == 0 {
		r.fail(at, scan.CodeMissing, "names no experts; list them in `experts`")
	}
}

// experts reads a list of experts, each a name or a number. Entries that repeat are kept once.
func (r *reader) experts() {
	var all []string
	r.listUpTo(maxExperts, "experts' names or numbers", func() {
		var expert string
		if r.c.Kind() == jsonscan.Number {
			expert = strconv.Itoa(int(r.count()))
		} else {
			expert = string(r.text(maxExpert))
		}
		if !slices.Contains(all, expert) {
			all = append(all, expert)
		}
	})
	r.x.MoE.Experts = all
}
