package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/cognitora/dataplane/internal/lifecycle"
	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/internal/takeover"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/health"
)

// settleLimit is how long a router that takes over waits for silent nodes after it could answer
// requests.
const settleLimit = 5 * time.Second

const (
	pollReady = 20 * time.Millisecond
	pollQuiet = 50 * time.Millisecond
)

// handover is the state of this router's takeovers.
type handover struct {
	claim *takeover.Claim // nil: this router took over from no router
	at    *net.UnixListener
	ready chan struct{} // closed when another process serves

	taken bool // the process taker has taken over
	taker int

	retired atomic.Bool  // another process serves the admin port
	admins  atomic.Int64 // connections to this process's admin port

	stop  context.CancelFunc // ends the offer
	ended chan struct{}      // closed at the end of the offer; nil: nothing was offered
}

// close ends what is left of the takeovers.
func (h *handover) close() {
	if h.at != nil {
		h.at.Close()
	}
	if h.claim != nil {
		h.claim.Close()
	}
}

// SocketByDefault sets takeover.socket if it is not configured. A default socket that cannot be
// made is only a warning.
func (c *Config) SocketByDefault() {
	if c.Takeover.Socket == "" {
		c.Takeover.Socket = cmp.Or(takeover.DefaultSocket("cgn-router", c.Router.Listen, os.Getenv), "off")
		c.Takeover.byDefault = true
	}
}

func (t *TakeoverConfig) off() bool { return t.Socket == "" || t.Socket == "off" }

// claim asks the running router for its sockets, if there is one.
func (r *Router) claim() (err error) {
	t := &r.config.Takeover
	if !t.Start {
		return nil
	}
	if t.off() {
		return errors.New("takeover.socket: none, so that the running router cannot be found; name one, which every " +
			"start has to name then")
	}
	r.handover.claim, err = takeover.Ask(context.Background(), t.Socket)
	if errors.Is(err, takeover.ErrNobody) {
		r.log.Info("no router to take over from, this one starts by itself", "socket", t.Socket, "looked_as_uid",
			os.Getuid())
		return nil
	}
	if err != nil {
		return fmt.Errorf("--takeover: %w", err)
	}
	r.log.Info("taking over", "from", r.handover.claim.PID, "version", r.handover.claim.Version)
	return nil
}

// listen takes over the listener of a setting, or opens a new one.
func (r *Router) listen(setting, flag, address string) (net.Listener, error) {
	if c := r.handover.claim; c != nil {
		if l := c.Take(setting, address); l != nil {
			return l, nil
		}
	}
	return listen.OpenFor(setting, flag, address)
}

