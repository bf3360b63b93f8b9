package leg

import (
	"context"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/router/fleet"
)

// exports says whether /metrics has a series with the label.
func exports(d *Dispatcher, label string) bool {
	return strings.Contains(metricsPage(d), label)
}

// metricsPage returns the text of /metrics.
func metricsPage(d *Dispatcher) string {
	page := httptest.NewRecorder()
	d.metrics.Set.Handler().ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	return page.Body.String()
}

// TestWhatIsGoneLosesItsMetrics checks that the series of a departed node or model are removed.
// That happens once its last request has ended and been counted.
func TestWhatIsGoneLosesItsMetrics(t *testing.T) {
	d := start(t, 1)
	l := d.Leg(asked(t, d, chat(200)), Question{}, nil)
	at, err := l.first()
	if err != nil {
		t.Fatal(err)
	}
	n := l.pool.members[at]
	node, model := `node="`+n.node.ID+`"`, `model="sim"`
	if !exports(d, node) || !exports(d, model) {
		t.Fatal("nothing is counted")
	}
	if err := d.fleet.Reload(context.Background(), []fleet.Backend{}); err != nil {
		t.Fatal(err)
	}
	if now := d.current(); len(now.nodes) != 0 || len(now.models) != 0 {
		t.Fatal("the table is not that of the new snapshot")
	}
	later := time.Now().Add(2 * goneFor)
	d.forgetGone(later)
	l.judge(&attempt{member: n}, unreached, nil)
	d.metrics.Requests.Inc("chat", "sim", 503)
	if !exports(d, node) || !exports(d, model) || len(d.gone.nodes) != 1 || len(d.gone.models) != 1 {
		t.Error("forgotten with a request in flight")
	}
	n.rank.Release()
	l.permit.Release()
	d.forgetGone(time.Now())
	if !exports(d, node) || !exports(d, model) {
		t.Error("forgotten before they could be scraped once more")
	}
	d.forgetGone(later)
	if exports(d, node) || exports(d, model) || len(d.gone.nodes) != 0 || len(d.gone.models) != 0 {
		t.Error("kept for ever")
	}
	var pools []string
	d.gate.Each(func(model, role string, _, _ int64) { pools = append(pools, model+" "+role) })
	if slices.Contains(pools, "sim both") {
		t.Errorf("pools left: %v", pools)
	}
	l.recycle()
}
