package gateway

import (
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/residue"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/router/scan"
)

// TestBugsInFollowingAnAnswer checks that a bug is reported. The bug costs neither the answer nor
// the resources of the call.
func TestBugsInFollowingAnAnswer(t *testing.T) {
	g := bare(t)
	c := g.begin(contextAt(t, g), scan.Chat, anybody, nil)
	c.streaming = g.streams.take(1)
	g.live.add(c)
	for range 2 { // no node exists that could send an event
		e := sse.Event{Data: []byte("{}"), Raw: []byte("data: {}\n\n")}
		if b, enough := c.Event(e, nil, time.Now()); string(b) != string(e.Raw) || enough {
			t.Errorf("the client gets %q for the event, and that is enough: %v", b, enough)
		}
	}
	b, more := c.End([]byte("before "), relay.UpstreamFailed, errors.New("broken"))
	if !strings.HasPrefix(string(b), "before data: {\"error\"") || more {
		t.Errorf("the stream ends with %q, and more comes: %v", b, more)
	}
	panics(t, g, 1)
	g.metrics.Requests = nil // the access log cannot be written
	c.Done(relay.Complete, 0, nil)
	panics(t, g, 2)
	if n := g.Streams(); n != 0 {
		t.Errorf("%d streams left", n)
	}
	g.live.each(func(*call) { t.Error("the call lives on") })
}

func panics(t *testing.T, g *Gateway, want int) {
	t.Helper()
	if !strings.Contains(metricsPage(g), fmt.Sprintf("\ncgn_router_panics_total %d\n", want)) {
		t.Errorf("not %d panics are counted", want)
	}
}

// metricsPage returns the text of /metrics.
func metricsPage(g *Gateway) string {
	page := httptest.NewRecorder()
	g.metrics.Set.Handler().ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	return page.Body.String()
}

// TestBugInTheEndOfARefusal checks that a bug ends neither the process nor the next call.
func TestBugInTheEndOfARefusal(t *testing.T) {
	g := bare(t)
	ctx := contextAt(t, g)
	g.metrics.Requests = nil
	g.infer(ctx, scan.Chat, anybody)
	panics(t, g, 1)
	if status := ctx.Response.StatusCode(); status != 400 {
		t.Errorf("answered with %d", status)
	}
}

// TestNothingOutlivesACall checks that recycle clears every field. A field left over would carry
// one client's data to another client.
func TestNothingOutlivesACall(t *testing.T) {
	c := calls.Get().(*call)
	residue.Mark(c, []string{"number", "bound", "task", "request", "g", "ctx"})
	c.recycle()
	if left := residue.Left(c, "number", "bound", "task", "request"); left != nil {
		t.Errorf("left of a call: %v", left)
	}
}

// TestStructsFitInAHead bounds each struct on a request's way to 20 fields. The test excepts
// structs that exist once in a router, or once for each node or cache daemon.
func TestStructsFitInAHead(t *testing.T) {
	single := []string{"gateway.Gateway", "metrics.Router", "fleet.Fleet", "fleet.Options", "fleet.prober",
		"fleet.Info", "holdings.cache"}
	for _, over := range slices.Concat(residue.Fields(&call{}, 20), residue.Fields(&relay.Exchange{}, 20)) {
		if name, _, _ := strings.Cut(over, " "); !slices.Contains(single, name) {
			t.Error(over)
		}
	}
}
