package router_test

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// ranked makes an engine with two data-parallel ranks.
func ranked(c *engine.Config) { c.DataParallel = 2 }

// ranks waits until the router knows so many ranks of all nodes together.
func (s *site) ranks(n int) {
	s.t.Helper()
	eventually(s.t, fmt.Sprintf("%d ranks are known", n), func() bool {
		return len(s.explain(chatBody("hello", "")).Candidates) == n
	})
}

// rankOf returns the rank that computed the engine's last chat, by the header that the engine got.
func rankOf(t *testing.T, e *engine.Engine, path string) string {
	t.Helper()
	return strings.Join(lastTo(t, e, path).Header.Values(engine.RankHeader), ",")
}

// ofRank returns /debug/route's entry for a rank of a node.
func (e *explanation) ofRank(node string, rank int) candidate {
	for _, c := range e.Candidates {
		if c.Node == node && c.Rank != nil && *c.Rank == rank {
			return c
		}
	}
	return candidate{}
}

// TestRanksOfABackend checks that prompts stay at the rank that holds them, that each rank has a
// cache of its own, and that the engine is told the rank.
func TestRanksOfABackend(t *testing.T) {
	t.Parallel()
	engines := append(simulate(t, 1, ranked), simulate(t, 1)...)
	s := serve(t, engines)
	s.ranks(3)
	at := map[string]string{}
	for doc := range 8 {
		body := chatBody(document(doc, 4000), plain)
		for round := range 3 {
			r := s.chat(body)
			if r.status != 200 {
				t.Fatal(r)
			}
			where := r.node()
			if r.node() == "sim-0" {
				where += "/" + rankOf(t, engines[0], "/v1/chat/completions")
			} else if rank := rankOf(t, engines[1], "/v1/chat/completions"); rank != "" {
				t.Errorf("an engine with one rank is told rank %s", rank)
			}
			if cached := !strings.Contains(string(r.body), `"cached_tokens":0`); cached != (round > 0) {
				t.Errorf("document %d, round %d at %s: %s", doc, round, where, r.body)
			}
			if round > 0 && at[body] != where {
				t.Errorf("document %d went from %s to %s", doc, at[body], where)
			}
			at[body] = where
		}
		e := s.explain(body)
		want := at[body]
		for _, c := range e.Candidates {
			name := c.Node
			if c.Rank != nil {
				name += fmt.Sprint("/", *c.Rank)
			}
			if (c.Matched > 0) != (name == want) {
				t.Errorf("document %d is at %s, and matches %d blocks of %s", doc, want, c.Matched, name)
			}
		}
	}
	used := map[string]bool{}
	for _, where := range at {
		used[where] = true
	}
	if len(used) != 3 {
		t.Errorf("only %v of three ranks were used", used)
	}
	for i, r := range engines[0].RankStats() {
		if r.Completed == 0 || r.CacheHits == 0 {
			t.Errorf("rank %d: %+v", i, r)
		}
	}
}

