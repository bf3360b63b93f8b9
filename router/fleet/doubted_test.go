package fleet

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/cognitora/dataplane/router/health"
)

// TestDeadNodesAreNoticedByTheirTraffic checks that one broken request takes a dead node out of
// service. Its lease and its next check come much later. A node that is well stays in service.
func TestDeadNodesAreNoticedByTheirTraffic(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]health.Outcome{
		"broken stream": health.Reset, "no connection": health.ConnectError,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEtcdFleet(t, func(o *Options) { o.ProbeInterval = time.Hour })
			dies, lives := newEngine(t, nil), newEngine(t, nil)
			e.agent(node("dies", dies.URL))
			e.agent(node("lives", lives.URL))
			eventually(t, e.Fleet, "both joined", serves("m", 2))
			eventually(t, e.Fleet, "both were checked", func(*Snapshot) bool {
				return dies.count("/health") > 0 && lives.count("/health") > 0
			})
			dies.Close()
			checks := lives.count("/health")
			e.Load().Node("dies").Health.Report(o)
			e.Load().Node("lives").Health.Report(o)
			eventually(t, e.Fleet, "the dead one is out", serves("m", 1))
			eventually(t, e.Fleet, "the other was checked", func(*Snapshot) bool {
				return lives.count("/health") > checks
			})
			if ok, reason := e.Load().Node("lives").Eligible(time.Now()); !ok {
				t.Error(reason)
			}
		})
	}
}

// TestSilentNodesDoNotHoldUpOthers checks that a good node is checked in time among many nodes that
// accept connections and never answer.
func TestSilentNodesDoNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	silent, good := listen(t, "tcp", "127.0.0.1:0"), newEngine(t, nil, "m")
	defer silent.Close()
	o := Options{Logger: slog.New(slog.DiscardHandler), ProbeTimeout: time.Minute} // no probe times out in this test
	for i := range 400 {
		o.Backends = append(o.Backends, Backend{URL: "http://" + silent.Addr().String(), ID: fmt.Sprint("silent-", i),
			Model: "none"})
	}
	o.Backends = append(o.Backends, Backend{URL: good.URL, ID: "good"})
	f := run(t, o)
	eventually(t, f, "the good one", serves("m", 1))
}
