package takeover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/internal/listen"
)

var noDeadline time.Time

// Outcomes of requests for the sockets, for Options.Count.
const (
	Refused   = "refused"   // another user, another protocol, or another process was first
	Abandoned = "abandoned" // the new process ended before it was ready
)

// Options are the settings of an Offer. All of them but Auth must be set.
type Options struct {
	Sockets []Socket
	Auth    string // how this process asks clients who they are
	Logger  *slog.Logger
	Count   func(outcome string)
}

// Offer offers the sockets of a process to the process that will replace it.
type Offer struct {
	Options
	at *net.UnixListener

	mu     sync.Mutex
	ended  bool // it no longer listens
	conns  map[*net.UnixConn]struct{}
	held   bool     // a process has got the sockets
	taker  int      // id of that process; 0 if it is in another container and has none here
	served *message // its message that it serves
	done   context.CancelFunc
}

// Open listens at path for the process that will replace this one. Open makes the directory of path
// if it is missing.
func Open(path string) (*net.UnixListener, error) {
	if err := prepare(path); err != nil {
		return nil, err
	}
	return listen.OpenUnix(path, 0o600, -1)
}

// New offers o.Sockets to clients of at. o.Sockets must include at if at is to be handed over too.
func New(at *net.UnixListener, o Options) *Offer {
	return &Offer{Options: o, at: at, conns: map[*net.UnixConn]struct{}{}}
}

// Serve offers the sockets until ctx ends, or until another process serves. taken is true in the
// second case. taker is that process's id, or 0 if it has none in this container. Nobody may close
// the sockets while Serve runs. Afterwards, closing the sockets removes the files only of Unix
// sockets that no other process has taken. Serve closes the listener of the offer.
func (o *Offer) Serve(ctx context.Context) (taker int, taken bool) {
	ctx, o.done = context.WithCancel(ctx)
	defer o.done()
	var asking sync.WaitGroup
	asking.Go(func() {
		<-ctx.Done()
		o.end()
	})
	for {
		c, err := o.at.AcceptUnix()
		if ctx.Err() != nil {
			if err == nil {
				c.Close()
			}
			break
		}
		if err != nil {
			o.Logger.Warn("nobody can take over for a second", "error", err)
			await.For(ctx, time.Second)
			continue
		}
		if o.add(c) {
			asking.Go(func() {
				defer o.remove(c)
				o.answer(c)
			})
		}
	}
	asking.Wait()
	defer o.at.Close()
	if o.served == nil {
		return 0, false
	}
	for _, s := range o.Sockets {
		unlink(s.Listener, !slices.Contains(o.served.Sockets, resource{s.Setting, s.Address}))
	}
	return o.taker, true
}

// end stops listening. A process that already has the sockets sees its connection close, takes this
// process for ended, and serves.
func (o *Offer) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	o.at.SetDeadline(time.Unix(1, 0))
	for c := range o.conns {
		c.SetDeadline(time.Unix(1, 0))
	}
}

func (o *Offer) add(c *net.UnixConn) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended || len(o.conns) >= maxAsking {
		c.Close()
		return false
	}
	o.conns[c] = struct{}{}
	return true
}

func (o *Offer) remove(c *net.UnixConn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.conns, c)
	c.Close()
}

// answer handles one connection.
func (o *Offer) answer(c *net.UnixConn) {
	peer, err := o.greet(c)
	if err != nil {
		o.Count(Refused)
		o.Logger.Warn("a takeover is refused", "process", peer.PID, "error", err)
		_ = send(c, message{Kind: kindRefused, Reason: err.Error()}, nil) // on failure the other process has gone
		return
	}
	o.Logger.Info("another process has the listening sockets, this one serves until that is ready", "process", peer.PID)
	m, err := o.hand(c)
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case err == nil:
		o.served = &m
		o.done()
	case o.ended: // the other process takes this one for ended and owns the files
	default:
		o.held = false
		o.keep(true)
		o.Count(Abandoned)
		o.Logger.Warn("the process that was to take over has ended before it was ready, this one goes on", "process",
			peer.PID, "error", err)
	}
}

// greet checks the process that asks. Without an error it may have the sockets.
func (o *Offer) greet(c *net.UnixConn) (listen.Peer, error) {
	peer, err := sameUser(c)
	if err != nil {
		return peer, err
	}
	if !o.limit(c, answerLimit) {
		return peer, errStopping
	}
	m, fds, err := receive(c)
	listen.CloseAll(fds)
	switch {
	case err != nil:
		return peer, err
	case m.Protocol != Protocol:
		return peer, mismatch(m)
	case m.Kind != kindHello || len(fds) > 0:
		return peer, fmt.Errorf("it begins with %s", m.Kind)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return peer, errStopping
	}
	if o.held {
		return peer, fmt.Errorf("process %d is taking over already; wait until it is ready or has given up", o.taker)
	}
	o.held, o.taker = true, int(peer.PID)
	o.keep(false)
	return peer, nil
}

var errStopping = errors.New("this process is stopping")

// hand sends the sockets and waits without a time limit until the other process serves. A time
// limit is not needed: that process gives up by itself, and a stopped one only occupies the place.
func (o *Offer) hand(c *net.UnixConn) (message, error) {
	offer := message{Kind: kindOffer, PID: os.Getpid(), Auth: o.Auth}
	for _, s := range o.Sockets {
		offer.Sockets = append(offer.Sockets, resource{s.Setting, s.Address})
	}
	if err := send(c, offer, o.Sockets); err != nil {
		return offer, err
	}
	if !o.limit(c, 0) {
		return offer, errStopping
	}
	m, fds, err := receive(c)
	listen.CloseAll(fds)
	if err == nil && m.Kind != kindServing {
		err = fmt.Errorf("it says %s", m.Kind)
	}
	return m, err
}

// limit sets the time limit d for a connection; 0: none. limit returns false after end.
func (o *Offer) limit(c *net.UnixConn, d time.Duration) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		return false
	}
	end := noDeadline
	if d > 0 {
		end = time.Now().Add(d)
	}
	c.SetDeadline(end)
	return true
}

// keep sets whether closing the listeners removes the files of Unix sockets.
func (o *Offer) keep(remove bool) {
	for _, s := range o.Sockets {
		unlink(s.Listener, remove)
	}
}
