package leg

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/request"
)

// withNvext returns a client's request for a chat, with the given nvext.
func withNvext(t testing.TB, d *Dispatcher, nvext string) *request.Request {
	t.Helper()
	return asked(t, d, fmt.Appendf(nil, `{"nvext":%s,"model":"sim","messages":[]}`, nvext))
}

// wanted returns a leg of r with the question of r.
func wanted(t testing.TB, d *Dispatcher, r *request.Request) *Leg {
	t.Helper()
	q, err := d.Wanted(r)
	if err != nil {
		t.Fatal(err)
	}
	return d.Leg(r, q, nil)
}

// TestPinsByNameAndNumber checks that a worker may be named in each way.
func TestPinsByNameAndNumber(t *testing.T) {
	d := start(t, 3)
	for _, n := range d.current().snap.Nodes {
		for _, nvext := range []string{
			fmt.Sprintf(`{"backend_instance_id":%q}`, n.ID), fmt.Sprintf(`{"decode_worker_id":%d}`, n.Number()),
			fmt.Sprintf(`{"decode_worker_id":"%d"}`, n.Number()),
			fmt.Sprintf(`{"allowed_worker_ids":["x",%q]}`, n.ID),
			fmt.Sprintf(`{"allowed_worker_ids":[7,%d]}`, n.Number()),
			fmt.Sprintf(`{"backend_instance_id":%d,"allowed_worker_ids":[%q]}`, n.Number(), n.ID),
		} {
			l := wanted(t, d, withNvext(t, d, nvext))
			at, err := l.first()
			if err != nil {
				t.Fatalf("%s: %v", nvext, err)
			}
			if got := l.pool.members[at].node.ID; got != n.ID {
				t.Errorf("%s: %s instead of %s", nvext, got, n.ID)
			}
			l.Finish(relay.ClientGone)
		}
	}
}

// TestWorkersThatCannotAnswer checks that each error names the field that rules the nodes out.
func TestWorkersThatCannotAnswer(t *testing.T) {
	d := start(t, 2)
	first, second := d.current().snap.Nodes[0], d.current().snap.Nodes[1]
	_, err := d.Wanted(withNvext(t, d,
		fmt.Sprintf(`{"backend_instance_id":%q,"allowed_worker_ids":[%q]}`, first.ID, second.ID)))
	if err == nil || err.Status != 400 || err.Param != "nvext.allowed_worker_ids" ||
		!strings.Contains(err.Message, "nvext.backend_instance_id") {
		t.Errorf("a pin outside the list: %v", err)
	}
	for _, c := range []struct {
		nvext, code, param string
		spent              bool // all nodes have been asked
	}{
		{`{"allowed_worker_ids":["x",7]}`, "node_not_found", "nvext.allowed_worker_ids", false},
		{fmt.Sprintf(`{"allowed_worker_ids":["x",%q]}`, first.ID), "no_eligible_node", "", true},
		{`{"backend_instance_id":7}`, "node_not_found", "nvext.backend_instance_id", false},
		{fmt.Sprintf(`{"decode_worker_id":%q}`, first.ID), "pinned_node_unavailable", "", true},
		{`{"routing_constraints":{"required_taints":["gpu=h200"]}}`, "no_eligible_node",
			"nvext.routing_constraints.required_taints", false},
		{`{"router":{"moe_query":{"experts":[7],"fallback_to_unlabeled":false}}}`, "no_eligible_node",
			"nvext.router.moe_query", false},
	} {
		l := wanted(t, d, withNvext(t, d, c.nvext))
		if err := l.admit(); err != nil {
			t.Fatal(err)
		}
		if c.spent {
			l.tries.asked = l.pool.members
		}
		if _, err := l.choose(time.Now()); err == nil || err.Code != c.code || err.Param != c.param ||
			!strings.Contains(err.Message, "nvext.") {
			t.Errorf("%s: %v", c.nvext, err)
		}
	}
}

