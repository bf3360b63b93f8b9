package leg

import (
	"time"

	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/request"
)

// Outlook is what mode predicted expects of a leg.
type Outlook struct {
	Known  bool          // answers have taught how long a prompt takes; otherwise the other fields are 0
	First  time.Duration // until the first token
	Step   time.Duration // between two tokens
	Tokens float64       // of the whole answer
}

// Until returns the expected time until the answer has this many tokens, or is complete if it is
// shorter. 0 stands for all tokens.
func (o Outlook) Until(tokens int) time.Duration {
	n := o.Tokens
	if tokens > 0 && n > 0 {
		n = min(n, float64(tokens))
	}
	return o.First + time.Duration(max(n-1, 0)*float64(o.Step))
}

// Expect says what is expected of a leg of r with question q that is sent now. Expect reserves and
// sends nothing. Expect returns the router's own error if no node would take the leg.
func (d *Dispatcher) Expect(r *request.Request, q Question) (Outlook, *apierror.Error) {
	now := time.Now()
	l := d.Leg(r, q, nil)
	defer l.recycle()
	l.picks.scope = scopeExplain
	if err := l.admit(); err != nil {
		return Outlook{}, err
	}
	l.look()
	l.identify()
	p := d.policyOf(l.model)
	l.picks.policy, l.picks.turn = p, l.nextRandom(p)
	pick, _ := l.decide(now, nil)
	if pick < 0 {
		return Outlook{}, l.noNode(now)
	}
	if !l.knows(l.pool.members[l.picks.able[pick]]) {
		return Outlook{}, nil
	}
	e := p.Expected(l.situation(), pick)
	seconds := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	return Outlook{Known: true, First: seconds(e.First), Step: seconds(e.Step), Tokens: l.picks.output}, nil
}

// Spent returns the tokens that the leg has cost, as the engine reports them. If it does not, the
// prompt counts as the router does, and each event of the answer as a token.
func (l *Leg) Spent() (prompt, completion int64) {
	prompt, completion = l.Reading.Usage.Prompt, l.Reading.Usage.Completion
	if !l.Reading.Usage.HasPrompt && l.Delivered() {
		prompt = l.prompt.Tokens()
	}
	if !l.Reading.Usage.HasCompletion {
		completion = l.Reading.Events
	}
	return prompt, completion
}
