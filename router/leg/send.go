package leg

import (
	"errors"
	"fmt"
	"time"

	"github.com/cognitora/dataplane/internal/jsonscan"
	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/router/answer"
	"github.com/cognitora/dataplane/router/connector"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
)

// outgoing is the request to a node.
type outgoing struct {
	request   relay.Request
	edits     scan.Edits
	more      []byte // header lines for an agent
	asksUsage bool   // the router added stream_options.include_usage
}

// prepare makes the request for the attempt's node. prepare sets the node's model name and asks for
// a usage report at the end of a stream.
func (l *Leg) prepare(a *attempt) (*relay.Request, error) {
	asked, o := l.Request, &l.out
	o.edits.Reset(asked.Scan, asked.Body())
	name := a.member.node.UpstreamModel(l.model.name)
	if len(asked.Scan.Model) > 0 && string(asked.Scan.Model) != name {
		o.edits.Model(name)
	}
	o.asksUsage = l.Work == Answer && (l.d.o.Feedback || asked.Counted) && asked.Scan.Stream &&
		!asked.Scan.IncludeUsage &&
		(asked.API == scan.Chat || asked.API == scan.Completions) && !a.member.node.rejectsStreamOptions.Load()
	if o.asksUsage {
		o.edits.IncludeUsage()
	}
	if asked.Scan.Nvext() != (scan.Span{}) {
		l.editNvext()
	}
	l.apart(a.member.node.Node)
	if at := asked.Scan.Transfer(); connector.Reserved(asked.Body()[at.Start:at.End]) {
		o.edits.Remove("kv_transfer_params")
	}
	if asked.Scan.Priority() && !asked.Who.Prefers() {
		o.edits.Remove("priority")
	}
	if salt := a.member.node.salt.Load(); salt != 0 &&
		(asked.API == scan.Chat || asked.API == scan.Completions || asked.API == scan.Responses) {
		o.edits.Set("cache_salt", l.salted(salt))
	}
	if l.Edit != nil {
		l.Edit(&o.edits)
	}
	if l.EditFor != nil {
		l.EditFor(&o.edits, a.member.node.Node)
	}
	if a.split {
		l.hand.with.Decode(&o.edits, &l.hand.data)
	}
	if a.frees {
		l.hand.with.(connector.Freer).Free(&o.edits)
	}
	o.request.Unrepeatable = a.split
	r := &o.request
	r.Method, r.Path, r.Header, r.More = asked.Method, asked.Path, asked.Header, a.member.rank.Header
	if end := l.deadline(); !end.IsZero() && a.member.node.Source == fleet.Etcd {
		o.more = relay.AppendDeadline(append(o.more[:0], r.More...), end, time.Now())
		r.More = o.more
	}
	if l.Bond == Stored {
		r.More = nil // the rank that made the response has no part in reading it
	}
	r.More = a.span.AppendHeader(r.More[:len(r.More):len(r.More)])
	address(r, a.member.node.Node, asked.Auth, &a.abort)
	r.Once = r.Once || a.split && l.hand.fails > 0 // the last connection may have been stale
	if r.Body = o.edits.Segments(r.Body[:0]); o.edits.Err() != nil {
		return nil, fmt.Errorf("%w: %w", errUnfit, o.edits.Err())
	}
	return r, nil
}

// editNvext takes the body's nvext out, unless engines shall get it. Engines know its cache_salt as
// a member of the root only.
func (l *Leg) editNvext() {
	e, x := &l.out.edits, l.Request.Nvext
	salted := x != nil && x.CacheSalt != nil
	if !l.d.o.PassNvext || salted && l.Request.Salts != nil {
		e.Remove("nvext")
	}
	if salted {
		e.Set("cache_salt", jsonscan.AppendQuoted(nil, x.CacheSalt))
	}
}

// errUnfit is returned by prepare when the leg's edit of the body fails.
var errUnfit = errors.New("the body cannot be changed")

// address directs r to n. address uses the client's key, auth, if the router has none for n.
// address uses a new connection if idle connections would hold up the node's other clients.
func address(r *relay.Request, n *fleet.Node, auth []byte, abort *relay.Abort) {
	r.ForwardAuthorization = nil
	if n.Pool.Target().Authorization == "" {
		r.ForwardAuthorization = auth
	}
	r.Abort, r.Once = abort, holdsThreads(n)
}

// Ask sends a GET for path to n and to no other node, with the request's head. place gets the
// answer, whatever its status. abort or the end of the request cancels the exchange. Ask is a leg
// without a reservation: it does not count as load on n or as evidence about its health. Ask is
// safe for concurrent use.
func (d *Dispatcher) Ask(
	r *request.Request, n *fleet.Node, path string, until time.Time, abort *relay.Abort, place answer.Place,
) error {
	return d.errand(r, n, relay.Request{Method: "GET", Path: path}, until, abort, place)
}

// Post is Ask with a POST of body, for work that costs n little.
func (d *Dispatcher) Post(
	r *request.Request, n *fleet.Node, path string, body []byte, until time.Time, abort *relay.Abort,
	place answer.Place,
) error {
	return d.errand(r, n, relay.Request{Method: "POST", Path: path, Body: [][]byte{body}}, until, abort, place)
}

func (d *Dispatcher) errand(
	r *request.Request, n *fleet.Node, q relay.Request, until time.Time, abort *relay.Abort, place answer.Place,
) error {
	if !r.Life.Enter(abort) {
		return relay.ErrCanceled
	}
	defer r.Life.Leave(abort)
	q.Header, q.More = r.Header, r.Trace.AppendHeader(nil)
	address(&q, n, r.Auth, abort)
	ex, err := n.Pool.Send(&q, until)
	if err != nil {
		return err
	}
	if err = ex.ReadHead(until); err == nil {
		ex.SetReadDeadline(until)
		err = place.Take(ex, unread{})
	}
	if err != nil {
		ex.Close()
	}
	return err
}

// unread is a Source that ignores the answer.
type unread struct{}

func (unread) Event(sse.Event, time.Time) bool { return true }
func (unread) Piece([]byte, bool)              {}
