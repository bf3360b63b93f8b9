package limits

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Table is what settings limit beside keys: a tenant, a model, or a tenant's use of a model.
type Table struct {
	Tenant string // empty: all together; EachTenant: each that no table names
	Model  string // canonical name; empty: all together
	Rates  Rates
}

// EachTenant stands for each tenant that no table names.
const EachTenant = "*"

// Settings are what a Book holds requests to.
type Settings struct {
	Tables []Table
	// Output is how many tokens a request reserves for an answer if it names no maximum and its
	// model has no cap.
	Output int64
	Caps   map[string]int64 // most tokens of an answer, by the canonical name of the model
}

// Book has the limits and accounts of tenants and models. Accounts outlive a change of the
// settings. There are accounts only for what tables name, and for the tenants of EachTenant. Add
// takes no lock and does not allocate, except for the first request of a tenant of EachTenant that
// gets an account of its own. The zero Book limits nothing.
type Book struct {
	now      atomic.Pointer[tables]
	mu       sync.Mutex
	accounts map[named]*Account
}

type named struct{ tenant, model string }

// maxAccounts bounds the accounts. Further tenants of EachTenant share one.
const maxAccounts = 65536

// tables are the settings as requests find them. Only each changes, under the Book's lock.
type tables struct {
	tenants map[string]*ofTenant
	models  map[string]Subject
	each    *sync.Map                // *ofTenant, by tenant; nil: no table is for EachTenant
	rest    atomic.Pointer[ofTenant] // of tenants beyond maxAccounts; nil: no tenant has come
	like    []Table                  // those for EachTenant
	output  int64
	caps    map[string]int64
}

// ofTenant are the subjects of one tenant.
type ofTenant struct {
	all    Subject
	models map[string]Subject
}

// Put replaces the settings, which must not change any more.
func (b *Book) Put(s Settings) {
	b.mu.Lock()
	defer b.mu.Unlock()
	next := &tables{tenants: map[string]*ofTenant{}, models: map[string]Subject{}, output: s.Output, caps: s.Caps}
	byTenant := map[string][]Table{}
	for _, t := range s.Tables {
		if t.Tenant == "" {
			next.models[t.Model] = b.subject(OfModel, named{"", t.Model}, t.Rates)
			continue
		}
		byTenant[t.Tenant] = append(byTenant[t.Tenant], t)
	}
	for tenant, all := range byTenant {
		if tenant == EachTenant {
			next.like, next.each = all, new(sync.Map)
			continue
		}
		next.tenants[tenant] = b.tenant(tenant, all)
	}
	if next.each != nil {
		b.keep(next)
	}
	b.now.Store(next)
}

// keep makes each tenant of EachTenant that has an account known to next. b.mu is held.
func (b *Book) keep(next *tables) {
	for _, name := range slices.Collect(maps.Keys(b.accounts)) {
		if tenant := name.tenant; tenant != "" && tenant != EachTenant && next.tenants[tenant] == nil {
			if _, known := next.each.Load(tenant); !known {
				next.each.Store(tenant, b.tenant(tenant, next.like))
			}
		}
	}
}

// tenant returns the subjects of a tenant by its tables. b.mu is held.
func (b *Book) tenant(name string, all []Table) *ofTenant {
	of := &ofTenant{models: map[string]Subject{}}
	for _, t := range all {
		if t.Model == "" {
			of.all = b.subject(OfTenant, named{name, ""}, t.Rates)
			continue
		}
		of.models[t.Model] = b.subject(OfTenantModel, named{name, t.Model}, t.Rates)
	}
	return of
}

// subject returns a subject with the account of a name. b.mu is held.
func (b *Book) subject(of Scope, name named, rates Rates) Subject {
	if b.accounts == nil {
		b.accounts = map[named]*Account{}
	}
	if b.accounts[name] == nil && len(b.accounts) >= maxAccounts {
		name = named{EachTenant, name.model}
	}
	account := b.accounts[name]
	if account == nil {
		account = new(Account)
		b.accounts[name] = account
	}
	limit := NewLimit(rates)
	account.Rescale(limit, time.Now())
	return Subject{of, limit, account, name.tenant, name.model}
}

// Limits says whether there is a table.
func (b *Book) Limits() bool {
	now := b.now.Load()
	return now != nil && len(now.tenants)+len(now.models)+len(now.like) > 0
}

// Accounts returns the number of accounts of tenants and models.
func (b *Book) Accounts() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.accounts)
}

// Add adds to r the subjects of a tenant's request for a model, by the model's canonical name.
func (b *Book) Add(r *Reservation, tenant, model string) {
	now := b.now.Load()
	if now == nil {
		return
	}
	of := now.tenants[tenant]
	if of == nil && now.each != nil {
		of = now.known(tenant)
		if of == nil {
			of = b.like(tenant)
		}
	}
	if of != nil {
		r.Add(of.all)
		if len(of.models) > 0 {
			r.Add(of.models[model])
		}
	}
	if len(now.models) > 0 {
		r.Add(now.models[model])
	}
}

// known returns the subjects of a tenant that no table names; nil: nobody has made them.
func (t *tables) known(tenant string) *ofTenant {
	if of, known := t.each.Load(tenant); known {
		return of.(*ofTenant)
	}
	return t.rest.Load()
}

// like returns the subjects of a tenant by the settings of now; nil: they limit nothing of it.
func (b *Book) like(tenant string) *ofTenant {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now.Load() // Put may have replaced those that did not know the tenant
	if of := now.tenants[tenant]; of != nil || now.each == nil {
		return of
	}
	of := now.known(tenant)
	switch {
	case of != nil:
	case len(b.accounts) < maxAccounts:
		of = b.tenant(tenant, now.like)
		now.each.Store(tenant, of)
	default:
		of = b.tenant(EachTenant, now.like)
		now.rest.Store(of)
	}
	return of
}

// Output returns how many tokens a request reserves for one answer of a model. named is the maximum
// that the request names; 0: none.
func (b *Book) Output(model string, named int64) int64 {
	now := b.now.Load()
	if now == nil {
		return named
	}
	if most := now.caps[model]; most > 0 {
		return min(cmp.Or(named, most), most)
	}
	return cmp.Or(named, now.output)
}

// Each tells the used share of each limit of the tables, those for EachTenant excepted. The share
// is above 1 after a request has used more than it had reserved.
func (b *Book) Each(emit func(tenant, model, limit string, used float64)) {
	now := b.now.Load()
	if now == nil {
		return
	}
	at := instantOf(time.Now(), true)
	tell := func(tenant, model string, s Subject) {
		if s.Limit == nil {
			return
		}
		for i := range s.Limit.rules {
			r := s.rule(i)
			n, _ := s.Account.counters[r.setting].used(r, at)
			emit(tenant, model, settings[r.setting].name, float64(n)/float64(r.limit))
		}
	}
	for _, model := range slices.Sorted(maps.Keys(now.models)) {
		tell("", model, now.models[model])
	}
	for _, tenant := range slices.Sorted(maps.Keys(now.tenants)) {
		of := now.tenants[tenant]
		tell(tenant, "", of.all)
		for _, model := range slices.Sorted(maps.Keys(of.models)) {
			tell(tenant, model, of.models[model])
		}
	}
}
