package trust

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/router/keys"
)

// TestTrust checks for TRUST_FOR that nobody is let in who should not be, that nobody is refused
// who should not be, and that all is counted exactly.
func TestTrust(t *testing.T) {
	if os.Getenv("TRUST") == "" {
		t.Skip("TRUST names no folder with the programs (make check-trust)")
	}
	lasts, err := time.ParseDuration(os.Getenv("TRUST_FOR"))
	if err != nil {
		t.Fatal("TRUST_FOR: ", err)
	}
	now := time.Now().UTC()
	if end := now.Add(2*lasts + 5*time.Minute); end.Month() != now.Month() {
		t.Fatal("budgets begin anew with the month, in UTC, so the test cannot run across its end")
	}
	for _, c := range [][2]string{{"exact", "closed"}, {"lease", "local"}} {
		if only := os.Getenv("TRUST_MODE"); only != "" && only != c[0] {
			continue
		}
		t.Run(c[0]+" "+c[1], func(t *testing.T) { part(t, c[0], c[1], lasts/2) })
	}
}

// part runs the test with a mode of [ratelimit].
func part(t *testing.T, mode, on string, lasts time.Duration) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // of the test's own identities
	s := startSite(t, mode, on)
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	all.Go(func() { s.stalls.watch(ctx) })
	before := make([]engineStats, len(models))
	crowd := s.crowd()
	for i := range models {
		before[i] = s.stats(i)
	}
	for router := range s.routers {
		for _, c := range crowd[router] {
			for range c.n {
				all.Go(func() { s.keepAsking(ctx, router, c.client, c.every) })
			}
		}
		all.Go(func() { s.victims(ctx, router) })
		all.Go(func() { s.expiring(ctx, router) })
	}
	all.Go(func() { s.damage(ctx) })
	all.Go(func() { s.wires.run(ctx) })
	all.Go(func() {
		for turn := 1; pause(ctx, 7*time.Second); turn++ {
			s.reload(turn)
		}
	})
	all.Go(func() {
		for pause(ctx, 40*time.Second) {
			s.restartEtcd()
		}
	})
	s.conduct(time.Now().Add(lasts))
	stop()
	all.Wait()
	lines := s.logs()
	s.judgeUnavailable()
	if s.books.audits.exact == 0 {
		s.books.broken("counts: no comparison with Redis was exact")
	}
	s.engineCounts(before)
	s.unharmed()
	t.Log(s.report(lines))
}

// poor are the keys of a tenant whose budget ends, one for each router.
type poor struct {
	tenant string
	keys   [2]string
}

// conduct lets Redis live and die in turn, and compares the counts each time.
func (s *site) conduct(until time.Time) {
	s.gate.Lock()
	from := s.mark()
	s.gate.Unlock()
	for turn := 0; time.Now().Before(until); turn++ {
		ctx, stop := context.WithCancel(context.Background())
		var all sync.WaitGroup
		p := s.makePoor(turn)
		for router := range s.routers {
			c := &client{kind: "with a budget that ends", tenant: p.tenant, model: "small", counted: true,
				completions: true, key: func() string { return p.keys[router] }, may: []int{200, 429}}
			for range 3 {
				all.Go(func() { s.keepAsking(ctx, router, c, 100*time.Millisecond) })
			}
		}
		s.calm(12 * time.Second)
		s.gate.Lock()
		to := s.mark()
		s.compare(from, to, true, false)
		s.admitted("rate", to.sums["answers of rate"]-from.sums["answers of rate"], to.at.Sub(from.at))
		s.spent(p, to, 1)
		s.gate.Unlock()
		if time.Now().After(until) {
			stop()
			all.Wait()
			return
		}
		what := fault(turn) % faults
		s.redis.suffer(what, []time.Duration{8, 3, 3}[what]*time.Second)
		s.gate.Lock()
		after := s.mark()
		s.compare(to, after, false, what == emptied)
		s.spent(p, after, 2)
		stop()
		s.gate.Unlock()
		all.Wait()
		s.gate.Lock()
		from = s.mark()
		s.gate.Unlock()
	}
}

// calm waits, and looks again and again how many requests of the tenant narrow its engine answers.
// The engine's count never exceeds the routers' one, which begins earlier and ends later.
func (s *site) calm(lasts time.Duration) {
	for until := time.Now().Add(lasts); time.Now().Before(until); time.Sleep(25 * time.Millisecond) {
		n := s.stats(2).Running
		s.books.most = max(s.books.most, n)
		if n > atOnce {
			s.books.broken("let in: %d requests of narrow run at once", n)
		}
	}
}

// admitted checks that a tenant had no more requests in a time than its limit gives, and some.
func (s *site) admitted(tenant string, n int64, in time.Duration) {
	most := perMinute + int64(perMinute*in.Minutes()) + 1
	if n > most || n == 0 {
		s.books.broken("let in: %d requests of %s in %v; %d may be", n, tenant, in, most)
	}
}