// openTakeover opens the socket through which another router can take over.
func (r *Router) openTakeover() (err error) {
	t, h := &r.config.Takeover, &r.handover
	if t.off() {
		return nil
	}
	if h.claim != nil {
		h.at, _ = h.claim.Take("takeover.socket", t.Socket).(*net.UnixListener)
	}
	if h.at == nil {
		h.at, err = takeover.Open(t.Socket)
	}
	if err != nil && t.byDefault {
		r.log.Warn("no other router can take over from this one; set takeover.socket", "error", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("takeover.socket: %w", err)
	}
	return nil
}

// offer lets another router take over until ctx ends.
func (r *Router) offer(g *lifecycle.Group) {
	h := &r.handover
	h.ready = make(chan struct{})
	if h.at == nil {
		return
	}
	o := takeover.New(h.at, takeover.Options{
		Sockets: []takeover.Socket{
			{Setting: "router.listen", Address: r.config.Router.Listen, Listener: r.ports.serving},
			{Setting: "router.admin", Address: r.config.Router.Admin, Listener: r.ports.admin},
			{Setting: "takeover.socket", Address: r.config.Takeover.Socket, Listener: h.at},
		},
		Auth: r.config.identities(), Logger: r.log,
		Count: func(outcome string) { r.metrics.Takeovers.WithLabelValues(outcome).Inc() },
	})
	h.at, h.ended = nil, make(chan struct{}) // Serve closes h.ended
	ctx, stop := context.WithCancel(g.Context())
	h.stop = stop
	g.Go("takeover", func(context.Context) error {
		defer close(h.ended)
		if h.taker, h.taken = o.Serve(ctx); h.taken {
			close(h.ready)
		}
		return nil
	})
}

// settle ends the offer, so that no other process touches the listeners. taken says that another
// process has the listeners.
func (h *handover) settle() (taken bool) {
	if h.ended == nil {
		return false
	}
	h.stop()
	<-h.ended
	return h.taken
}

// await returns once this router would answer as well as the router that it takes over from. That
// is so once every present node was asked, or settleLimit is over. await returns at once if the
// other router has ended. await's error says why this router cannot answer; the other router then
// continues.
func (r *Router) await(ctx, drain context.Context) error {
	limit, began := r.config.Takeover.Timeout.Std(), time.Now()
	tick := time.NewTicker(pollReady)
	defer tick.Stop()
	var ready time.Time
	for {
		now := time.Now()
		ok, detail := r.gateway.Ready(now)
		switch {
		case !ok:
			ready = time.Time{}
		case ready.IsZero():
			ready = now
		}
		if ok && (settled(r.known.fleet.Load()) || now.Sub(ready) >= settleLimit) {
			return nil
		}
		if now.Sub(began) >= limit {
			return fmt.Errorf("not ready within takeover.timeout (%s): %s; the running router goes on, restart it "+
				"instead if that is wanted", limit, cmp.Or(detail, "not every node was asked"))
		}
		select {
		case <-tick.C:
		case <-r.handover.claim.Gone():
			r.log.Warn("the router to take over from has ended, this one serves", "process", r.handover.claim.PID,
				"ready", ok)
			return nil
		case <-drain.Done():
			return errors.New("stopped before it was ready; the running router goes on")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// settled says whether every node was checked, or has announced itself.
func settled(s *fleet.Snapshot) bool {
	unproven := func(n *fleet.Node) bool { return n.Health.State() == health.Unproven }
	return !s.Partial && !slices.ContainsFunc(s.Nodes, unproven)
}

// serves announces that this router accepts connections.
func (r *Router) serves() {
	if c := r.handover.claim; c != nil {
		c.Serving()
		r.metrics.Takeovers.WithLabelValues("taken").Inc()
		r.log.Info("taken over", "from", c.PID)
		if c.Auth != "" && c.Auth != noIdentities && r.config.identities() == noIdentities {
			r.log.Warn("the router before asked clients who they are, and this one does not; set its [auth] again, "+
				"unless that is meant", "asked_for", c.Auth)
		}
	}
	r.notify("READY=1")
}

// notify tells the service manager, if there is one, the state of the service: READY=1 or
// MAINPID=NUMBER.
func (r *Router) notify(state string) {
	if _, err := daemon.SdNotify(false, state); err != nil {
		r.log.Warn("the service manager is not told", "state", state, "error", err)
	}
}

// count is the ConnState of the admin server.
func (h *handover) count(_ net.Conn, s http.ConnState) {
	switch s {
	case http.StateNew:
		h.admins.Add(1)
	case http.StateClosed, http.StateHijacked:
		h.admins.Add(-1)
	}
}

// closing makes answers of the admin port close their connection once another process serves it.
func (h *handover) closing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if h.retired.Load() {
			w.Header().Set("Connection", "close")
		}
		next.ServeHTTP(w, req)
	})
}

// retire ends a router whose addresses another process serves. retire accepts nothing more, answers
// further requests on its connections and closes each connection after the answer. retire cuts
// nothing that ends within drain_timeout.
func (r *Router) retire(force context.Context) {
	delay, timeout := r.config.Router.DrainDelay.Std(), r.config.Router.DrainTimeout.Std()
	if pid := r.handover.taker; pid != 0 {
		r.notify(fmt.Sprintf("MAINPID=%d", pid))
	}
	r.log.Info("another router has taken over, running requests have drain_timeout to end", "by", r.handover.taker,
		"drain_timeout", timeout.String())
	end := time.Now().Add(delay + max(timeout, time.Millisecond))
	until := func(run func(context.Context) error) func(context.Context) error {
		return func(ctx context.Context) error {
			ctx, cancel := context.WithDeadline(ctx, end)
			defer cancel()
			return run(ctx)
		}
	}
	r.acted(fmt.Sprint("process ", r.handover.taker), "taken over", "", nil)
	lifecycle.Drain(force, r.log,
		lifecycle.Step{Name: "stop accepting", Run: func(context.Context) error {
			r.handover.retired.Store(true)
			return errors.Join(r.gateway.Retire(), r.ports.admin.Close())
		}},
		lifecycle.Step{Name: "answer on open connections",
			Run: until(func(ctx context.Context) error { return r.quiet(ctx, delay) })},
		lifecycle.Step{Name: "finish running requests", Run: until(r.gateway.Shutdown)},
		lifecycle.Step{Name: "close the admin port", Limit: time.Second, Run: r.admin.Shutdown},
	)
}

// quiet waits until no request has run for d, or no connection is left. In that time clients close
// the connections whose answers asked for closing. Clients whose answer began earlier have time for
// one more request. The first look comes a moment later, because a connection may be in the middle
// of being accepted.
func (r *Router) quiet(ctx context.Context, d time.Duration) error {
	tick := time.NewTicker(pollQuiet)
	defer tick.Stop()
	for since := time.Now(); ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if r.gate.InFlight() > 0 {
			since = time.Now()
		}
		if time.Since(since) >= d || r.gateway.Connections() == 0 && r.handover.admins.Load() == 0 {
			return nil
		}
	}
}
