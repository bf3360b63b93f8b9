package dispatch

import (
	"strings"
	"sync"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/router/admission"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/holdings"
	"github.com/cognitora/dataplane/router/patience"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/scan"
)

// Job is one request on its way through the router, with all the scratch memory that it
// needs. Take one with Dispatcher.Job, fill the request fields, call Do, relay what it
// brought, and give it back with Finish. One goroutine works on a job; Cancel may come from
// another.
type Job struct {
	// The request. Byte slices may alias the client's buffers, which must stay as they
	// are until Finish.
	API      scan.API
	Method   string
	Path     string // with query
	Body     []byte
	Scan     scan.Request
	Header   []byte // forwardable header lines
	Auth     []byte // the client's Authorization where it may be forwarded, else nil
	Session  []byte // x-cgn-session-id
	Pin      []byte // x-cgn-node: this node or none
	Stored   bool   // Pin is the node that stored what the request is about
	Received time.Time
	Deadline time.Time // the client's own; zero: none
	OnPick   func()    // called once, before anything is sent to a node

	// Reply takes an answer over and closes it in the end, or returns an error if the
	// answer's beginning could not be read and nothing has reached the client.
	Reply func(*relay.Exchange) error

	// What came of it.
	Attempts int
	Blocks   int           // full blocks of the prompt
	TTFT     time.Duration // until the first sign of the answer: a stream's first event
	Usage    usage.Counts

	d      *Dispatcher
	model  *servedModel
	permit admission.Permit
	capped bool // the last look found a node whose pool is full
	slots  [2]attempt
	kept   *attempt // an answer that is passed on if nobody gives a better one
	wait   patience.Attempt
	tried  []*member
	failed []failure // nobody has answered better yet
	cause  string    // how the last attempt that failed did, in a word
	spare  int       // further nodes that may be asked
	had    int       // nodes that may have had the request and failed
	resets []reset   // of nodes that failed so
	paid   bool      // the retry budget has been asked for the next attempt

	mu      sync.Mutex
	cur     *attempt
	waiting bool   // for the first sign of an answer, so that another node may be asked
	given   reason // why the attempt was given up
	ended   reason // why the whole job was
	looking *lookup

	chain      prefix.Chain
	text       []byte // of the chain, from block from on
	from       int
	joined     []byte // text, where it had to be put together
	way        uint64 // what the Memo's hashes are mixed with
	step       step   // scratch
	remembered bool   // the Memo has what the scan found
	exact      bool   // the chain is of the model's own tokens
	ids        []uint32
	turn       uint64 // see tokens.Result
	refs       []prefix.Ref
	matched    []int32 // blocks that each node of the model is believed to hold
	coming     []int32 // with those that it computes for other requests
	reach      []holdings.Reach
	query      holdings.Query
	cands      []policy.Candidate
	able       []int32
	request    relay.Request
	edits      []scan.Edit
	asks       bool // stream_options.include_usage was spliced in

	stream stream
}

// reason is why an attempt, or the job, is given up from outside.
type reason uint8

const (
	reasonNone reason = iota
	reasonOverdue
	reasonStalled
	reasonLeft     // the client is gone
	reasonShutdown // the router stops
)

var jobs = sync.Pool{New: func() any { return new(Job) }}

// Job returns a cleared job.
func (d *Dispatcher) Job() *Job {
	j := jobs.Get().(*Job)
	j.d = d
	return j
}

// recycle lets another request have the job.
func (j *Job) recycle() {
	j.reset()
	jobs.Put(j)
}

// reset clears what must not outlive a request and keeps the scratch memory.
func (j *Job) reset() {
	j.Scan.Reset()
	j.chain.Reset(prefix.Digest{}, nil, nil)
	j.forgetText()
	j.forgetTokens()
	wipe(j.tried)
	wipe(j.failed)
	wipe(j.resets)
	j.resets, j.had = j.resets[:0], 0
	wipe(j.edits)
	wipe(j.request.Body)
	j.API, j.Method, j.Path, j.Body, j.Stored = 0, "", "", nil, false
	j.Header, j.Auth, j.Session, j.Pin = j.Header[:0], nil, nil, nil
	j.Received, j.Deadline, j.OnPick, j.Reply = time.Time{}, time.Time{}, nil, nil
	j.Attempts, j.Blocks, j.TTFT, j.Usage = 0, 0, 0, usage.Counts{}
	j.capped, j.cause = false, ""
	j.model, j.permit, j.kept, j.spare, j.paid = nil, admission.Permit{}, nil, 0, false
	j.tried, j.failed, j.edits, j.asks = j.tried[:0], j.failed[:0], j.edits[:0], false
	j.request = relay.Request{Body: j.request.Body[:0]}
	j.stream, j.wait = stream{}, patience.Attempt{}
	j.mu.Lock()
	j.cur, j.waiting, j.given, j.ended = nil, false, reasonNone, reasonNone
	j.mu.Unlock()
}

// wipe clears all of a slice's memory: behind its end may be what an earlier attempt has left.
func wipe[T any](s []T) { clear(s[:cap(s)]) }