// TestPinsByRank checks each way to pin a rank, and its errors.
func TestPinsByRank(t *testing.T) {
	t.Parallel()
	s := serve(t, append(simulate(t, 1, ranked), simulate(t, 1)...))
	s.ranks(3)
	body := chatBody(document(1, 2000), plain)
	pinned := func(rank string) string { return strings.TrimSuffix(body, "}") + `,"nvext":{"dp_rank":` + rank + `}}` }
	for i, c := range []struct {
		body   string
		header []string
		want   string
	}{
		{pinned("1"), nil, "1"},
		{pinned("0"), []string{"x-cgn-node", "sim-0"}, "0"},
		{body, []string{"x-dynamo-dp-rank", "1"}, "1"},
		{body, []string{"x-data-parallel-rank", "1"}, "1"},
		{pinned("0"), []string{"x-dynamo-dp-rank", "1"}, "1"},
		{pinned("0"), []string{"x-data-parallel-rank", "1"}, "1"},
		{body, []string{"x-data-parallel-rank", "0", "x-dynamo-dp-rank", "1"}, "1"},
		{body, []string{"x-data-parallel-rank", "0", "x-cgn-node", "sim-0"}, "0"},
	} {
		r := s.chat(c.body, c.header...)
		rank := rankOf(t, s.engines[0], "/v1/chat/completions")
		if r.status != 200 || r.node() != "sim-0" || rank != c.want {
			t.Errorf("%d: rank %q, want %q: %v", i, rank, c.want, r)
		}
		if strings.Contains(string(lastTo(t, s.engines[0], "/v1/chat/completions").Body), "nvext") {
			t.Error("the engine got nvext")
		}
	}
	for i, c := range []struct {
		body   string
		header []string
		want   string
	}{
		{pinned("2"), nil, `"param":"nvext.dp_rank"`},
		{pinned("2"), nil, "send a number from 0 to 1"},
		{body, []string{"x-dynamo-dp-rank", "4294967295"}, `"param":"x-dynamo-dp-rank"`},
		{body, []string{"x-data-parallel-rank", "2"}, `"param":"x-data-parallel-rank"`},
		{body, []string{"x-data-parallel-rank", "one"}, `"param":"x-data-parallel-rank"`},
		{body, []string{"x-data-parallel-rank", "1", "x-cgn-node", "sim-1"}, "no node that may answer has data-parallel ranks"},
	} {
		if r := s.chat(c.body, c.header...); r.status != 400 || !strings.Contains(string(r.body), c.want) {
			t.Errorf("%d: %v", i, r)
		}
	}
	if e := s.explain(body, "x-data-parallel-rank", "1"); e.Winner != "sim-0" || e.WinnerRank == nil ||
		*e.WinnerRank != 1 || e.ofRank("sim-0", 0).Filter != "dp_rank" {
		t.Errorf("%+v", e)
	}
}

// TestRankOfAClientThatMayNotSteer checks that the client gets an error that names the header. A
// request without the header is answered.
func TestRankOfAClientThatMayNotSteer(t *testing.T) {
	t.Parallel()
	own := addressOfThisHost(t)
	s := serve(t, simulate(t, 1, ranked), func(c *router.Config) {
		c.Router.Listen, c.Router.InsecureListen = net.JoinHostPort(own, "0"), true
	})
	eventually(t, "two ranks are known", func() bool {
		_, page := s.get(s.admin + "/debug/fleet")
		return strings.Contains(string(page), `"dp_rank": 1`)
	})
	body := chatBody(document(1, 2000), plain)
	mustAll(t, "without a pin", []*reply{s.chat(body)})
	for _, header := range []string{"x-data-parallel-rank", "x-dynamo-dp-rank"} {
		for rank, want := range map[string]int{"0": 403, "1": 403, "7": 403, "x": 400} {
			r := s.chat(body, header, rank)
			if r.status != want || r.node() != "" || !strings.Contains(string(r.body), `"param":"`+header+`"`) {
				t.Errorf("%s %s: %v, want %d", header, rank, r, want)
			}
		}
	}
}

// TestGaugesOfRanks checks that the node's gauges are the sums over its ranks.
func TestGaugesOfRanks(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1, ranked), scored)
	s.ranks(2)
	var leave []func()
	for rank := range 2 {
		resp, err := s.send(t.Context(), "POST", "/v1/chat/completions", chatBody(document(rank, 4000), streaming),
			"x-sim-fault", "stall_after=1", "x-data-parallel-rank", fmt.Sprint(rank))
		if err != nil {
			t.Fatal(err)
		}
		leave = append(leave, func() { resp.Body.Close() })
	}
	blocks := 0.0
	for rank := range 2 {
		blocks += float64(s.explain(chatBody(document(rank, 4000), "")).Blocks)
	}
	eventually(t, "both prompts count", func() bool {
		p := s.metrics()
		return p.sum("cgn_router_node_active_blocks", `node="sim-0"`) == blocks &&
			p.sum("cgn_router_node_in_flight", `node="sim-0"`) == 2
	})
	e := s.explain(chatBody("hello", ""))
	_, page := s.get(s.admin + "/debug/fleet")
	if e.ofRank("sim-0", 0).Matched != 0 || !strings.Contains(string(page), `"dp_rank": 1,
          "in_flight": 1,`) {
		t.Errorf("%s", page)
	}
	for _, f := range leave {
		f()
	}
}