// spent checks that a tenant of poor has spent no more than its budget, or times of it without
// Redis, in which each router has a part; and that as much as no request needs is left.
func (s *site) spent(p *poor, at mark, times int64) {
	seen := at.sums[p.tenant]
	if seen > times*poorBudget {
		s.books.broken("let in: %s has used %d tokens of a budget of %d", p.tenant, seen, poorBudget)
	}
	if seen < poorBudget-2*maxTokens {
		s.books.broken("refused: %s has used only %d tokens of its budget of %d", p.tenant, seen, poorBudget)
	}
}

func (s *site) makePoor(turn int) *poor {
	p := &poor{tenant: fmt.Sprint("poor-", turn)}
	for router := range s.routers {
		_, p.keys[router] = s.create(router, "--tenant", p.tenant)
	}
	return p
}

// some are clients of one kind.
type some struct {
	n      int
	every  time.Duration
	client *client
}

// crowd makes the keys of the clients of each router, and returns the clients.
func (s *site) crowd() (all [2][]some) {
	for router := range s.routers {
		has := func(args ...string) func() string {
			_, text := s.create(router, args...)
			return func() string { return text }
		}
		acme, beta := has("--tenant", "acme"), has("--tenant", "beta", "--model", "small")
		rate, thin := has("--tenant", "rate"), has("--tenant", "narrow")
		other := has("--tenant", "gamma", "--model", "small")
		lists := has("--tenant", "acme", "--scope", "models")
		reads := has("--tenant", "acme", "--scope", "admin.read")
		add := func(n int, every time.Duration, c client) { all[router] = append(all[router], some{n, every, &c}) }
		const often, rarely = 200 * time.Millisecond, time.Second
		ok, limited := []int{200}, []int{200, 429}
		for _, m := range models[:2] {
			add(2, often, client{kind: "with a key", tenant: "acme", model: m, key: acme, may: ok, counted: true})
			add(1, often, client{kind: "with a key, streams", tenant: "acme", model: m, key: acme, may: ok,
				counted: true, stream: true})
			add(1, often, client{kind: "with a certificate", tenant: "certs", model: m, with: own, may: ok,
				counted: true})
		}
		add(2, often, client{kind: "with a key of one model", tenant: "beta", model: "small", key: beta, may: ok,
			counted: true})
		add(2, often, client{kind: "with a limit a minute", tenant: "rate", model: "small", key: rate, may: limited,
			counted: true})
		add(4, often, client{kind: "with a limit at a time", tenant: "narrow", model: "slim", key: thin, may: limited,
			counted: true, stream: true})
		add(1, rarely, client{kind: "key for the admin port, reads there", admin: true, method: "GET", path: "/metrics",
			key: reads, may: ok})
		add(1, rarely, client{kind: "key for models, lists them", method: "GET", path: "/v1/models", key: lists,
			may: ok})
		add(1, rarely, client{kind: "x another model than the key's", model: "large", key: other, may: []int{404}})
		add(1, rarely, client{kind: "x without the scope", model: "small", key: lists, may: []int{403}})
		add(1, rarely, client{kind: "x key without a scope, admin port", admin: true, method: "GET", path: "/metrics",
			key: acme, may: []int{403}})
		add(1, rarely, client{kind: "x key that reads, changes at the admin port", admin: true, method: "POST",
			path: "/debug/pprof/symbol", key: reads, may: []int{403}})
		add(1, rarely, client{kind: "x no key", model: "small", may: []int{401}})
		add(1, rarely, client{kind: "x no key, admin port", admin: true, method: "GET", path: "/metrics",
			may: []int{401}})
		add(1, often, client{kind: "x key that nobody has", model: "small", may: []int{401}, key: func() string {
			text, _ := keys.Generate()
			return text
		}})
		add(1, often, client{kind: "x key that is no more", model: "small", may: []int{401},
			key: func() string { return s.graveyard.any(router) }})
		for with, kind := range map[identity]string{foreign: "x certificate of another CA",
			outdated: "x certificate of the CA before"} {
			add(1, rarely, client{kind: kind, model: "small", with: with})
			add(1, rarely, client{kind: kind + ", admin port", admin: true, method: "GET", path: "/metrics",
				with: with})
		}
		add(1, rarely, client{kind: "x certificate of the role monitor", model: "small", with: monitoring})
	}
	all[1] = append(all[1], some{1, time.Second, &client{kind: "x key of another router", model: "small",
		may: []int{401}, key: all[0][0].client.key}})
	return all
}

// unharmed checks that no program has ended but those that the test has killed, and that no log has
// a key.
func (s *site) unharmed() {
	files, _ := os.ReadDir(s.dir)
	for _, f := range files {
		if !strings.HasSuffix(f.Name(), ".log") && !strings.HasSuffix(f.Name(), ".access") {
			continue
		}
		text, _ := os.ReadFile(s.dir + "/" + f.Name())
		for _, bad := range []string{"panic", "DATA RACE"} {
			if strings.Contains(string(text), bad) {
				s.books.broken("%s has %q", f.Name(), bad)
			}
		}
		for router := range s.routers {
			for _, key := range s.graveyard.dead[router] {
				if strings.Contains(string(text), key) {
					s.books.broken("%s has a key", f.Name())
				}
			}
		}
		if to := os.Getenv("TRUST_LOGS"); to != "" {
			_ = os.WriteFile(to+"/"+s.mode+"-"+f.Name(), text, 0o600)
		}
	}
}
