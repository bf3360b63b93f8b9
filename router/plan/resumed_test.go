package plan

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/sse"
	"github.com/cognitora/dataplane/router/metrics"
)

// broken returns a task whose stream has broken off.
func broken(planner *Planner) (*Task, *Resumed) {
	task := NewTask()
	p := &Resumed{planner: planner, task: task}
	task.planner, task.plan, task.resumed = planner, p, p
	return task, p
}

// TestBrokenStreamsWait checks the bound on the streams that other nodes are asked to go on with at
// once. Each way to end frees the place.
func TestBrokenStreamsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		planner := New(Parts{Metrics: metrics.New()})
		tasks, all := make([]*Task, maxResuming), make([]*Resumed, maxResuming)
		for i := range all {
			if tasks[i], all[i] = broken(planner); !all[i].enter(tasks[i]) {
				t.Fatalf("no room for stream %d", i)
			}
		}
		task, p := broken(planner)
		began := time.Now()
		if err := p.Next(task); err != errSeam || time.Since(began) != resumingTime {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		task.Request.Deadline = time.Now().Add(time.Second)
		if began = time.Now(); p.Next(task) != errSeam || time.Since(began) != time.Second {
			t.Errorf("a client with a deadline in 1 s has waited %v", time.Since(began))
		}
		for _, why := range []string{"crowded", "late"} {
			line := fmt.Sprintf("cgn_router_resumed_total{by=%q,result=\"impossible\"} 1\n", why)
			page := httptest.NewRecorder()
			planner.parts.Metrics.Set.Handler().ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
			if !strings.Contains(page.Body.String(), line) {
				t.Errorf("no stream is counted as %s:\n%s", why, page.Body)
			}
		}
		task.Request.Deadline = time.Time{}
		time.AfterFunc(time.Second, task.Request.Life.Cancel)
		if began = time.Now(); p.Next(task) != errSeam || time.Since(began) != time.Second {
			t.Errorf("a client that left after 1 s has waited %v", time.Since(began))
		}
		tasks[0].Finish(relay.ClientGone)
		all[1].state = given
		all[1].End(tasks[1], nil, relay.UpstreamFailed)
		func() {
			defer func() { _ = recover() }() // there is no leg to read the event
			all[2].Event(tasks[2], sse.Event{Raw: []byte("data: x\n\n")}, nil, time.Now())
		}()
		for range 3 {
			if task, p := broken(planner); !p.enter(task) {
				t.Error("a place was not freed")
			}
		}
		if task, p := broken(planner); p.enter(task) {
			t.Error("a place was freed twice")
		}
	})
}
