package gateway

import (
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/internal/race"
	"github.com/cognitora/dataplane/router/auth"
	"github.com/cognitora/dataplane/router/keys"
	"github.com/cognitora/dataplane/router/metrics"
)

// refusing returns a function that takes a request with this key and refuses it, as the server does
// for one connection.
func refusing(t testing.TB, key string) func() {
	conn, peer := net.Pipe()
	t.Cleanup(func() { conn.Close(); peer.Close() })
	set := new(keys.Set)
	if err := set.Put(nil); err != nil {
		t.Fatal(err)
	}
	g := New(Parts{Metrics: metrics.New(), Auth: &auth.Door{Keys: set}, Logger: slog.New(slog.DiscardHandler)},
		Limits{MaxBody: 1 << 20, MaxBodyTotal: 4 << 20, MaxHeader: 16 << 10, BodyTimeout: time.Minute}, false)
	ctx := new(fasthttp.RequestCtx)
	ctx.Init2(&plain{Conn: conn, bodies: &g.bodies, parker: &g.parker}, nil, false)
	return func() {
		h := &ctx.Request.Header
		h.SetMethod(fasthttp.MethodPost)
		h.SetRequestURI("/v1/chat/completions")
		h.Set("Authorization", key)
		g.headRead(h)
		g.handle(ctx)
		if ctx.Response.StatusCode() != fasthttp.StatusUnauthorized || len(ctx.Response.Body()) < 100 {
			t.Fatalf("%d: %s", ctx.Response.StatusCode(), ctx.Response.Body())
		}
		ctx.Request.Reset()
		ctx.Response.Reset()
		ctx.ResetUserValues()
	}
}

// keysRefused are the headers of requests without an identity.
func keysRefused() map[string]string {
	unknown, _ := keys.Generate()
	return map[string]string{"not_a_key": "Bearer sk-proj-0123456789abcdef", "unknown": "Bearer " + unknown}
}

// TestRefusalLeavesLittleGarbage bounds what a flood of refused requests makes the collector do.
func TestRefusalLeavesLittleGarbage(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector allocates")
	}
	for what, key := range keysRefused() {
		if n := testing.AllocsPerRun(500, refusing(t, key)); n > 3 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
}

func BenchmarkRefuse(b *testing.B) {
	for what, key := range keysRefused() {
		b.Run(what, func(b *testing.B) {
			refuse := refusing(b, key)
			b.ReportAllocs()
			for b.Loop() {
				refuse()
			}
		})
	}
}
