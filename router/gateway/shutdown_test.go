package gateway

import (
	"context"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/plan"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/trust"
)

// anybody is a client that may ask and list.
var anybody = &trust.Principal{Scopes: trust.Inference | trust.Models}

// bare is a gateway without nodes.
func bare(t *testing.T) *Gateway {
	t.Helper()
	w, err := relay.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	p := Parts{Metrics: metrics.New(), Watcher: w, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
	legs := leg.New(leg.Parts{Metrics: p.Metrics, Logger: p.Logger}, leg.Options{})
	p.Plans = plan.New(plan.Parts{Legs: legs, Metrics: p.Metrics, Logger: p.Logger})
	return New(p, Limits{
		MaxBody: 1 << 20, MaxBodyTotal: 4 << 20, MaxHeader: 16 << 10, MaxConnections: 8, MaxStreams: 8,
		HeaderTimeout: time.Minute, BodyTimeout: time.Minute, KeepAlive: time.Minute, SlowReader: time.Minute,
	}, false)
}

// contextAt is a request's context on a connection of g.
func contextAt(t *testing.T, g *Gateway) *fasthttp.RequestCtx {
	t.Helper()
	l := listen(t)
	defer l.Close()
	peer, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { peer.Close() })
	accepted, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	conn := &plain{Conn: accepted, bodies: &g.bodies, parker: &g.parker}
	conn.Body.Conn = conn
	t.Cleanup(func() { conn.Close() })
	ctx := new(fasthttp.RequestCtx)
	ctx.Init2(conn, nil, false)
	return ctx
}

func waitFor(t testing.TB, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatal("not there in a minute")
		}
	}
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestShutdownBeforeServe checks that a server does not serve if its drain came before its start.
func TestShutdownBeforeServe(t *testing.T) {
	g, l := bare(t), listen(t)
	if err := g.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- g.Serve(l, nil) }()
	select {
	case err := <-served:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		l.Close()
		t.Fatal("it serves after its end")
	}
	if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
		c.Close()
		t.Error("it still accepts")
	}
}

// TestShutdownWhileServing checks that Shutdown ends Serve. Shutdown waits for connections in a
// request no longer than ctx and lastWords.
func TestShutdownWhileServing(t *testing.T) {
	g, l := bare(t), listen(t)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l, nil) }()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write([]byte("POST /v1/messages HTTP/1.1\r\nHost: x\r\n")); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return g.Connections() == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := g.Shutdown(ctx); err != context.Canceled {
		t.Error(err)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestPickAfterShutdown checks a request that was still being read when the shutdown ended the
// running requests. The request ends as soon as it begins to run.
func TestPickAfterShutdown(t *testing.T) {
	g := bare(t)
	ctx := contextAt(t, g)
	c := g.begin(ctx, scan.Chat, anybody, nil)
	g.port.over.Store(true)
	c.onSend()
	if e := c.task.Failure(nil); e.Code != "shutting_down" {
		t.Errorf("it goes on: %v", e)
	}
	c.refuse(errBug)
}
