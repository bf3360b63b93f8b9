package leg

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router/nvext"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/request"
)

// pickRecord is the log record of a pick.
type pickRecord struct {
	Msg, Request, Model, Mode, Node, Why, Error string
	Candidates, Removed                         []string
}

// logged runs first for a question of r, and returns the log record and the chosen node.
func logged(t *testing.T, d *Dispatcher, r *request.Request, q Question) (rec pickRecord, node string) {
	t.Helper()
	var out bytes.Buffer
	d.log = slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	l := d.Leg(r, q, nil)
	if at, err := l.first(); err == nil {
		node = l.pool.members[at].node.ID
		l.drop(l.spare())
	}
	l.close()
	if err := json.Unmarshal(out.Bytes(), &rec); err != nil || bytes.Count(out.Bytes(), []byte("\n")) != 1 {
		t.Fatalf("%v in %s", err, out.Bytes())
	}
	return rec, node
}

// TestPicksAreLogged checks that the log has what the pick has seen and chosen, in every mode.
func TestPicksAreLogged(t *testing.T) {
	d := dispatcherOf(t, 4)
	nodes := d.current().snap.Nodes
	nodes[1].AcquireAlways()
	allowed := nvext.Workers{nodes[0].ID, nodes[1].ID, nodes[2].ID}
	r := asked(t, d, chat(6400))
	r.ID = []byte("req-7")
	for _, mode := range policy.ModeNames() {
		decide(t, d, fmt.Sprintf(`{"mode":%q,"cost":{"temperature":2}}`, mode))
		for range 8 {
			q := Question{Allowed: allowed}
			if mode == policy.Direct.String() {
				q = pinnedTo(nodes[1].ID)
			}
			e, err := d.Explain(r, q)
			if err != nil {
				t.Fatal(err)
			}
			rec, node := logged(t, d, r, q)
			if node == "" || rec.Node != node || rec.Msg != "node picked" || rec.Mode != mode || rec.Model != "sim" ||
				rec.Request != "req-7" || rec.Why == "" || rec.Error != "" {
				t.Fatalf("%s: picked %s, logged %+v", mode, node, rec)
			}
			var lines, removed []string
			for _, c := range e.Candidates {
				if c.Eligible {
					lines = append(lines, c.Formula)
				} else {
					removed = append(removed, c.Node+": "+c.Filter+", "+c.Reason)
				}
			}
			if !slices.Equal(rec.Candidates, lines) || !slices.Equal(rec.Removed, removed) || len(removed) == 0 {
				t.Fatalf("%s: logged %+v, want %v and %v", mode, rec, lines, removed)
			}
		}
	}
	nodes[1].Release()
}

// TestRefusalsAreLogged checks the record of a pick without a node.
func TestRefusalsAreLogged(t *testing.T) {
	d := dispatcherOf(t, 2)
	rec, node := logged(t, d, asked(t, d, chat(200)), pinnedTo("elsewhere"))
	if node != "" || rec.Msg != "no node picked" || rec.Node != "" ||
		!strings.HasSuffix(rec.Error, "does not serve this model; these do: node-0, node-1") ||
		len(rec.Candidates) != 0 || len(rec.Removed) != 2 ||
		rec.Removed[0] != "node-0: pinned, another node is pinned" {
		t.Errorf("%q, %+v", node, rec)
	}
}

// TestFullNodesAreLogged checks that a node at its limit is among the removed ones.
func TestFullNodesAreLogged(t *testing.T) {
	d := dispatcherOf(t, 2)
	l := d.Leg(asked(t, d, chat(200)), Question{}, nil)
	if _, err := l.first(); err != nil {
		t.Fatal(err)
	}
	l.picks.cands[0].MaxConcurrent, l.picks.cands[0].InFlight = 1, 1
	var out bytes.Buffer
	d.log = slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	l.logPick(1, nil, l.Request.Received)
	l.drop(l.spare())
	l.close()
	var rec pickRecord
	if err := json.Unmarshal(out.Bytes(), &rec); err != nil || len(rec.Candidates) != 1 ||
		!slices.Equal(rec.Removed, []string{"node-0: full: 1 in flight and 0 of others of 1 slots"}) {
		t.Errorf("%v, %+v", err, rec)
	}
}

// TestPickLogIsOneLine checks the text format, in which a node's formula can be found.
func TestPickLogIsOneLine(t *testing.T) {
	d := dispatcherOf(t, 2)
	decide(t, d, `{"mode":"cost"}`)
	var out strings.Builder
	d.log = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	l := d.Leg(asked(t, d, []byte(`{"model":"sim","messages":[]}`)), Question{}, nil)
	if _, err := l.first(); err != nil {
		t.Fatal(err)
	}
	l.drop(l.spare())
	l.close()
	want := `candidates="Formula for node-0: 0.0 = 1.0 * 0.0 + 0.0 (cached_blocks: 0); Formula for node-1: `
	if strings.Count(out.String(), "\n") != 1 || !strings.Contains(out.String(), want) {
		t.Error(out.String())
	}
}

// TestPickWithoutDebugDoesNotAllocate uses a log that writes, but no debug records.
func TestPickWithoutDebugDoesNotAllocate(t *testing.T) {
	d := start(t, 2)
	d.log = slog.New(slog.NewTextHandler(io.Discard, nil))
	r, l, body := request.New(), newLeg(), chat(2<<10)
	if err := pick(d, r, l, body); err != nil {
		t.Fatal(err)
	}
	if least := allocations(t, d, r, l, body); least != 0 {
		t.Errorf("%v allocations, want 0", least)
	}
}

// TestARemovalNamesItsFilterOnce checks the line of a removed node whose reason begins with the
// filter's word.
func TestARemovalNamesItsFilterOnce(t *testing.T) {
	for want, e := range map[string]ExplainedNode{
		"a: busy: 5 prompt tokens wait":  {Node: "a", Filter: "busy", Reason: "busy: 5 prompt tokens wait"},
		"a: pinned, another node is":     {Node: "a", Filter: "pinned", Reason: "another node is"},
		"a: full: 1 in flight of 1 slot": {Node: "a", Reason: "full: 1 in flight of 1 slot"},
	} {
		if got := e.removal(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
