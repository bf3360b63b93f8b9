package fleet

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"

	"github.com/cognitora/dataplane/internal/cluster"
)

// said is a searchable log.
type said struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *said) Write(p []byte) (int, error) { s.mu.Lock(); defer s.mu.Unlock(); return s.b.Write(p) }

func (s *said) has(line string) func(*Snapshot) bool {
	return func(*Snapshot) bool { s.mu.Lock(); defer s.mu.Unlock(); return strings.Contains(s.b.String(), line) }
}

// TestNodesOfEtcdAreTold checks that the log says when an etcd node takes requests and when it does
// not.
func TestNodesOfEtcdAreTold(t *testing.T) {
	t.Parallel()
	var log said
	e := newEtcdFleet(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	eng := newEngine(t, nil)
	h := node("n1", eng.URL)
	h.Ready = false
	stop := e.agent(h)
	eventually(t, e.Fleet, "not ready",
		log.has(`msg="node takes no requests" node=n1 why="its agent says it is not ready"`))
	stop()
	eventually(t, e.Fleet, "gone", log.has(`msg="node left the fleet" node=n1`))

	e.agent(node("n1", eng.URL))
	eventually(t, e.Fleet, "back", log.has(`msg="node takes requests" node=n1 was=joined`))
	if err := e.client.PutCordon(context.Background(), "n1", cluster.Cordon{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, e.Fleet, "cordoned", log.has(`msg="node takes no requests" node=n1 why=cordoned`))
	if _, err := e.client.Uncordon(context.Background(), "n1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, e.Fleet, "uncordoned", log.has(`msg="node takes requests" node=n1 was=cordoned`))
	log.mu.Lock()
	defer log.mu.Unlock()
	if n := strings.Count(log.b.String(), "node=n1"); n != 5 {
		t.Errorf("%d lines:\n%s", n, log.b.String())
	}
}
