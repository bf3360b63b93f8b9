package plan

import (
	"cmp"
	"slices"
	"time"

	"github.com/cognitora/dataplane/internal/jsonscan"
	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/room"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/router/answer"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/router/resume"
	"github.com/cognitora/dataplane/router/scan"
)

// Resume are the settings for streams that go on when their node is gone.
type Resume struct {
	Memory   *room.Room // nil: no stream goes on
	Text     bool       // a stream may go on by its text
	MaxNodes int        // nodes that a stream may lose
}

// maxIDsBody is the longest body, in bytes, for which an engine is asked for token ids. The ids of
// its prompt come in one event, which must not be longer than sse.MaxEventBytes.
const maxIDsBody = 512 << 10

const (
	// maxResuming is the number of streams that other nodes are asked to go on with at once, from
	// then until the first event. A node's death breaks all its streams, whose prompts the nodes
	// left must compute. Further streams wait.
	maxResuming = 64
	// resumingTime is the longest time for which a stream waits for its turn. It ends then.
	resumingTime = 5 * time.Second
)

// Resumed answers as another Plan does, a Direct or a Cascade. If the node of the answer for the
// client breaks the stream off, another node goes on. That node serves the same model.
type Resumed struct {
	Plan         // answers
	legs     int // further legs
	stream   resume.Stream
	planner  *Planner
	task     *Task
	body     resume.Continuation
	question leg.Question
	ways     resume.By // the least exact way of all further legs
	lost     []string  // nodes that have broken the stream off
	state    resumedState
	first    bool // the engine may be asked for ids
	placed   bool // the stream has a place in Planner.resuming
	bound    resumedMethods
}

// resumedState is the state of the running leg.
type resumedState uint8

const (
	running resumedState = iota
	asking               // a further node is asked
	closed               // the stream has its closing event
	strayed              // the engine does not go on from the delivered tokens
	given                // up: the stream ends with an error
)

// resumedMethods are methods of a Resumed, bound once. Passing them allocates nothing.
type resumedMethods struct {
	edit func(*scan.Edits, *fleet.Node)
	fits func(*fleet.Node) bool
}

// resumable returns chosen, or a Resumed that answers as chosen does if another node could go on.
func (t *Task) resumable(chosen Plan) Plan {
	switch chosen.(type) {
	case Direct, *Cascade:
	default:
		return chosen
	}
	r := t.Request
	if !r.Scan.Stream {
		return chosen
	}
	if t.obstacle = t.mayResume(); t.obstacle != "" {
		return chosen
	}
	p := t.resumed
	p.Plan, p.planner, p.task, p.first = chosen, t.planner, t, len(r.Body()) <= maxIDsBody
	return p
}

// mayResume begins t.resumed. If no other node could go on with the stream, mayResume returns the
// reason.
func (t *Task) mayResume() (obstacle string) {
	o, r := &t.planner.parts.Resume, t.Request
	switch {
	case o.Memory == nil || o.MaxNodes == 0:
		return "off"
	case r.OneLeg:
		return "http10"
	}
	if id, _ := r.Worker(); id != "" || r.Nvext != nil && r.Nvext.DPRank.Given {
		return "pinned"
	}
	asked, obstacle := resume.Read(r.Scan, r.Body(), r.API)
	if obstacle != "" {
		return obstacle
	}
	if t.resumed == nil {
		p := new(Resumed)
		p.bound, t.resumed = resumedMethods{p.edit, p.fits}, p
	}
	if !t.resumed.stream.Begin(asked, len(r.Body()), o.Memory, o.Text) {
		return resume.Full.String()
	}
	return ""
}

// reset frees what the request has used. The memory may serve another request.
func (p *Resumed) reset() {
	p.leave()
	p.stream.Reset()
	p.Plan, p.planner, p.task, p.question = nil, nil, nil, leg.Question{}
	p.legs, p.ways, p.state = 0, resume.None, running
	clear(p.lost[:cap(p.lost)])
	p.lost, p.first, p.placed = p.lost[:0], false, false
	p.body.Reset()
}

// Resuming returns the number of broken streams that other nodes are asked to go on with now, and
// the bytes that all streams keep so that they may go on.
func (p *Planner) Resuming() (streams int, bytes int64) {
	if m := p.parts.Resume.Memory; m != nil {
		bytes = m.Used()
	}
	return len(p.resuming), bytes
}

// enter waits until the stream has a place in Planner.resuming.
func (p *Resumed) enter(t *Task) bool {
	p.leave()
	now := time.Now()
	p.placed = t.Request.Life.Acquire(p.planner.resuming, t.Request.Before(now.Add(resumingTime)).Sub(now))
	return p.placed
}

// leave undoes enter.
func (p *Resumed) leave() {
	if p.placed {
		select {
		case <-p.planner.resuming:
		default: // cannot happen
		}
	}
	p.placed = false
}

