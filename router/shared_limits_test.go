package router_test

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/redisserver"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/router/keys"
	"github.com/cognitora/dataplane/router/limits"
)

// TestSharedLimits checks that two routers hold a key to its limits together, that what a request
// did not use comes back on both, and what becomes of requests while Redis is away.
func TestSharedLimits(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"exact", "lease"} {
		for _, on := range []string{"local", "closed", "open"} {
			t.Run(mode+" "+on, func(t *testing.T) {
				t.Parallel()
				sharedLimits(t, mode, on)
			})
		}
	}
}

func sharedLimits(t *testing.T, mode, on string) {
	redis := redisserver.Start(t)
	k := newKeyring(t)
	key, _ := k.add(func(r *keys.Record) {
		r.Limits = limits.Rates{RequestsPerDay: 30, TokensPerDay: 100000, Concurrent: 10, Budget: 1e9}
	})
	other, _ := k.add(func(r *keys.Record) { r.Limits = limits.Rates{RequestsPerDay: 20} })
	engines := simulate(t, 1)
	with := func(c *router.Config) {
		c.RateLimit.Redis, c.RateLimit.Mode, c.RateLimit.OnFailure = []string{redis.At}, mode, on
		c.RateLimit.Timeout = config.Duration(5 * time.Second) // the machine is busy
		c.LimitTables = []router.LimitTable{{Model: "sim", Rates: limits.Rates{RequestsPerDay: 1e6}}}
	}
	sites := []*site{serve(t, engines, k.locked, with), serve(t, engines, k.locked, with)}
	eventually(t, "the routers know each other", func() bool {
		return sites[0].metrics().sum("cgn_router_shared_limits_routers") == 2 &&
			sites[1].metrics().sum("cgn_router_shared_limits_routers") == 2
	})
	body := chatBody("hello", plain) // 4096 tokens are reserved for its answer
	left := 100000
	for i := range 30 {
		s := sites[i%2]
		r := s.chat(body, bearer(key)...)
		mustAll(t, fmt.Sprint("request ", i), []*reply{r})
		s.idle()
		if n := r.header.Get("x-ratelimit-limit-requests"); n != "30" {
			t.Errorf("limit %s", n)
		}
		left, _ = strconv.Atoi(r.header.Get("x-ratelimit-remaining-tokens"))
	}
	if left < 90000 || left > 99900 {
		t.Errorf("%d tokens are left", left)
	}
	for _, s := range sites {
		r := s.chat(body, bearer(key)...)
		if r.status != 429 || !strings.Contains(string(r.body), "requests_per_day") ||
			r.header.Get("retry-after") == "" {
			t.Errorf("%v, %v", r, r.header)
		}
	}
	p := sites[0].metrics()
	if p.sum("cgn_router_shared_limits_up") != 1 || p.sum("cgn_router_shared_limits_round_trips_total") == 0 {
		t.Error("the metrics do not say that Redis is asked")
	}

	redis.Kill()
	withoutRedis(t, sites[0], on, func() int { return sites[0].chat(body, bearer(other)...).status })
	redis.Start()
	eventually(t, "Redis is asked again", func() bool {
		return sites[0].metrics().sum("cgn_router_shared_limits_up") == 1
	})
}

// TestSharedTogether: 200 clients at the same time, of two routers, use at most a limit of tokens.
func TestSharedTogether(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"exact", "lease"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			at := redisserver.Start(t).At
			const limit = 8000
			k := newKeyring(t)
			key, _ := k.add(func(r *keys.Record) { r.Limits = limits.Rates{TokensPerDay: limit} })
			engines := simulate(t, 1)
			with := func(c *router.Config) {
				c.RateLimit.Redis, c.RateLimit.Mode, c.RateLimit.OnFailure = []string{at}, mode, "closed"
				c.RateLimit.Timeout = config.Duration(5 * time.Second)
			}
			sites := []*site{serve(t, engines, k.locked, with), serve(t, engines, k.locked, with)}
			var used, answered atomic.Int64
			body := chatBody("a", `,"max_tokens":100,"ignore_eos":true`)
			together(200, func(i int) *reply {
				r := sites[i%2].chat(body, bearer(key)...)
				if r.status == 200 {
					prompt, completion := charged(t, r)
					used.Add(prompt + completion)
					answered.Add(1)
				} else if r.status != 429 {
					t.Error(r)
				}
				return r
			})
			if n := used.Load(); n > limit || n < limit/4 {
				t.Errorf("%d tokens are used of %d", n, limit)
			}
			t.Logf("%d requests were answered, with %d tokens of %d", answered.Load(), used.Load(), limit)
		})
	}
}

// withoutRedis checks one of two routers while Redis is away. ask asks with a key that has 20
// requests a day.
func withoutRedis(t *testing.T, s *site, on string, ask func() int) {
	t.Helper()
	statuses := map[int]int{}
	eventually(t, "the router does without Redis", func() bool {
		statuses[ask()]++
		return s.metrics().sum("cgn_router_shared_limits_up") == 0
	})
	for range 20 {
		statuses[ask()]++
	}
	alone := s.metrics().sum("cgn_router_shared_limits_alone_total", `on_failure="`+on+`"`)
	switch {
	case alone == 0 || s.metrics().sum("cgn_router_shared_limits_failures_total") == 0:
		t.Error("the metrics do not say that Redis is away")
	case on == "closed" && (statuses[503] < 18 || statuses[429] > 0):
		t.Errorf("closed: %v", statuses)
	case on == "local" && (statuses[200] < 10 || statuses[200] > 12 || statuses[503] > 0):
		t.Errorf("local, of a part of 10: %v", statuses)
	case on == "open" && (statuses[200] != 20 || statuses[503] > 0):
		t.Errorf("open, of 20 that this router counts: %v", statuses)
	}
}

// TestSharedLimitSettings checks what is said of settings that cannot be.
func TestSharedLimitSettings(t *testing.T) {
	for text, set := range map[string]func(*router.RateLimitConfig){
		"ratelimit.redis[0]":               func(c *router.RateLimitConfig) { c.Redis = []string{"redis"} },
		"ratelimit.redis: 2 addresses":     func(c *router.RateLimitConfig) { c.Redis = []string{"a:1", "b:1"} },
		"ratelimit.sentinel_master":        func(c *router.RateLimitConfig) { c.Master = "limits" },
		"ratelimit.sentinel_password_file": func(c *router.RateLimitConfig) { c.SentinelsWord = "file" },
		"ratelimit.timeout":                func(c *router.RateLimitConfig) { c.Timeout = config.Duration(time.Minute) },
		"ratelimit.database":               func(c *router.RateLimitConfig) { c.Database = -1 },
		"ratelimit.connections":            func(c *router.RateLimitConfig) { c.Connections = 0 },
		"ratelimit.username":               func(c *router.RateLimitConfig) { c.Username = "limits" },
		"ratelimit.cert":                   func(c *router.RateLimitConfig) { c.Cert, c.TLS = "file", true },
		"ratelimit.mode: does nothing":     func(c *router.RateLimitConfig) { c.Mode = "exact" },
		"ratelimit.on_failure: does":       func(c *router.RateLimitConfig) { c.OnFailure = "closed" },
		"ratelimit.password_file: does":    func(c *router.RateLimitConfig) { c.Password = "file" },
		"ratelimit.tls":                    func(c *router.RateLimitConfig) { c.CA = "file" },
	} {
		c := settings(t, &logged{t: t})
		c.Router.Backends = []string{"http://127.0.0.1:1"}
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		set(&c.RateLimit)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
