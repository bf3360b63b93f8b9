package router_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/sim/engine"
)

func TestUnixSockets(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	engines := simulate(t, 2, func(c *engine.Config) { c.Listen = "unix:" + filepath.Join(dir, c.ID) })
	s := serve(t, engines)
	for _, more := range kinds {
		mustAll(t, more, together(8, func(i int) *reply { return s.chat(chatBody(fmt.Sprint(i), more)) }))
	}
	engines[0].Refuse()
	mustAll(t, "one is gone", together(16, func(i int) *reply {
		return s.chat(chatBody(fmt.Sprint("again ", i), plain))
	}))
}

// TestCutBodyNeverLooksWhole checks an answer whose engine dies in the middle. The client gets an
// error status if nothing has come by then.
func TestCutBodyNeverLooksWhole(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1))
	inputs := strings.Repeat(`"text",`, 400) + `"text"`
	body := `{"model":"sim","input":[` + inputs + `]}`
	whole := s.post("/v1/embeddings", body)
	if whole.status != 200 || whole.err != nil || len(whole.body) <= 256<<10 {
		t.Fatalf("%d bytes, %v", len(whole.body), whole.err)
	}
	if r := s.post("/v1/embeddings", body, "x-sim-fault", "truncate"); r.status < 500 &&
		!errors.Is(r.err, io.ErrUnexpectedEOF) {
		t.Errorf("%d: %d bytes, %v", r.status, len(r.body), r.err)
	}
}

// TestReloadLetsRunningRequestsFinish checks that a removed backend gets no new requests and
// finishes the running ones.
func TestReloadLetsRunningRequestsFinish(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 2))
	resp := s.begin("/v1/chat/completions", chatBody("hello", `,"stream":true,"max_tokens":200`))
	leaver := strings.TrimPrefix(resp.Header.Get("x-cgn-node"), "sim-")
	stays := s.engines[0]
	if leaver == "0" {
		stays = s.engines[1]
	}
	if err := s.Reload(t.Context(), []fleet.Backend{{URL: stays.URL(), ID: "stays"}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the new list is in force", func() bool { n := s.nodes(); return len(n) == 1 && n["stays"].Eligible })
	for i, r := range together(8, func(i int) *reply { return s.chat(chatBody(fmt.Sprint(i), plain)) }) {
		if r.status != 200 || r.node() != "stays" {
			t.Errorf("request %d: %v", i, r)
		}
	}
	page, err := io.ReadAll(resp.Body)
	if err != nil || !strings.HasSuffix(string(page), "data: [DONE]\n\n") {
		t.Errorf("the running stream: %v", err)
	}
}

// TestSlowReaderIsCut checks that a client that reads nothing of an endless stream is cut and its
// engine freed.
func TestSlowReaderIsCut(t *testing.T) {
	t.Parallel()
	engines := simulate(t, 1, func(c *engine.Config) { c.DecodeStep = 20 * time.Microsecond })
	s := serve(t, engines, func(c *router.Config) { c.Limits.SlowReader = config.Duration(300 * time.Millisecond) })
	conn, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequest(http.MethodPost, s.url+"/v1/chat/completions",
		strings.NewReader(chatBody("hello", `,"stream":true,"max_tokens":100000`)))
	if err != nil {
		t.Fatal(err)
	}
	if err := req.Write(conn); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is cut", func() bool {
		return s.metrics().sum("cgn_router_client_cut_total", `reason="slow_reader"`) == 1
	})
	eventually(t, "the engine is freed", func() bool {
		st := engines[0].Stats()
		return st.InFlight == 0 && st.Aborted == 1
	})
	if n := s.nodes()["sim-0"]; n.State != "healthy" || n.Opens != 0 {
		t.Errorf("%+v", n)
	}
	// The kernel's buffer for a client that does not read is dropped with the connection.
	conn.SetReadDeadline(time.Now().Add(soon))
	if n, err := io.Copy(io.Discard, conn); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%d bytes, %v", n, err)
	}
}
