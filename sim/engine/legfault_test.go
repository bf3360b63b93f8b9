package engine

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

// TestFaultsOfALeg: a fault strikes the leg that it names, whichever request it comes with.
func TestFaultsOfALeg(t *testing.T) {
	p, d := pair(t)
	params := prefilled(t, p, "hello")
	for leg, body := range map[Leg]string{
		LegPrefill: chatBody("hello", `,"max_tokens":1,`+wishDecode), LegDecode: decodeBody("hello", params),
		LegWhole: chatBody("hello", ""),
	} {
		for _, strikes := range []Leg{LegPrefill, LegDecode, LegWhole} {
			status := 200
			if leg == strikes {
				status = 429
			} else if leg == LegDecode {
				body = decodeBody("hello", prefilled(t, p, "hello")) // the blocks of the last try are used up
			}
			res := post(t, d, "/v1/chat/completions", body, "x-sim-fault", "status=429,leg="+string(strikes))
			object(t, res, status)
		}
	}
	d.SetFault(&Fault{Status: 503, Leg: LegDecode, Count: 1})
	object(t, post(t, d, "/v1/chat/completions", chatBody("hello", "")), 200)
	body := decodeBody("hello", prefilled(t, p, "hello"))
	object(t, post(t, d, "/v1/chat/completions", body), 503)
	object(t, post(t, d, "/v1/chat/completions", body), 200) // the count is used up, the blocks are not
	object(t, post(t, d, "/v1/chat/completions", body, "x-sim-fault", "leg=x"), 400)
	s, _ := legs(t, ConnectorSGLang)
	object(t, post(t, s, "/v1/chat/completions", sglangBody(s, "x", `,"bootstrap_room":1`), "x-sim-fault",
		"status=418,leg=prefill"), 418)
	r, _ := legs(t, ConnectorTRTLLM)
	context := chatBody("x", `,"disaggregated_params":{"request_type":"context_only"}`)
	object(t, post(t, r, "/v1/chat/completions", context, "x-sim-fault", "status=418,leg=prefill"), 418)
}

// TestFaultsOfThePrefill: what a router gets from a prefill that fails in each way, and what
// becomes of the blocks.
func TestFaultsOfThePrefill(t *testing.T) {
	ask := chatBody("hello", `,"max_tokens":1,`+wishDecode)
	for fault, check := range map[string]func(t *testing.T, p, d *Engine, res *http.Response, err error){
		"no_transfer": func(t *testing.T, p, _ *Engine, res *http.Response, _ error) {
			if doc := object(t, res, 200); doc["kv_transfer_params"] != nil || p.Stats().Lent != 0 {
				t.Errorf("%v, %+v", doc["kv_transfer_params"], p.Stats())
			}
		},
		"lose_blocks": func(t *testing.T, p, d *Engine, res *http.Response, _ error) {
			params := jsonOf(t, object(t, res, 200)["kv_transfer_params"])
			chatted(t, d, decodeBody("hello", params), 500)
			if p.Stats().Lent != 0 || d.Stats().LostBlocks != 1 {
				t.Errorf("%+v, %+v", p.Stats(), d.Stats())
			}
		},
		"crash=10ms": func(t *testing.T, p, d *Engine, res *http.Response, _ error) {
			params := jsonOf(t, object(t, res, 200)["kv_transfer_params"])
			eventually(t, "the engine is back", func() bool { c := p.core(); return c != nil && c.start == 2 })
			chatted(t, d, decodeBody("hello", params), 500)
			if d.Stats().LostBlocks != 1 {
				t.Errorf("%+v", d.Stats())
			}
		},
		// The prompt is computed, and the connection ends before the answer.
		"die_after=1": func(t *testing.T, p, _ *Engine, _ *http.Response, err error) {
			if err == nil {
				t.Error("the prefill was answered")
			}
			eventually(t, "the blocks are kept", func() bool { return p.Stats().LentRequests == 1 })
		},
		"reset": func(t *testing.T, p, _ *Engine, _ *http.Response, err error) {
			if err == nil || p.Stats().Lent != 0 {
				t.Errorf("%v, %+v", err, p.Stats())
			}
		},
		"garbage": func(t *testing.T, p, _ *Engine, _ *http.Response, err error) {
			if err == nil || p.Stats().Lent != 0 {
				t.Errorf("%v, %+v", err, p.Stats())
			}
		},
		"slow=1ms": func(t *testing.T, _, _ *Engine, res *http.Response, _ error) { object(t, res, 200) },
	} {
		t.Run(fault, func(t *testing.T) {
			p, d := pair(t)
			res, err := send(p, ask, "x-sim-fault", fault+",leg=prefill")
			if err == nil {
				defer res.Body.Close()
			}
			check(t, p, d, res, err)
		})
	}
}

// TestFaultsOfTheDecode: a decode that dies after some tokens has read the blocks. One that dies
// before its first byte has not.
func TestFaultsOfTheDecode(t *testing.T) {
	for fault, lent := range map[string]int64{"reset": 1, "die_after=3": 0} {
		p, d := pair(t)
		stream := strings.Replace(decodeBody("hello", prefilled(t, p, "hello")), "{", `{"stream":true,`, 1)
		res, err := send(d, stream, "x-sim-fault", fault+",leg=decode")
		if (err == nil) == (lent == 1) {
			t.Errorf("%s: %v", fault, err)
		}
		if err == nil {
			list, err := events(res.Body)
			_ = res.Body.Close()
			if err == nil || len(list) != 1+3 {
				t.Errorf("%s: %d events, %v", fault, len(list), err)
			}
		}
		if n := p.Stats().LentRequests; n != lent {
			t.Errorf("%s: %d prompts are kept, want %d", fault, n, lent)
		}
	}
}

// TestClientLeavesBeforeTheDecode: blocks that nobody reads are kept until their lease ends.
func TestClientLeavesBeforeTheDecode(t *testing.T) {
	p, d := pair(t, func(c *Config) { c.BlockLease = 200 * time.Millisecond })
	body := decodeBody("hello", prefilled(t, p, "hello"))
	left := make(chan struct{})
	go func() {
		defer close(left)
		client := http.Client{Timeout: 20 * time.Millisecond}
		r, err := http.NewRequest(http.MethodPost, d.URL()+"/v1/chat/completions", strings.NewReader(body))
		if err != nil {
			t.Error(err)
			return
		}
		r.Header.Set("x-sim-fault", "slow=1h")
		if res, err := client.Do(r); err == nil {
			_ = res.Body.Close()
			t.Error("the decode was answered")
		}
	}()
	<-left
	eventually(t, "the decode is aborted", func() bool { return d.Stats().Aborted == 1 })
	eventually(t, "the lease ends", func() bool { s := p.Stats(); return s.ExpiredLeases == 1 && s.UsedBlocks == 0 })
	chatted(t, d, body, 500)
}
