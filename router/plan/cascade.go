package plan

import (
	"slices"
	"time"

	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/router/logprobs"
	"github.com/cognitora/dataplane/router/members"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/trust"
)

// Cascades sets how the answers of a cascade's models are judged. The zero value means that no
// request is cascaded.
type Cascades struct {
	Enabled   bool
	Threshold float64 // of the models without one of their own
	Measure   logprobs.Measure
	Early     int           // tokens by which a stream is judged; 0: a stream is judged at its end
	Latency   time.Duration // longest time that a stream waits for an early judgement
	MaxHeld   int           // bytes of an answer that wait for its judgement
}

// maxHeldTotal bounds the bytes of all answers that wait for a judgement.
const maxHeldTotal = 256 << 20

// Cascade answers with the first model of a chain that is confident of its answer. Each model but
// the last is asked in a leg of its own, whose place is a trial. The trial reads the answer, or its
// beginning, and passes it on to the client or drops it. So a client gets nothing of a dropped
// answer, and its response begins with the model that answers. A leg without an answer counts as an
// answer that is dropped.
//
// An answer is not dropped if nothing could follow: if no node could take the next model's leg, or
// not within the client's deadline. The client's deadline holds for all legs together.
type Cascade struct {
	OneLeg
	name       string // of the model with the chain
	chain      []string
	thresholds []float64
	direct     int    // the step that answers what cannot be judged
	unfit      string // why the answer cannot be judged; "": it can

	step    int // of the running leg
	trial   trial
	began   time.Time     // of the running leg
	earlier time.Duration // time of the earlier legs
	prompt  int64         // tokens of the earlier legs
	output  int64
}

// choose is the usual choice of a plan for a request for inference.
func (p *Planner) choose(r *request.Request) Plan {
	if !p.parts.Cascades.Enabled || len(r.Scan.Model) == 0 {
		return Direct{}
	}
	view := p.parts.Fleet.Load().Model(r.Scan.Model)
	if view != nil && p.Hides(view, r.Who) {
		return Hidden{}
	}
	if view == nil || view.Settings == nil || len(view.Settings.Chain) == 0 || !usesAll(r.Who, view.Settings.Chain) ||
		!r.Who.Uses(view.Name) && !r.Who.Uses(string(r.Scan.Model)) {
		return Direct{}
	}
	return p.cascade(r, view)
}

// cascade returns the plan of a request for a model with a chain.
func (p *Planner) cascade(r *request.Request, view *fleet.ModelView) *Cascade {
	set := view.Settings
	c := &Cascade{name: view.Name, chain: set.Chain, thresholds: set.Thresholds, direct: len(set.Chain) - 1}
	if len(c.thresholds) == 0 {
		c.thresholds = []float64{p.parts.Cascades.Threshold}
	}
	if at := slices.Index(set.Chain, set.Direct); at >= 0 {
		c.direct = at
	}
	c.unfit = unfit(r)
	c.trial.of, c.trial.adds = c, c.unfit == "" && !asksLogprobs(r)
	return c
}

// usesAll says whether a principal may use all models of a chain. A cascade gives nobody a model
// that he may not use by its own name.
func usesAll(who *trust.Principal, chain []string) bool {
	return !slices.ContainsFunc(chain, func(name string) bool { return !who.Uses(name) })
}

// Answers says whether a model without nodes of its own is answered for a principal by a cascade,
// one of whose models has nodes.
func (p *Planner) Answers(m *fleet.ModelView, who *trust.Principal) bool {
	if !p.parts.Cascades.Enabled || m.Settings == nil || !usesAll(who, m.Settings.Chain) {
		return false
	}
	snap := p.parts.Fleet.Load()
	return slices.ContainsFunc(m.Settings.Chain, func(name string) bool {
		step := snap.Model([]byte(name))
		return step != nil && len(step.Nodes) > 0
	})
}