// how names the way in which other nodes went on; "" if none did.
func (p *Resumed) how() string {
	if p.ways == resume.None {
		return ""
	}
	return p.ways.String()
}

// countResumed counts a stream that was broken off.
func (p *Planner) countResumed(result, by string) {
	p.parts.Metrics.Resumed.WithLabelValues(result, by).Inc()
}

// ask begins a leg of the plan with question q, and returns what the leg asks. Its answer may go to
// the client.
func (p *Resumed) ask(q leg.Question) leg.Question {
	if p.legs > 0 { // see Next
		return q
	}
	p.stream.Restart()
	q.EditFor = p.bound.edit
	p.question = q
	p.question.Edit = nil
	return q
}

// Follows implements Plan.
func (p *Resumed) Follows() bool { return true }

// sendsIDs says whether the engine of n sends token ids to those who ask.
func sendsIDs(n *fleet.Node) bool { return n.Info().Engine == "vllm" }

// continues says whether the engine of n goes on with a text.
func continues(n *fleet.Node) bool { return n.Info().Engine == "vllm" || n.Info().Engine == "sglang" }

// edit changes the body for n.
func (p *Resumed) edit(e *scan.Edits, n *fleet.Node) {
	ids := p.first && sendsIDs(n)
	if p.legs == 0 {
		if ids {
			e.Set("return_token_ids", trueValue)
		}
		return
	}
	r := p.task.Request
	p.body.Edit(&p.stream, e, r.Scan, r.Body(), ids)
}

// fits says whether n may go on with the stream.
func (p *Resumed) fits(n *fleet.Node) bool {
	if slices.Contains(p.lost, n.ID) {
		return false
	}
	switch p.stream.Way() {
	case resume.IDs:
		return sendsIDs(n)
	case resume.Text:
		return continues(n)
	}
	return true
}

// Event implements Plan.
func (p *Resumed) Event(t *Task, e sse.Event, out []byte, at time.Time) (rest []byte, enough bool) {
	p.leave()
	v := resume.GoOn
	switch {
	case p.legs == 0:
		rest, enough = p.Plan.Event(t, e, out, at)
	case !t.Read(e, at):
		return out, false
	case e.IsDone():
		rest = append(out, e.Raw...)
	default:
		rest, v = p.stream.Later(e, out)
	}
	switch {
	case v == resume.Wrong:
		p.state = strayed
	case v == resume.Over: // the engine has no time left to report its usage
		p.state = closed
		t.credit(p.stream.Counts())
	case e.IsDone():
		p.state = closed
	case t.follows && p.stream.Lost() != resume.Possible:
		p.stream.Free()
		t.forgo()
	}
	return rest, enough || v != resume.GoOn
}

// End implements Plan.
func (p *Resumed) End(t *Task, out []byte, o relay.Outcome) (rest []byte, more bool) {
	p.leave()
	switch was := p.state; {
	case was == closed:
		p.ended(t, true)
		t.mended = o != relay.Complete
		return out, false
	case o == relay.Complete:
		p.ended(t, true)
		return out, false
	case was == strayed:
		if rest, more = p.broken(t, out); !more && !t.mended {
			p.state = given
			return rest, true // only Next can fail
		}
		return rest, more
	case was == asking, was == given, !t.brokenOff(o):
		p.ended(t, false)
		return out, false
	}
	return p.broken(t, out)
}

// ended counts a stream with further legs that has ended, well or not.
func (p *Resumed) ended(t *Task, well bool) {
	result := "complete"
	if !well {
		result = "failed"
	}
	if p.legs > 0 {
		t.planner.countResumed(result, p.how())
	}
}

// broken decides whether another node goes on with a stream that has broken off.
func (p *Resumed) broken(t *Task, out []byte) (rest []byte, more bool) {
	by, why := p.stream.How()
	if t.unseen && by != resume.End {
		by, why = resume.None, resume.Unread
	}
	r := t.Request
	switch {
	case by == resume.End:
		return p.mend(t, p.stream.Close(out))
	case by == resume.None && p.legs > 0:
		if p.state != strayed { // otherwise the stream has not ended yet
			p.ended(t, false)
		}
		return out, false
	case by == resume.None:
		t.planner.countResumed("impossible", why.String())
		return out, false
	case by != resume.Start && !p.stream.Left(r.Scan, r.Body()):
		return p.mend(t, p.stream.Cut(out))
	case len(p.lost) >= t.planner.parts.Resume.MaxNodes && p.state != strayed:
		t.planner.countResumed("impossible", "nodes")
		return out, false
	}
	if p.state != strayed {
		node, _, _ := t.Node()
		p.lost = append(p.lost, node)
	}
	t.credit(p.stream.Counts())
	return out, true
}

