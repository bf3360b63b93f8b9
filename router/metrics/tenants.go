package metrics

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cognitora/dataplane/internal/metric"
)

// OtherTenants is the label of all tenants without metrics of their own. No tenant can have this
// name.
const OtherTenants = "(other)"

// DefaultTenants is the usual number of tenants with metrics of their own.
const DefaultTenants = 100

// Class is what became of a tenant's request.
type Class uint8

// Classes.
const (
	OK      Class = iota // the client has a whole answer
	Limited              // 429
	Refused              // another 4xx
	Failed               // 5xx, or an answer that broke off
	Left                 // the client left, or did not read
	classes
)

// kindsOfTokens is the number of values of the label kind.
const kindsOfTokens = 3

// Tenants counts the requests and tokens of tenants. Up to Most tenants have metrics of their own,
// for as long as the process runs. Tenants that only gateways name take up half of these places at
// most, so that a flood of names leaves room. All further tenants share OtherTenants.
type Tenants struct {
	// Most is set before the first request. 0: nothing is counted.
	Most int

	requests, tokens *prometheus.CounterVec

	mu    sync.Mutex // held while a tenant is added
	table atomic.Pointer[tenantTable]
}

// tenantTable has one entry per tenant with metrics, and one for OtherTenants. It does not change.
type tenantTable struct {
	all   map[string]*tenant
	named int // tenants that a gateway named first
	other *tenant
}

type tenant struct {
	requests [classes]prometheus.Counter
	tokens   [kindsOfTokens]prometheus.Counter
}

func newTenants(s *metric.Set) *Tenants {
	t := &Tenants{
		Most: DefaultTenants,
		requests: s.Counter("cgn_router_tenant_requests_total", "Requests to models and for stored responses, by "+
			"tenant and what became of them: ok, limited (429), refused (other 4xx), failed (5xx, or the answer broke off) or "+
			"left (by the client). The tenant (other) stands for all beyond usage.metric_tenants.", "tenant", "outcome"),
		tokens: s.Counter("cgn_router_tenant_tokens_total", "Tokens of each tenant, as engines report them: prompt, "+
			"cached (part of prompt) or completion.", "tenant", "kind"),
	}
	t.table.Store(&tenantTable{})
	return t
}

// Tokens are the tokens of an answer, as its engine reports them. Unknown numbers are 0.
type Tokens struct{ Prompt, Cached, Completion int64 }

// Count counts an ended request of a tenant. named says that a gateway has named the tenant. Count
// does not allocate, unless the tenant is new.
func (t *Tenants) Count(name string, named bool, c Class, used Tokens) {
	if t.Most == 0 {
		return
	}
	of := t.of(name, named)
	of.requests[c].Inc()
	for i, n := range [kindsOfTokens]int64{used.Prompt, used.Cached, used.Completion} {
		of.tokens[i].Add(float64(max(n, 0)))
	}
}

func (t *Tenants) of(name string, named bool) *tenant {
	now := t.table.Load()
	if of := now.all[name]; of != nil {
		return of
	}
	if now.other != nil && !now.room(t.Most, named) {
		return now.other
	}
	return t.add(name, named)
}

// room says whether one more tenant can have metrics.
func (now *tenantTable) room(most int, named bool) bool {
	return len(now.all) < most && (!named || now.named < most/2)
}

// add makes a tenant's metrics if there is room, or else those of OtherTenants.
func (t *Tenants) add(name string, named bool) *tenant {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.table.Load()
	if of := now.all[name]; of != nil {
		return of
	}
	next := &tenantTable{all: now.all, named: now.named, other: now.other}
	defer t.table.Store(next)
	if !now.room(t.Most, named) {
		if next.other == nil {
			next.other = t.series(OtherTenants)
		}
		return next.other
	}
	name = strings.Clone(name) // of a request
	of := t.series(name)
	next.all = make(map[string]*tenant, len(now.all)+1)
	maps.Copy(next.all, now.all)
	next.all[name] = of
	if named {
		next.named++
	}
	return of
}

// series makes the series of a tenant.
func (t *Tenants) series(name string) *tenant {
	of := &tenant{}
	for i, outcome := range [classes]string{"ok", "limited", "refused", "failed", "left"} {
		of.requests[i] = t.requests.WithLabelValues(name, outcome)
	}
	for i, kind := range [kindsOfTokens]string{"prompt", "cached", "completion"} {
		of.tokens[i] = t.tokens.WithLabelValues(name, kind)
	}
	return of
}