// Hides says whether only a cascade answers for a model, and a principal may not use all models of
// the chain. The model is then unknown to the principal.
func (p *Planner) Hides(m *fleet.ModelView, who *trust.Principal) bool {
	return p.parts.Cascades.Enabled && m.Settings != nil && len(m.Nodes) == 0 && !usesAll(who, m.Settings.Chain) &&
		!slices.Contains(m.Settings.Chain, m.Name)
}

// Hidden is the plan of a request for a model that is hidden from its client.
type Hidden struct{ OneLeg }

// Answer implements Plan.
func (Hidden) Answer(t *Task) *apierror.Error { return t.planner.unknown(t.Request) }

func (p *Planner) unknown(r *request.Request) *apierror.Error {
	return leg.UnknownModel(p.parts.Fleet.Load(), r.Scan.Model)
}

// First returns the question of the first leg of a request for inference, as a plan would ask it.
func (p *Planner) First(r *request.Request) (leg.Question, *apierror.Error) {
	q, err := p.parts.Legs.Wanted(r)
	plan := p.choose(r)
	if _, hidden := plan.(Hidden); hidden {
		return q, p.unknown(r)
	}
	c, ok := plan.(*Cascade)
	if err != nil || !ok {
		return q, err
	}
	c.begin(p, q)
	q.Model = []byte(c.chain[c.step])
	_, err = leg.Resolve(p.parts.Fleet.Load(), q.Model)
	return q, c.inChain(err)
}

// Answer implements Plan.
func (c *Cascade) Answer(t *Task) *apierror.Error {
	q, err := c.question(t)
	if err != nil {
		return err
	}
	c.begin(t.planner, q)
	for c.unfit == "" && c.step < len(c.chain)-1 {
		done, err := c.try(t, q)
		if done || err != nil {
			return err
		}
	}
	outcome := "last"
	if c.unfit != "" {
		c.count(t, c.unfit)
		outcome = "unjudged"
	}
	c.began, c.trial.adds = time.Now(), false
	q.Model = []byte(c.chain[c.step])
	if err = t.Run(q, t.Client); err != nil {
		outcome = "failed"
	}
	c.ended(t, outcome)
	return c.inChain(err)
}

// question returns what all legs of the request ask.
func (c *Cascade) question(t *Task) (leg.Question, *apierror.Error) {
	if previous := t.Request.Scan.PreviousResponseID; len(previous) > 0 {
		node, err := t.planner.holder(t.Request, previous)
		return leg.Question{Node: node, Bond: leg.Continued}, err
	}
	return t.planner.parts.Legs.Wanted(t.Request)
}

// begin finds the first step. A request that may ask one node only goes to the model of the chain
// that the node serves.
func (c *Cascade) begin(p *Planner, q leg.Question) {
	if q.Bond != leg.Free {
		snap := p.parts.Fleet.Load()
		c.unfit = "pinned"
		c.step = slices.IndexFunc(c.chain, func(name string) bool {
			m := snap.Model([]byte(name))
			return m != nil && slices.ContainsFunc(m.Nodes, func(n *fleet.Node) bool { return n.ID == q.Node })
		})
		if c.step < 0 {
			c.step = c.direct
		}
	} else if c.unfit != "" {
		c.step = c.direct
	}
}

// try runs the present step, which is not the last. done says that the client has an answer. If it
// has none, and there is no error, c.step is the step to go on with.
func (c *Cascade) try(t *Task, q leg.Question) (done bool, err *apierror.Error) {
	q.Model = []byte(c.chain[c.step])
	if c.tooLate(t, q) {
		c.ended(t, "skipped")
		c.step++
		return false, nil
	}
	c.began = time.Now()
	if c.trial.adds {
		q.Edit = addLogprobs(t.Request.API)
	}
	c.trial.reset(t, q)
	err = t.Run(q, &c.trial)
	if err != nil && (t.Request.Life.Ended() != request.None || t.Request.Expired()) {
		c.ended(t, "failed")
		return true, err
	}
	if err != nil {
		c.trial.verdict, c.trial.kept = failed, 0
	}
	c.ended(t, verdictNames[c.trial.verdict])
	if v := c.trial.verdict; v == confident || v == unjudged {
		return true, nil
	}
	if c.trial.verdict != failed {
		c.spent(t)
	}
	c.earlier += time.Since(c.began)
	if c.step++; c.trial.verdict == unreadable && c.direct >= c.step {
		c.step, c.unfit = c.direct, "logprobs"
	}
	return false, nil
}