// Detach lets go of the client's buffers, for an answer that goes on without them: from now
// on only what Done and Finish need is there.
func (j *Job) Detach() {
	if j.Method == "POST" {
		j.Method = "POST" // not the client's bytes
	} else {
		j.Method = strings.Clone(j.Method)
	}
	j.Path, j.Body, j.Auth, j.Session, j.Pin = "", nil, nil, nil, nil
	wipe(j.request.Body)
	j.request = relay.Request{Body: j.request.Body[:0]}
	wipe(j.edits)
	j.edits = j.edits[:0]
}

// Cancel gives the job up because the client has left. It may be called from any goroutine
// until Finish.
func (j *Job) Cancel() { j.end(reasonLeft) }

// Shutdown gives the job up because the router stops.
func (j *Job) Shutdown() { j.end(reasonShutdown) }

func (j *Job) end(r reason) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.ended != reasonNone {
		return
	}
	j.ended = r
	if j.looking != nil {
		j.looking.stop()
	}
	switch {
	case j.cur == nil:
	case r == reasonShutdown:
		j.cur.abort.Stop()
	default:
		j.cur.abort.Cancel()
	}
}

// GiveUp ends the attempt under way if another node can be asked. It is called by the
// patience tracker, with its lock held.
func (j *Job) GiveUp(v patience.Verdict) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.waiting || j.ended != reasonNone || j.given != reasonNone || j.spare == 0 || j.suspect() > 0 || !j.others(time.Now()) {
		return false
	}
	if !j.d.budget.Allow() {
		return false
	}
	j.paid, j.given = true, reasonOverdue
	if v == patience.Stalled {
		j.given = reasonStalled
	}
	j.cur.abort.Cancel()
	return true
}

// Prefilled is called by the patience tracker, with its lock held, when the prompt of a request
// that is not streamed should be computed: the node holds it from now on.
func (j *Job) Prefilled() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.cur != nil && j.cur.recorded {
		j.d.index.Begun(&j.chain, j.cur.ref)
	}
}

// others tells whether a node that has not been asked could take the request now.
func (j *Job) others(now time.Time) bool {
	for _, n := range j.model.nodes {
		if j.excludes(n) || n.Suspect() || n.Full() {
			continue
		}
		if ok, _ := n.Eligible(now); ok {
			return true
		}
	}
	return false
}

// crowded tells whether the last answer is the error of a node that is not well, and the others that are were not asked
// because they are full.
func (j *Job) crowded(now time.Time) bool {
	if j.kept == nil || j.kept.node.State() == fleet.Healthy || j.others(now) {
		return false
	}
	for _, n := range j.model.nodes {
		if ok, _ := n.Eligible(now); ok && !j.excludes(n) && !n.Suspect() {
			return true
		}
	}
	return false
}

// arm makes a the attempt that Cancel and GiveUp end; false when the job has ended.
func (j *Job) arm(a *attempt) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.cur, j.given = a, reasonNone
	j.waiting = j.ended == reasonNone
	return j.waiting
}

// pick says, once, that something is about to be sent.
func (j *Job) pick() {
	if j.OnPick != nil {
		j.OnPick()
		j.OnPick = nil
	}
}

// search makes l, or nothing, the search that the job's end stops; false when the job has ended.
func (j *Job) search(l *lookup) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.looking = l
	if j.ended != reasonNone {
		j.looking = nil
	}
	return j.ended == reasonNone
}

// gone is the error of a job that was ended from outside.
func (j *Job) gone() *apierror.Error {
	if j.why() == reasonShutdown {
		return errShutdown
	}
	return ErrClientLeft
}

// claim ends the time in which another node may be asked instead, unless the attempt has been
// given up already: what it brought is the job's answer from then on.
func (j *Job) claim() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.given != reasonNone || j.ended != reasonNone {
		return false
	}
	j.waiting = false
	return true
}

// disarm ends that time in either case.
func (j *Job) disarm() {
	j.mu.Lock()
	j.waiting = false
	j.mu.Unlock()
}

// why is the reason for which the attempt under way was given up.
func (j *Job) why() reason {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.ended != reasonNone {
		return j.ended
	}
	return j.given
}

// RendezvousKey identifies the conversation that the request belongs to: its session id,
// or else the digest of the last full block of the first user turn, so that one shared
// system prompt does not tie every conversation to one node. A turn without a full block
// of its own is told apart by a hash of its text. It is the same in every router.
func (j *Job) RendezvousKey() uint64 {
	if len(j.Session) > 0 {
		return xxhash.Sum64(j.Session)
	}
	if j.turn != 0 {
		return j.turn
	}
	last := min(j.Scan.FirstTurn/prefix.BlockBytes, j.chain.Blocks()) - 1
	if j.Scan.ShortTurn > 0 && last*prefix.BlockBytes < j.Scan.FirstTurn-j.Scan.ShortTurn {
		if last < 0 {
			return j.Scan.TurnHash
		}
		return j.chain.Key(last) ^ j.Scan.TurnHash
	}
	if last < 0 {
		last = j.chain.Blocks() - 1
	}
	if last < 0 {
		return xxhash.Sum64(j.Scan.Text)
	}
	return j.chain.Key(last)
}
