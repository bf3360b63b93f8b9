package leg

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/health"
	"github.com/cognitora/dataplane/router/health/patience"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/scan"
)

// TestMissingCounts checks after how many missing counts an engine counts as one that reports no
// counts.
func TestMissingCounts(t *testing.T) {
	for name, c := range map[string]struct {
		// r: with a count of cached tokens; u: without a count; m: without a count, although part
		// of the prompt was believed cached; c: like m, but sent at the time of the first request
		answers string
		want    int // number of the answer that triggers the report, from 1; 0: no answer does
	}{
		"never, and believed": {"ummmmm", 6},
		"believed at once":    {"mmmmmm", 6},
		"believed later":      {"uuuummmmm", 9},
		"nothing to report":   {"uuuuuuuu", 0},
		"four only":           {"ummmm", 0},
		"all in prefill":      {"uccccccc", 0},
		"it does report":      {"rmmmmmm", 0},
		"it does after all":   {"ummrmmmm", 0},
	} {
		var counts cachedCounts
		said := 0
		began := time.Unix(1, 0)
		for i, answer := range c.answers {
			sent := began
			if answer != 'c' {
				sent = began.Add(time.Duration(i) * time.Minute)
			}
			if answer == 'r' {
				counts.seen.Store(true)
			} else if counts.missing(answer != 'u', sent, began.Add(time.Duration(i)*time.Minute+time.Second)) {
				if said != 0 {
					t.Errorf("%s: said twice", name)
				}
				said = i + 1
			}
		}
		if said != c.want {
			t.Errorf("%s: said with answer %d, want %d", name, said, c.want)
		}
	}
}

// TestBugBeforeAnAnswer checks a leg that a bug ends before its place has an answer. The leg's node
// is not charged and gets its slot back.
func TestBugBeforeAnAnswer(t *testing.T) {
	d := start(t, 1)
	n := d.current().snap.Nodes[0]
	for name, q := range map[string]Question{
		"while it prepares": {Edit: func(*scan.Edits) { panic("a bug in an edit") }},
		"before it asks":    {},
	} {
		r := asked(t, d, chat(100))
		if q.Edit == nil {
			r.Life.Begin = func() { panic("a bug in what begins") }
		}
		l := d.Leg(r, q, nil)
		func() {
			defer func() { recover() }()
			l.Do()
			t.Errorf("%s: no bug", name)
		}()
		l.Finish(relay.UpstreamFailed)
		if n.InFlight() != 0 || n.Health.State() != health.Healthy || d.gate.InFlight() != 0 {
			t.Errorf("%s: %d in flight on the node, which is %v; %d permits",
				name, n.InFlight(), n.Health.State(), d.gate.InFlight())
		}
	}
	if exports(d, "cgn_router_upstream_errors_total{") {
		t.Error("the node is charged")
	}
}

// TestWhyNobodyIsAsked checks that the error names the limit that the client has met. The error
// must never deny a node that exists.
func TestWhyNobodyIsAsked(t *testing.T) {
	d := start(t, 1)
	n := d.current().snap.Nodes[0]
	r := asked(t, d, chat(100))
	r.Pin = n.ID
	q, fail := d.Wanted(r)
	if fail != nil {
		t.Fatal(fail)
	}
	l := d.Leg(r, q, nil)
	if err := l.admit(); err != nil {
		t.Fatal(err)
	}
	l.tries.asked, l.tries.cause = l.pool.members, "connect"
	if err := l.unanswered(); !strings.Contains(err.Message, "retry.max_nodes") {
		t.Errorf("with retries left: %s", err.Message)
	}
	l.tries.broke = true
	if err := l.unanswered(); !strings.Contains(err.Message, "retry.percent") {
		t.Errorf("without: %s", err.Message)
	}
	if _, err := l.choose(time.Now()); err.Code != "pinned_node_unavailable" ||
		!strings.Contains(err.Message, "node \""+n.ID+"\", named in x-cgn-node, ") ||
		!strings.HasSuffix(err.Message, ": the request has asked it already") {
		t.Errorf("a pinned node that cannot be asked: %v", err)
	}
	l.Node = "nobody"
	if _, err := l.choose(time.Now()); err.Code != "node_not_found" || err.Param != "x-cgn-node" ||
		!strings.Contains(err.Message, `"nobody"`) || !strings.HasSuffix(err.Message, "these do: "+n.ID) {
		t.Errorf("a pinned node that is not there: %v", err)
	}
}

// TestTheFullPoolNamesItsSetting checks that the error of a full pool names the setting with its
// cap.
func TestTheFullPoolNamesItsSetting(t *testing.T) {
	capped := &policy.Policy{MaxQueue: 1}
	for want, c := range map[string]struct {
		role        cluster.Role
		limits      Limits
		own, fleets *policy.Policy
	}{
		"router.admission.max_queue":                           {fleets: policy.Default()},
		"max_queue of the policy":                              {fleets: capped, own: policy.Default()},
		"max_queue of the model's policy":                      {fleets: capped, own: capped},
		"max_queue of the model in the router's configuration": {fleets: capped, own: capped, limits: Limits{MaxQueue: 1}},
		"max_queue_decode of the router's configuration": {
			fleets: capped, role: cluster.RoleDecode, limits: Limits{MaxQueue: 1, MaxQueueDecode: 1},
		},
	} {
		m := &servedModel{model: &model{limits: c.limits}, view: &fleet.ModelView{Policy: c.own}}
		if got := m.capOf(c.role, c.fleets); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestTheFullPoolOfANodesRole checks that the error names the cap of the role that the model's
// settings give the node.
func TestTheFullPoolOfANodesRole(t *testing.T) {
	index := prefix.NewIndex(prefix.Options{})
	t.Cleanup(index.Close)
	f, err := fleet.New(fleet.Options{Index: index, Logger: slog.New(slog.DiscardHandler), Proven: true,
		Backends: twoNodes(), Models: map[string]*cluster.Model{"sim": {
			Pools: map[cluster.Role][]string{cluster.RoleDecode: {"a", "b"}},
		}}})
	if err != nil {
		t.Fatal(err)
	}
	d := over(f, index, Options{Limits: Limits{MaxQueue: 7, MaxQueueDecode: 1}})
	l := d.Leg(asked(t, d, chat(100)), Question{}, nil)
	if _, err := l.first(); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Leg(asked(t, d, chat(100)), Question{}, nil).first(); err == nil ||
		!strings.Contains(err.Message, "max_queue_decode of the router's configuration") {
		t.Errorf("of decode nodes: %v", err)
	}
	l.giveBack()
}

// TestBugInAFilter panics in a filter while an attempt waits. No other node is asked, and the
// router lives on.
func TestBugInAFilter(t *testing.T) {
	d := start(t, 2)
	l := d.Leg(asked(t, d, chat(100)), Question{}, nil)
	if _, err := l.first(); err != nil {
		t.Fatal(err)
	}
	l.arm(l.spare())
	l.Filter = func(*fleet.Node) bool { panic("a bug in a filter") }
	if l.GiveUp(patience.Overdue) || l.phase != waiting {
		t.Errorf("given up, phase %d", l.phase)
	}
	l.Finish(relay.ClientGone)
}