// TestRestrictionsAreNamedTogether checks that the error about missing labels also names the field
// that leaves few nodes.
func TestRestrictionsAreNamedTogether(t *testing.T) {
	d := start(t, 2)
	id := d.current().snap.Nodes[0].ID
	for _, field := range []string{
		fmt.Sprintf(`"allowed_worker_ids":[%q]`, id), fmt.Sprintf(`"backend_instance_id":%q`, id),
	} {
		l := wanted(t, d, withNvext(t, d, `{`+field+`,"routing_constraints":{"required_taints":["x"]}}`))
		if err := l.admit(); err != nil {
			t.Fatal(err)
		}
		name, _, _ := strings.Cut(field[1:], `"`)
		if _, err := l.choose(time.Now()); err == nil || !strings.Contains(err.Message, "required_taints (x)") ||
			!strings.Contains(err.Message, "nvext."+name+" leaves only") {
			t.Errorf("%s: %v", field, err)
		}
	}
}

// TestAllowedNodesAreExplained checks the reason against the other nodes.
func TestAllowedNodesAreExplained(t *testing.T) {
	d := start(t, 3)
	only := d.current().snap.Nodes[1]
	r := withNvext(t, d, fmt.Sprintf(`{"allowed_worker_ids":[%d]}`, only.Number()))
	q, fail := d.Wanted(r)
	if fail != nil {
		t.Fatal(fail)
	}
	e, fail := d.Explain(r, q)
	if fail != nil {
		t.Fatal(fail)
	}
	for _, c := range e.Candidates {
		if want := c.Node == only.ID; c.Eligible != want || !want && c.Reason != "not among the allowed workers" {
			t.Errorf("%s: eligible %v, %q", c.Node, c.Eligible, c.Reason)
		}
	}
	if e.Winner != only.ID {
		t.Errorf("%s wins", e.Winner)
	}
}

// TestEnginesDoNotGetNvext checks the body for an engine, with the salt as engines know it.
func TestEnginesDoNotGetNvext(t *testing.T) {
	const salted = `{"agent_hints":{"osl":3},"cache_salt":"\u0061\n"}`
	for _, c := range []struct {
		pass       bool
		body, want string
	}{
		{false, `{"nvext":{"agent_hints":{"osl":3}} , "model":"sim","messages":[]}`, `{"model":"sim","messages":[]}`},
		{false, `{"model":"sim","messages":[], "nve\u0078t":null}`, `{"model":"sim","messages":[]}`},
		{false, `{"model":"sim","messages":[],"nvext":{}}`, `{"model":"sim","messages":[]}`},
		{false, `{"model":"sim","nvext":` + salted + `,"messages":[]}`,
			`{"cache_salt":"a\n","model":"sim","messages":[]}`},
		{false, `{"model":"sim","nvext":` + salted + `,"cache_salt":"a\n","messages":[]}`,
			`{"model":"sim","cache_salt":"a\n","messages":[]}`},
		{true, `{"model":"sim","nvext":{"dp_rank":0},"messages":[]}`, `{"model":"sim","nvext":{"dp_rank":0},"messages":[]}`},
		{true, `{"model":"sim","nvext":` + salted + `,"messages":[]}`,
			`{"cache_salt":"a\n","model":"sim","nvext":` + salted + `,"messages":[]}`},
	} {
		d := start(t, 1)
		d.o.PassNvext = c.pass
		l := wanted(t, d, asked(t, d, []byte(c.body)))
		at, fail := l.first()
		if fail != nil {
			t.Fatal(fail)
		}
		a := l.spare()
		a.member = l.pool.members[at]
		for range 2 { // a second attempt begins with the client's body, too
			out, err := l.prepare(a)
			if err != nil {
				t.Fatal(err)
			}
			if got := string(bytes.Join(out.Body, nil)); got != c.want {
				t.Errorf("passthrough %v: %s\n got %s\nwant %s", c.pass, c.body, got, c.want)
			}
		}
		l.Finish(relay.ClientGone)
	}
}

// TestTheSaltOfNvextSeparatesCaches checks that prompts with different salts share no block.
func TestTheSaltOfNvextSeparatesCaches(t *testing.T) {
	d := start(t, 1)
	prompt := string(chat(400))
	chain := func(salt string) uint64 {
		r := asked(t, d, []byte(`{"nvext":`+salt+","+prompt[1:]))
		l := wanted(t, d, r)
		if _, err := l.first(); err != nil {
			t.Fatal(err)
		}
		defer l.Finish(relay.ClientGone)
		return l.prompt.RendezvousKey()
	}
	none, a, b := chain(`{}`), chain(`{"cache_salt":"a"}`), chain(`{"cache_salt":"b"}`)
	if none == a || a == b || a != chain(`{"cache_salt":"a"}`) {
		t.Errorf("keys %x, %x, %x", none, a, b)
	}
}
