package agent

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/sim/engine"
)

// TestAdaptersAreAnnounced: the node's value has the engine's adapters, and how long ago each was
// used: by the engine's metrics, and by its KV events. The only model that is no adapter names the
// blocks of KV events.
func TestAdaptersAreAnnounced(t *testing.T) {
	sim, err := engine.New(engine.Config{
		Models:     []string{"tiny"},
		Adapters:   []engine.Adapter{{Name: "sql", Path: "/sql"}, {Name: "chat", Path: "/chat"}},
		DecodeStep: time.Millisecond, MaxLoRAs: 1,
		KVEvents: &engine.KVEvents{Endpoint: "tcp://127.0.0.1:0", ReplayEndpoint: "tcp://127.0.0.1:0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer sim.Close()
	c := testConfig(t, sim.URL())
	c.Events.Endpoint, c.Events.Replay = sim.KVEndpoints()
	c.Events.Listen = "unix://" + t.TempDir() + "/events.sock"
	a, etcd := startAgent(t, c), dialEtcd(t, shared.url)
	is := func(what, want string) {
		t.Helper()
		var last string
		defer func() {
			if t.Failed() {
				t.Logf("%s: %s", what, last)
			}
		}()
		eventually(t, what, func() bool {
			h := announced(t, etcd, a.NodeID())
			if h == nil {
				return false
			}
			last = fmt.Sprint(h.Models, h.AdapterSlots)
			for _, a := range h.Adapters {
				last += fmt.Sprintf(" %s of %s used %v;", a.Name, a.Base, a.IdleMs != nil)
			}
			return last == want
		})
	}
	is("listed", "[chat sql tiny] 0 chat of tiny used false; sql of tiny used false;")
	ask := func(model string, tokens int) {
		t.Helper()
		resp, err := http.Post(sim.URL()+"/v1/completions", "application/json", strings.NewReader(fmt.Sprintf(
			`{"model":%q,"prompt":%q,"max_tokens":1}`, model, strings.Repeat("abcd", tokens))))
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	ask("sql", 40)
	is("used", "[chat sql tiny] 1 chat of tiny used false; sql of tiny used true;")
	eventually(t, "KV events are followed", func() bool {
		return a.nodes[0].events.all()[0].Stats().Blocks > 0
	})
	sim.SetFault(&engine.Fault{Path: "/metrics", Status: 404}) // only the KV events tell now
	ask("chat", 40)
	is("both", "[chat sql tiny] 1 chat of tiny used true; sql of tiny used true;")
	h := announced(t, etcd, a.NodeID())
	now := time.Now()
	used := func(a cluster.Adapter) time.Time { at, _ := a.UsedAt(now); return at }
	if !used(h.Adapters[0]).After(used(h.Adapters[1])) {
		t.Errorf("chat ran last: %+v", h.Adapters)
	}
}

// TestDrainEndsChangesOfAdapters: a change that runs in the drain is answered, and does not hold
// the front.
func TestDrainEndsChangesOfAdapters(t *testing.T) {
	e := newFakeEngine(t)
	c := testConfig(t, e.URL)
	c.Etcd.Endpoints = nil
	var log bytes.Buffer
	c.Logger = slog.New(slog.NewTextHandler(io.MultiWriter(&log, t.Output()), nil))
	a := startAgent(t, c)
	type answer struct {
		status int
		body   string
		err    error
	}
	answers := make(chan answer, 1)
	go func() {
		body := strings.NewReader(`{"lora_name":"a","lora_path":"/p"}`)
		resp, err := client.Post(a.url()+"/load_lora_adapter", "", body)
		if err != nil {
			answers <- answer{err: err}
			return
		}
		defer resp.Body.Close()
		page, err := io.ReadAll(resp.Body)
		answers <- answer{resp.StatusCode, string(page), err}
	}()
	<-e.arrived
	if err := a.stop(t); err != nil {
		t.Error(err)
	}
	if got := <-answers; got.err != nil || got.status != 503 || !strings.Contains(got.body, "the agent is stopping") {
		t.Errorf("the change got %+v", got)
	}
	if strings.Contains(log.String(), "drain step failed") {
		t.Error("the change held a step of the drain")
	}
}
