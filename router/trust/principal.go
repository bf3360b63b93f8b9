package trust

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/router/limits"
)

// Scopes are rights of a principal, as bits.
type Scopes uint8

// The scopes.
const (
	Inference  Scopes = 1 << iota // ask models
	Models                        // list models
	Pin                           // steer requests: pins, overrides of the policy, thresholds
	AdminRead                     // read at the admin port
	AdminWrite                    // change what the router does, at the admin port; includes AdminRead
	ActAs                         // name the tenant and the user of a request
)

// scopeNames are the scopes as configurations write them, in the order of their bits.
var scopeNames = []string{"inference", "models", "route.pin", "admin.read", "admin.write", "act_as"}

// ScopeNames returns the names of all scopes.
func ScopeNames() []string { return slices.Clone(scopeNames) }

// ParseScopes returns the scopes with these names, and those that they include.
func ParseScopes(names []string) (s Scopes, err error) {
	for _, name := range names {
		i := slices.Index(scopeNames, name)
		if i < 0 {
			return 0, fmt.Errorf("%q is no scope; the scopes are %s", name, strings.Join(scopeNames, ", "))
		}
		s |= 1 << i
	}
	if s.Has(AdminWrite) {
		s |= AdminRead
	}
	return s, nil
}

// Names returns the names of the scopes.
func (s Scopes) Names() (names []string) {
	for i, name := range scopeNames {
		if s&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	return names
}

// Has says whether s has all scopes of want.
func (s Scopes) Has(want Scopes) bool { return s&want == want }

// DefaultTenant is the tenant of principals that name none.
const DefaultTenant = "default"

// MaxPriority is the highest priority of a request in the queue. 0 is the lowest and the usual one.
const MaxPriority = 9

// Credential is the state that all principals of one key share. A change of the key's rights makes
// another principal, and the requests of the former one go on with it.
type Credential struct {
	revoked atomic.Bool
	account *limits.Account
}

// NewCredential returns the credential of a key. before is the revoked one that the key had before;
// nil: none. What was used with it stays used.
func NewCredential(before *Credential) *Credential {
	if before != nil {
		return &Credential{account: before.account}
	}
	return &Credential{account: new(limits.Account)}
}

// Revoke says that the requests of the credential's principals shall not go on.
func (c *Credential) Revoke() { c.revoked.Store(true) }

// Revoked says whether Revoke was called. A nil Credential is never revoked.
func (c *Credential) Revoked() bool { return c != nil && c.revoked.Load() }

// Principal is who asks. A Principal does not change, so many requests share one.
type Principal struct {
	// ID is the id of the API key; empty without settings.
	ID     string
	Tenant string
	Home   string // the tenant of its key or, without a key, of a gateway that has named another one
	User   string // whom a gateway names, for the access log; empty: nobody
	Scopes Scopes
	Models *ModelList    // nil: all models
	Limit  *limits.Limit // of the key; nil: none
	// Priority is the highest priority that its requests may have, from 0 to MaxPriority.
	Priority uint8

	Credential *Credential // nil: it cannot be revoked
}

// Revoked says whether the principal's requests shall not go on.
func (p *Principal) Revoked() bool { return p.Credential.Revoked() }

// Follow makes p the principal of its key in place of the one before. What was used of the key's
// limits stays used.
func (p *Principal) Follow() {
	p.Credential.account.Rescale(p.Limit, time.Now())
}

// Limits returns the principal's key as the subject of its limits.
func (p *Principal) Limits() limits.Subject {
	if p.Limit == nil {
		return limits.Subject{}
	}
	return limits.Subject{Of: limits.OfKey, Limit: p.Limit, Account: p.Credential.account, Tenant: p.Home, Name: p.ID}
}

// Prefers says whether the principal may tell an engine the priority of a request. An engine has no
// highest one for each key.
func (p *Principal) Prefers() bool { return !p.Keyed() || p.Priority > 0 || p.Scopes.Has(Pin) }

// Keyed says whether the principal was named by a key. The router itself and principals without
// settings are not.
func (p *Principal) Keyed() bool { return p != nil && p.ID != "" }

// TenantOf returns the tenant of a principal, or "" for nil.
func TenantOf(p *Principal) string {
	if p == nil {
		return ""
	}
	return p.Tenant
}

// Named says whether a gateway has named the principal's tenant in place of its own.
func (p *Principal) Named() bool { return p.Home != "" && p.Home != p.Tenant }

// Uses says whether the principal may use the model of a name. Names are compared as they are: an
// alias is a name of its own. A nil Principal, the router itself, may use all.
func (p *Principal) Uses(model string) bool {
	return p == nil || p.Models == nil || p.Models.has(model)
}

// ModelList names models. An entry that ends with * stands for all names that begin so.
type ModelList struct {
	names    map[string]struct{}
	prefixes []string
}

// NewModelList returns the list of the entries, or nil if there are none.
func NewModelList(entries []string) *ModelList {
	if len(entries) == 0 {
		return nil
	}
	l := &ModelList{names: map[string]struct{}{}}
	for _, entry := range entries {
		if begin, ok := strings.CutSuffix(entry, "*"); ok {
			l.prefixes = append(l.prefixes, begin)
			continue
		}
		l.names[entry] = struct{}{}
	}
	return l
}

func (l *ModelList) has(model string) bool {
	if _, is := l.names[model]; is {
		return true
	}
	return slices.ContainsFunc(l.prefixes, func(begin string) bool { return strings.HasPrefix(model, begin) })
}
