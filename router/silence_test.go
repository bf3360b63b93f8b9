package router_test

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/ctl/route"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestSilenceOfNodes checks that requests leave a node whose stream stands still, and that a client
// that does not read makes no node look silent.
func TestSilenceOfNodes(t *testing.T) {
	t.Parallel()
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	engines := simulate(t, 2, func(c *engine.Config) { c.DecodeStep = 20 * time.Microsecond })
	s := serve(t, engines)
	one := 1
	engines[0].SetFault(&engine.Fault{StallAfter: &one, Count: 1})
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	long := chatBody("hello", `,"stream":true,"max_tokens":100000`)
	silent, err := s.send(ctx, http.MethodPost, "/v1/chat/completions", long, "x-cgn-node", "sim-0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Body.Close()
	for range 2 {
		conn, err := net.Dial("tcp", s.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		req, err := http.NewRequest(http.MethodPost, s.url+"/v1/chat/completions", strings.NewReader(long))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("x-cgn-node", "sim-1")
		if err := conn.(*net.TCPConn).SetReadBuffer(4096); err != nil {
			t.Fatal(err)
		}
		if err := req.Write(conn); err != nil {
			t.Fatal(err)
		}
	}
	stalled := func() map[string]float64 {
		out, err := ctltest.Run(t, route.Command, map[string]string{"CGN_ADMIN": s.admin}, "route", "explain",
			"--prompt", "hello", "-o", "json")
		var e leg.Explanation
		if err == nil {
			err = json.Unmarshal([]byte(out), &e)
		}
		if err != nil {
			t.Fatal(err)
		}
		found := map[string]float64{}
		for _, c := range e.Candidates {
			found[c.Node] = c.Expected.Delay
		}
		return found
	}
	eventually(t, "the silent node counts as stalled", func() bool { return stalled()["sim-0"] > 2 })
	if busy := engines[1].Stats().InFlight; busy != 2 || stalled()["sim-1"] != 0 {
		t.Errorf("%d answers are held up by their clients; %v", busy, stalled())
	}
	for range 8 {
		if r := s.chat(chatBody("hello", plain)); r.node() != "sim-1" {
			t.Errorf("beside a silent stream: %v", r)
		}
	}
	leave()
	eventually(t, "without a stream no node is silent", func() bool { return stalled()["sim-0"] == 0 })
}
