package cluster

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
)

// TestARegistrationIsLogged: the log says that the id is held, and that the node is announced. Each
// line names the node once.
func TestARegistrationIsLogged(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	c := startEtcd(t).client()
	must(t, newAgent("n1", "http://10.0.0.1:1").registrar(c, "crashed").beat(ctx)) // and does not leave
	var log bytes.Buffer
	r := newAgent("n1", "http://10.0.0.1:9").registrar(c, "")
	r.reg.Logger = slog.New(slog.NewTextHandler(&log, nil)).With("node", "n1")
	must(t, r.beat(ctx)) // waits for the end of the lease
	must(t, r.beat(ctx))
	r.leave(ctx)
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 2 || !strings.Contains(lines[0], "waiting for its lease") ||
		!strings.Contains(lines[1], `msg="announced in etcd" node=n1`) {
		t.Errorf("%s", log.String())
	}
	for _, line := range lines {
		if strings.Count(line, "node=") != 1 {
			t.Errorf("%s", line)
		}
	}
}