// eventsOfRanks checks that the router's report of each rank's cache equals the engine's own count.
func (s *site) eventsOfRanks(node string) {
	s.t.Helper()
	prompt := ids(1000, 100, nil)
	at := func(what string, want ...int) {
		s.t.Helper()
		var e explanation
		defer func() {
			if s.t.Failed() {
				s.t.Logf("%+v", e)
			}
		}()
		eventually(s.t, what, func() bool {
			e = s.explainAs("completions", prompt)
			return e.ofRank(node, 0).Matched == want[0] && e.ofRank(node, 1).Matched == want[1]
		})
	}
	at("nothing", 0, 0)
	for rank := range 2 {
		r := s.post("/v1/completions", prompt, "x-cgn-node", node, "x-data-parallel-rank", fmt.Sprint(rank))
		if r.status != 200 || !strings.Contains(string(r.body), `"cached_tokens":0`) {
			s.t.Fatal(r)
		}
		if rank == 0 {
			at("96 of 100 tokens are whole blocks of 32", 6, 0)
		} else {
			at("at both ranks", 6, 6)
		}
	}
	for i := range 3 { // fills the cache of rank 0
		r := s.post("/v1/completions", ids(100_000*(i+1), 32*250, nil), "x-cgn-node", node, "x-data-parallel-rank", "0")
		if r.status != 200 {
			s.t.Fatal(r)
		}
	}
	at("nothing at rank 0 after evictions", 0, 6)
	r := s.post("/v1/completions", prompt, "x-cgn-node", node)
	if r.header.Get("x-cgn-overlap") != "6/6" || !strings.Contains(string(r.body), `"cached_tokens":96`) {
		s.t.Errorf("%s: %s", r.header.Get("x-cgn-overlap"), r.body)
	}
}

// TestEventsOfBackendsRanks checks that the router follows the KV events of each rank, and notices
// ranks that the engine's metrics name.
func TestEventsOfBackendsRanks(t *testing.T) {
	t.Parallel()
	for _, set := range []string{"", ",data_parallel_size=2"} {
		t.Run("set"+set, func(t *testing.T) {
			t.Parallel()
			engines := simulate(t, 1, publishing, ranked)
			pub, replay := engines[0].KVEndpoints()
			s := serve(t, nil, func(c *router.Config) {
				options := ",id=sim-0,kv-events=" + pub + ",kv-replay=" + replay + set
				c.Router.Backends = []string{engines[0].URL() + options}
				c.Models = []router.ModelConfig{{Name: "sim", Tokenizer: "none"}}
			})
			eventually(t, "both ranks report", func() bool {
				return s.eligible() == 1 && s.metrics().sum("cgn_router_caches_engines") == 2 &&
					s.metrics().sum("cgn_router_kv_events_following", `node="sim-0"`) == 1
			})
			s.eventsOfRanks("sim-0")
			if others := s.metrics().sum("cgn_router_kv_events_others_total"); others != 0 {
				t.Errorf("%v events of other ranks", others)
			}
		})
	}
}

// TestRanksOfAnAgent checks that an agent announces the ranks of its engine with their load,
// reports the blocks of each, and passes the router's rank on.
func TestRanksOfAnAgent(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	engines := simulate(t, 1, publishing, ranked)
	c, err := agentConfig("a", engines[0].URL(), etcd.endpoint)
	if err != nil {
		t.Fatal(err)
	}
	c.Events.Endpoint, c.Events.Replay = engines[0].KVEndpoints()
	c.Events.Listen = "unix://" + filepath.Join(t.TempDir(), "events.sock")
	startAgent(t, c)
	s := serve(t, nil, func(c *router.Config) {
		c.Etcd.Endpoints = []string{etcd.endpoint}
		c.Models = []router.ModelConfig{{Name: "sim", Tokenizer: "none"}}
	})
	eventually(t, "both ranks report", func() bool {
		return s.eligible() == 1 && s.metrics().sum("cgn_router_caches_engines") == 2
	})
	s.eventsOfRanks("a")
	if r := s.post("/v1/completions", ids(5, 64, nil), "x-data-parallel-rank", "1"); r.status != 200 ||
		rankOf(t, engines[0], "/v1/completions") != "1" {
		t.Errorf("rank %q: %v", rankOf(t, engines[0], "/v1/completions"), r)
	}

	// Another client's requests at rank 1 count there.
	direct := &site{t: t, url: engines[0].URL(), client: s.client}
	var streams []func() error
	for range 3 {
		body := chatBody("hello", `,"stream":true,"max_tokens":2000`)
		streams = append(streams, direct.begin("/v1/chat/completions", body, engine.RankHeader, "1").Body.Close)
	}
	eventually(t, "requests of others", func() bool {
		e := s.explainAs("completions", ids(5, 64, nil))
		return e.ofRank("a", 1).Others == 3 && e.ofRank("a", 0).Others == 0
	})
	for _, end := range streams {
		if err := end(); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "no requests of others", func() bool {
		e := s.explainAs("completions", ids(5, 64, nil))
		return !slices.ContainsFunc(e.Candidates, func(c candidate) bool { return c.Others > 0 })
	})
}

