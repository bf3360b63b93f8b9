package router_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router"
)

// TestClientThatLeavesCancelsUpstream checks that the engine notices a client's departure in every
// phase of a request. Every timeout of the router is longer than an hour.
func TestClientThatLeavesCancelsUpstream(t *testing.T) {
	t.Parallel()
	const tries = 3
	s, leavers := serve(t, simulate(t, 2), func(c *router.Config) {
		for _, wait := range []*config.Duration{
			&c.Timeouts.FirstByte, &c.Timeouts.FirstByteCold, &c.Timeouts.PatienceFloor, &c.Timeouts.StallFloor,
			&c.Timeouts.Idle, &c.Timeouts.Total,
			&c.Limits.HeaderTimeout, &c.Limits.BodyTimeout, &c.Limits.KeepAlive, &c.Limits.SlowReader,
		} {
			*wait = config.Duration(time.Hour)
		}
	}), 0
	for name, c := range map[string]struct{ fault, more string }{
		"before headers": {"hang", streaming},
		"held-back head": {"hang_body", streaming},
		"silent stream":  {"stall_after=3", streaming},
		"running stream": {"slow=0s", `,"stream":true,"max_tokens":100000`},
		"plain":          {"slow=0s", `,"max_tokens":100000`},
		"plain hanging":  {"hang", plain},
	} {
		t.Run(name, func(t *testing.T) {
			for range tries {
				leave(t, s, c.fault, c.more)
				leavers++
			}
			s.idle()
		})
	}
	for id, n := range s.nodes() {
		if n.State != "healthy" || n.Opens != 0 {
			t.Errorf("clients that left are held against %s: %+v", id, n)
		}
	}
	if n := s.metrics().sum("cgn_router_client_cut_total", `reason="left"`); n != float64(leavers) {
		t.Errorf("%v clients left, %d did", n, leavers)
	}
}

// leave sends a request and closes its connection while the request runs. Before that, leave waits
// until an engine has the request, and for a part of the answer if the fault allows one. Afterwards
// leave waits until the engine notices the departure.
func leave(t *testing.T, s *site, fault, more string) {
	t.Helper()
	aborted := func() int64 { return s.engines[0].Stats().Aborted + s.engines[1].Stats().Aborted }
	busy := func() bool { return s.engines[0].Stats().InFlight+s.engines[1].Stats().InFlight > 0 }
	before := aborted()
	conn, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := chatBody("hello", more)
	req, err := http.NewRequest(http.MethodPost, s.url+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("x-sim-fault", fault)
	if err := req.Write(conn); err != nil {
		t.Fatal(err)
	}
	eventually(t, "an engine has the request", busy)
	if strings.Contains(more, "stream") && !strings.HasPrefix(fault, "hang") {
		conn.SetReadDeadline(time.Now().Add(soon))
		resp, err := http.ReadResponse(bufio.NewReader(conn), req)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(resp.Body, make([]byte, 300)); err != nil {
			t.Fatal(err)
		}
	}
	conn.Close()
	eventually(t, "the engine notices", func() bool { return aborted() > before })
}