// tooLate says whether the step would be judged only after the client's deadline, as far as that is
// known.
func (c *Cascade) tooLate(t *Task, q leg.Question) bool {
	if t.Request.Deadline.IsZero() {
		return false
	}
	early := 0
	if t.Request.Scan.Stream {
		early = t.planner.parts.Cascades.Early
	}
	e, err := t.planner.parts.Legs.Expect(t.Request, q)
	return err == nil && e.Known && time.Now().Add(e.Until(early)).After(t.Request.Deadline)
}

// threshold returns the threshold of the present step.
func (c *Cascade) threshold() float64 { return c.thresholds[min(c.step, len(c.thresholds)-1)] }

// ended counts the end of a step.
func (c *Cascade) ended(t *Task, outcome string) {
	t.planner.parts.Metrics.Cascade.Steps.WithLabelValues(c.name, c.chain[c.step], outcome).Inc()
}

// count counts an answer without a judgement.
func (c *Cascade) count(t *Task, reason string) {
	t.planner.parts.Metrics.Cascade.Unjudged.WithLabelValues(c.name, reason).Inc()
}

// spent counts the tokens of a step whose answer the client does not get.
func (c *Cascade) spent(t *Task) {
	prompt, output := t.leg.Spent()
	c.prompt, c.output = c.prompt+prompt, c.output+output
	tokens := t.planner.parts.Metrics.Cascade.Tokens
	tokens.WithLabelValues(c.name, c.chain[c.step], "prompt").Add(float64(prompt))
	tokens.WithLabelValues(c.name, c.chain[c.step], "completion").Add(float64(output))
}

// Event implements Plan. The events that the trial has read are not read again.
func (c *Cascade) Event(t *Task, e sse.Event, out []byte, at time.Time) (rest []byte, enough bool) {
	if c.trial.kept > 0 {
		c.trial.kept--
		return append(out, e.Raw...), false
	}
	if !t.Read(e, at) {
		return out, false
	}
	return c.trial.show(t, e, out), false
}

// Steps describes the part of a cascade in an answer.
type Steps struct {
	Name string // of the model with the cascade; "": the request is not cascaded
	Step int    // the step whose answer the client gets, or the last that was tried; from 1
	// These are the costs of the earlier steps.
	Earlier        time.Duration
	Prompt, Output int64 // tokens
}

// Steps returns the present step of the task's cascade.
func (t *Task) Steps() Steps {
	p := t.plan
	if r, ok := p.(*Resumed); ok {
		p = r.Plan
	}
	c, ok := p.(*Cascade)
	if !ok {
		return Steps{}
	}
	return Steps{c.name, c.step + 1, c.earlier, c.prompt, c.output}
}

// unfit says why the answer of a request cannot be judged; "": it can be.
func unfit(r *request.Request) string {
	if r.API != scan.Chat && r.API != scan.Completions {
		return "api"
	}
	if m := members.Barring(r.Scan, r.Body(), members.Judge); m != nil {
		return string(m.Class)
	}
	return ""
}

// asksLogprobs says whether the client itself asks for log-probabilities. Then they stay in the
// answer.
func asksLogprobs(r *request.Request) bool {
	switch v := string(r.Scan.Find(r.Body(), "logprobs")); v {
	case "", "null", "false":
		return false
	default:
		return true
	}
}

// addLogprobs returns the edit that asks for log-probabilities. One alternative for each token is
// asked for, because llama.cpp gives 20 by default, and none without any.
func addLogprobs(api scan.API) func(*scan.Edits) {
	if api == scan.Completions {
		return func(e *scan.Edits) { e.Set("logprobs", oneValue) }
	}
	return func(e *scan.Edits) {
		e.Set("logprobs", trueValue)
		e.Default("top_logprobs", oneValue)
	}
}

var oneValue, trueValue = []byte("1"), []byte("true")
