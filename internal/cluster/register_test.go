package cluster

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"
)

// agent is a node's registration under test.
type agent struct {
	mu     sync.Mutex
	health NodeHealth
	asked  int
}

func newAgent(id, address string) *agent {
	return &agent{health: NodeHealth{NodeID: id, Address: address, Models: []string{"m"}, Ready: true}}
}

func (a *agent) get() Record {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked++
	h := a.health
	return &h
}

func (a *agent) count() int { a.mu.Lock(); defer a.mu.Unlock(); return a.asked }

func (a *agent) registrar(c *Client, instance string) *Registrar {
	return a.every(time.Second, c, instance)
}

// every returns a registrar with this heartbeat. The registrar's lease lasts three heartbeats.
func (a *agent) every(beat time.Duration, c *Client, instance string) *Registrar {
	return NewRegistrar(c, Registration{Health: a.get, Heartbeat: beat, Instance: instance,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))})
}

func nodes(t *testing.T, c *Client) map[string]*NodeHealth {
	t.Helper()
	list, err := c.Nodes(context.Background())
	if err != nil {
		return nil
	}
	out := map[string]*NodeHealth{}
	for _, n := range list {
		out[n.ID] = n.Health
	}
	return out
}

func TestRegistrationLivesAsLongAsItsAgent(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	c := e.client()
	a := newAgent("n1", "http://10.0.0.1:1")
	r := a.registrar(c, "")
	stop := background(t, r.Run)
	eventually(t, "registered", func() bool { return nodes(t, c)["n1"] != nil })
	first := nodes(t, c)["n1"].Stamp
	eventually(t, "a heartbeat", func() bool { return nodes(t, c)["n1"].Stamp > first })
	list, err := c.Nodes(context.Background())
	must(t, err)
	if left, ok, err := c.LeaseLeft(context.Background(), list[0]); !ok || err != nil || left > 5*time.Second {
		t.Fatalf("lease: %v left, %v %v", left, ok, err)
	}
	a.mu.Lock()
	a.health.Ready = false
	a.mu.Unlock()
	r.Notify()
	eventually(t, "the change", func() bool { return !nodes(t, c)["n1"].Ready })
	must(t, stop())
	if n := nodes(t, c); n["n1"] != nil {
		t.Fatal("still registered after its end")
	}
}

func TestRegistrationReturnsToAnEmptyEtcd(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	c := e.client()
	stop := background(t, newAgent("n1", "http://10.0.0.1:1").registrar(c, "").Run)
	eventually(t, "registered", func() bool { return nodes(t, c)["n1"] != nil })
	e.stop()
	e.start(t.TempDir())
	eventually(t, "registered again", func() bool { return nodes(t, c)["n1"] != nil })
	must(t, stop())
}

func TestALiveDuplicateIsRefused(t *testing.T) {
	t.Parallel()
	e := startEtcd(t)
	c := e.client()
	background(t, newAgent("n1", "http://10.0.0.1:1").registrar(c, "").Run)
	eventually(t, "registered", func() bool { return nodes(t, c)["n1"] != nil })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := newAgent("n1", "http://10.0.0.2:2").registrar(c, "").Run(ctx)
	var duplicate *DuplicateError
	if !errors.As(err, &duplicate) || duplicate.HolderAddress != "http://10.0.0.1:1" ||
		duplicate.Address != "http://10.0.0.2:2" {
		t.Fatalf("error %v", err)
	}
	if got := nodes(t, c)["n1"].Address; got != "http://10.0.0.1:1" {
		t.Fatalf("the first agent was replaced by %s", got)
	}
}

// TestARestartedAgentTakesItsNodeBack: with its token the agent gets its node back immediately,
// even if the old lease lasts for hours. Without the token the agent waits for the end of the old
// lease.
func TestARestartedAgentTakesItsNodeBack(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	e := startEtcd(t)
	c := e.client()
	crash := func(beat time.Duration, instance string) {
		t.Helper()
		r := newAgent("n1", "http://10.0.0.1:1").every(beat, c, instance)
		must(t, r.beat(ctx)) // writes one heartbeat and does not leave
	}
	crash(time.Hour, "token")
	second := newAgent("n1", "http://10.0.0.1:1").every(time.Hour, c, "token")
	must(t, second.beat(ctx))
	must(t, second.beat(ctx))
	second.leave(ctx)

	crash(200*time.Millisecond, "lost")
	stop := background(t, newAgent("n1", "http://10.0.0.1:9").registrar(c, "").Run)
	eventually(t, "taken over when the lease has ended", func() bool {
		n := nodes(t, c)["n1"]
		return n != nil && n.Address == "http://10.0.0.1:9"
	})
	must(t, stop())
}

func TestAnInvalidHealthIsWaitedOut(t *testing.T) {
	t.Parallel()
	c := startEtcd(t).client()
	a := newAgent("n1", "http://10.0.0.1:1")
	stop := background(t, a.registrar(c, "").Run)
	eventually(t, "registered", func() bool { return nodes(t, c)["n1"] != nil })
	set := func(slots int, models ...string) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.health.MaxConcurrent, a.health.Models = slots, models
	}
	set(-1, "m")
	before := a.count()
	eventually(t, "five attempts", func() bool { return a.count() >= before+5 })
	if n := nodes(t, c)["n1"]; n == nil || n.MaxConcurrent != 0 {
		t.Fatalf("with an invalid description the node is %+v", n)
	}
	set(7, "m")
	eventually(t, "announced again", func() bool { n := nodes(t, c)["n1"]; return n != nil && n.MaxConcurrent == 7 })
	must(t, stop())
}