// mend ends a stream of which only the end was missing.
func (p *Resumed) mend(t *Task, out []byte) ([]byte, bool) {
	t.mended, p.state = true, closed
	if p.ways == resume.None {
		p.ways = resume.End
	}
	t.planner.countResumed("complete", p.how())
	return out, false
}

// Next implements Plan.
func (p *Resumed) Next(t *Task) *apierror.Error {
	if p.state == given {
		return errSeam
	}
	p.state = asking
	if !p.enter(t) {
		if t.Request.Going() {
			p.impossible(t, "crowded")
		} else if t.Request.Expired() {
			p.impossible(t, "late")
		}
		return errSeam
	}
	by, _ := p.stream.How()
	q := p.question
	q.Filter, q.Alone = p.bound.fits, true
	lacking, drop, ok := p.lacking(t, by, q)
	r := t.Request
	if !ok || p.stream.Cross(by, r.Scan, r.Body(), lacking, drop) != nil || !p.body.Make(&p.stream, r.Scan, r.Body()) {
		p.impossible(t, cmp.Or(p.stream.Lost().String(), "seam"))
		return errSeam
	}
	ways := p.ways
	p.legs++
	p.ways = max(ways, by)
	if err := t.Run(q, t.Client); err != nil {
		if err == leg.ErrDeadline && t.leg.Attempts == 0 { // no node would have been in time
			p.legs, p.ways = p.legs-1, ways
			p.impossible(t, "late")
		}
		return err
	}
	p.state = running
	return nil
}

// impossible counts a stream with which no further node was asked to go on. If one was before, End
// counts the stream.
func (p *Resumed) impossible(t *Task, why string) {
	if p.legs == 0 {
		t.planner.countResumed("impossible", why)
	}
}

var errSeam = &apierror.Error{
	Status: 502, Code: "backend_failed",
	Message: "the backend failed before the stream was complete, and no other one could go on with it",
}

const (
	detokenizeTime  = time.Second // for one answer
	detokenizeTries = 3           // nodes that are asked for a text
	detokenizeBytes = 1 << 20     // of an answer
	partTokens      = 4           // a character has no more tokens
)

// lacking returns the text of delivered tokens that the client lacks, because the engine held it
// back. A node has to be asked for that, one that the further leg's question q permits. drop is the
// number of last tokens that are not repeated.
func (p *Resumed) lacking(t *Task, by resume.By, q leg.Question) (text []byte, drop int, ok bool) {
	if by != resume.IDs || !p.stream.Lacks() {
		return nil, 0, true
	}
	for drop < partTokens {
		whole, ok := p.detokenize(t, q, drop)
		if !ok {
			return nil, 0, false
		}
		text, part, ok := p.stream.Lacking(whole)
		if !ok || !part {
			return text, drop, ok
		}
		drop++
	}
	return nil, 0, false
}

// detokenize returns the text of the answer's last tokens, without the last drop ones. Each call
// begins with another node.
func (p *Resumed) detokenize(t *Task, q leg.Question, drop int) (text []byte, ok bool) {
	r, parts := t.Request, &t.planner.parts
	model := q.Model
	if model == nil {
		model = r.Scan.Model
	}
	view, err := leg.Resolve(parts.Fleet.Load(), model)
	if err != nil {
		return nil, false
	}
	tries, first := 0, int(t.planner.tails.Add(1)%uint32(max(len(view.Nodes), 1)))
	for i := range view.Nodes {
		n := view.Nodes[(first+i)%len(view.Nodes)]
		if tries == detokenizeTries {
			break
		}
		if fine, _ := n.Eligible(time.Now()); !fine || !sendsIDs(n) || !parts.Legs.Permits(r, q, n) {
			continue
		}
		tries++
		body := append(jsonscan.AppendQuoted([]byte(`{"model":`), n.UpstreamModel(view.Name)), `,"tokens":`...)
		body = append(p.stream.Tail(body, drop), '}')
		place := answer.Memory{Limit: detokenizeBytes}
		until := r.Before(time.Now().Add(detokenizeTime))
		err := parts.Legs.Post(r, n, "/detokenize", body, until, new(relay.Abort), &place)
		if err != nil || place.Status != 200 {
			continue
		}
		if quoted, err := scan.Find(place.Body, "prompt"); err == nil && len(quoted) > 1 && quoted[0] == '"' {
			return jsonscan.AppendUnescaped(nil, quoted[1:len(quoted)-1]), true
		}
	}
	return nil, false
}

// brokenOff says whether an answer that has ended with o was broken off by its node.
func (t *Task) brokenOff(o relay.Outcome) bool {
	return (o == relay.UpstreamFailed || o == relay.IdleTimeout) && t.Request.Going()
}

// credit gives the running leg, which has broken off, the counts that its engine did not report.
func (t *Task) credit(counts usage.Counts) {
	if t.leg != nil && !t.leg.Reading.Usage.HasCompletion {
		t.leg.Reading.Usage = counts
	}
}