// TestRanksWithoutKVEvents checks that a router that follows no KV events predicts the cache of
// each rank by itself, and keeps new prompts away from the rank with requests by its books. The
// engine publishes events all the same.
func TestRanksWithoutKVEvents(t *testing.T) {
	for _, mode := range []string{"score", "cost"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			engines := simulate(t, 1, publishing, ranked)
			pub, replay := engines[0].KVEndpoints()
			site := func(c *router.Config) {
				c.Router.Mode = mode
				c.Models = []router.ModelConfig{{Name: "sim", Tokenizer: "none"}}
				c.Router.Backends = []string{engines[0].URL() + ",id=sim-0,kv-events=" + pub + ",kv-replay=" + replay}
			}
			hears, s := serve(t, nil, site), serve(t, nil, deaf, site)
			eventually(t, "another router follows the events", func() bool {
				return hears.metrics().sum("cgn_router_caches_engines") == 2
			})
			eventually(t, "both ranks are known", func() bool {
				return s.eligible() == 1 && len(s.explainAs("completions", ids(1, 10, nil)).Candidates) == 2
			})
			computed := func(prompt string, header ...string) (rank string) {
				t.Helper()
				if r := s.post("/v1/completions", prompt, header...); r.status != 200 {
					t.Fatal(r)
				}
				return rankOf(t, engines[0], "/v1/completions")
			}
			for rank := range 2 {
				prompt, name := ids(10_000*(rank+1), 400, nil), fmt.Sprint(rank)
				computed(prompt, "x-data-parallel-rank", name)
				e := s.explainAs("completions", prompt)
				here, other := e.ofRank("sim-0", rank).Matched, e.ofRank("sim-0", 1-rank).Matched
				if here != e.Blocks || other != 0 || here == 0 {
					t.Errorf("rank %d is predicted to hold %d of %d blocks, and the other one %d", rank, here, e.Blocks, other)
				}
				for range 3 {
					if got := computed(prompt); got != name {
						t.Errorf("the prompt went from rank %d to rank %s", rank, got)
					}
				}
			}
			for rank := range 2 {
				var streams []io.Closer
				for i := range 4 { // score counts one request on a rank for no more than a tie
					prompt := ids(100_000*(4*rank+i+1), 400, map[string]any{"stream": true})
					streams = append(streams, s.begin("/v1/completions", prompt, "x-sim-fault", "stall_after=1",
						"x-data-parallel-rank", fmt.Sprint(rank)).Body)
				}
				for i := range 4 {
					if got := computed(ids(1_000_000*(rank+1)+10_000*i, 40, nil)); got != fmt.Sprint(1-rank) {
						t.Errorf("a new prompt went to rank %s, and rank %d has requests already", got, rank)
					}
				}
				for _, stream := range streams {
					stream.Close()
				}
				eventually(t, "the requests have left its book", func() bool {
					return s.metrics().sum("cgn_router_node_active_blocks", `node="sim-0"`) == 0
				})
			}
			for _, name := range []string{"caches_engines", "kv_events_following", "kv_events_untokenised"} {
				if got := s.metrics().sum("cgn_router_" + name); got != 0 {
					t.Errorf("%s: %v", name, got)
				}
			}
			if n := s.log.count("level=ERROR"); n != 0 {
				t.Errorf("%d errors are logged", n)
			}
		})
	}
}
