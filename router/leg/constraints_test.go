package leg

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/nvext"
	"github.com/cognitora/dataplane/router/request"
)

func TestConstraints(t *testing.T) {
	labels := []string{"gpu=h100", "zone=a"}
	for _, c := range []struct {
		constraints Constraints
		missing     []string
		weight      float64
	}{
		{Constraints{}, nil, 0},
		{Constraints{Required: []string{"zone=a"}}, nil, 0},
		{Constraints{Required: []string{"zone=a", "gpu=h100"}}, nil, 0},
		{Constraints{Required: []string{"zone=a", "gpu=l4", "zone"}}, []string{"gpu=l4", "zone"}, 0},
		{Constraints{Preferred: []nvext.Taint{{Name: "gpu=l4", Weight: 2}}}, nil, 0},
		{Constraints{Preferred: []nvext.Taint{{Name: "gpu=h100", Weight: 2}, {Name: "gpu=l4", Weight: 8}, {Name: "zone=a", Weight: -.5}}}, nil, 1.5},
	} {
		if got := c.constraints.allow(labels); got != (len(c.missing) == 0) {
			t.Errorf("%+v allows %v: %v", c.constraints, labels, got)
		}
		if got := c.constraints.missing(labels); !slices.Equal(got, c.missing) {
			t.Errorf("%+v: %v is missing, want %v", c.constraints, got, c.missing)
		}
		if got := c.constraints.weight(labels); got != c.weight {
			t.Errorf("%+v: weight %v, want %v", c.constraints, got, c.weight)
		}
	}
	c := Constraints{Required: labels, Preferred: []nvext.Taint{{Name: "zone=a", Weight: 1}}}
	if n := testing.AllocsPerRun(100, func() {
		if !c.allow(labels) || c.weight(labels) != 1 {
			t.Fatal("wrong")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestRequiredLabels checks that a request goes only to nodes with the labels that it requires, and
// that its error names them if no such node is in service.
func TestRequiredLabels(t *testing.T) {
	backends := twoNodes()
	backends[1].Labels = []string{"gpu=h100", "zone=a"}
	d := still(t, Options{}, backends...)
	q := Question{Constraints: Constraints{Required: []string{"zone=a", "gpu=h100"}}}
	for range 10 {
		l := d.Leg(asked(t, d, chat(100)), q, nil)
		if at, err := l.first(); err != nil || l.pool.members[at].node.ID != "b" {
			t.Fatalf("place %d, %v", at, err)
		}
		l.giveBack()
	}
	e, err := d.Explain(asked(t, d, chat(100)), q)
	if err != nil || e.Winner != "b" || e.Candidates[0].Filter != "required_taints" ||
		e.Candidates[0].Reason != "the request requires labels that it lacks: zone=a, gpu=h100" {
		t.Errorf("%+v, %v", e, err)
	}
	if !counted(d, "required_taints", 10) {
		t.Error("not counted so")
	}
	d.fleet.Load().Node("b").Health.SetAside("a test")
	for _, labels := range []string{"zone=a", "zone=b", "zone=c"} {
		q.Constraints.Required = []string{labels}
		if labels == "zone=c" {
			q.Bond, q.Node = Named, "a"
		}
		l := d.Leg(asked(t, d, chat(100)), q, nil)
		if err := l.Do(); err == nil || err.Status != 503 || err.Code != "no_eligible_node" ||
			err.RetryAfterSeconds == 0 || !strings.Contains(err.Message, "("+labels+")") {
			t.Errorf("with %s: %v", labels, err)
		}
		l.Finish(relay.UpstreamFailed)
	}
}

// TestRequiredLabelsDoNotAllocate picks with constraints.
func TestRequiredLabelsDoNotAllocate(t *testing.T) {
	backends := twoNodes()
	backends[1].Labels = []string{"zone=a"}
	d := still(t, Options{}, backends...)
	allocatesNothing(t, d, Constraints{Required: []string{"zone=a"}})
}

// allocatesNothing checks that a leg with these constraints goes to node b and allocates nothing.
func allocatesNothing(t *testing.T, d *Dispatcher, constraints Constraints) {
	t.Helper()
	r, l := request.New(), newLeg()
	body, least := chat(200), math.Inf(1)
	for range 10 {
		least = min(least, testing.AllocsPerRun(20, func() {
			if err := ask(d, r, body); err != nil {
				t.Fatal(err)
			}
			r.Received = time.Now()
			l.d, l.Request, l.Constraints = d, r, constraints
			at, err := l.first()
			if err != nil || l.pool.members[at].node.ID != "b" {
				t.Fatal(at, err)
			}
			l.pool.members[at].rank.Release()
			l.permit.Release()
			l.reset()
			r.Scan.Reset()
		}))
	}
	if least != 0 {
		t.Errorf("%v allocations", least)
	}
}
