package keys

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/router/limits"
	"github.com/cognitora/dataplane/router/trust"
)

// Set has the keys that a router accepts. Find takes no lock; Put and its owner's goroutine change
// the set. The zero Set accepts none.
type Set struct {
	// Changed is called for each change of a key by Put, unless it is the first Put; may be nil.
	Changed func(Change)

	now atomic.Pointer[snapshot]
}

type snapshot struct {
	texts   map[Digest]text
	records map[string]*accepted // by id
}

// text is one text of a key, and when it ends.
type text struct {
	of    *accepted
	until time.Time // zero: never
}

type accepted struct {
	record *Record
	who    *trust.Principal
}

// Refusal says why a key does not count.
type Refusal uint8

// The refusals.
const (
	None Refusal = iota
	Unknown
	Expired
	Revoked
)

// Change is a change of a key.
type Change struct {
	ID, Tenant string
	What       string // created, changed, revoked or deleted
}

// changes returns what has changed from was to s, sorted by id.
func (s *snapshot) changes(was *snapshot) (all []Change) {
	for id, a := range s.records {
		what, before := "", was.records[id]
		switch {
		case before == nil:
			what = "created"
		case before == a:
			continue
		case a.record.Revoked != nil && before.record.Revoked == nil:
			what = "revoked"
		default:
			what = "changed"
		}
		all = append(all, Change{id, a.record.Tenant, what})
	}
	for id, a := range was.records {
		if s.records[id] == nil {
			all = append(all, Change{id, a.record.Tenant, "deleted"})
		}
	}
	slices.SortFunc(all, func(a, b Change) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// Find returns who has the key with this digest. Find calls now only for a key that ends.
func (s *Set) Find(sum Digest, now func() time.Time) (*trust.Principal, Refusal) {
	in := s.now.Load()
	if in == nil {
		return nil, Unknown
	}
	t, known := in.texts[sum]
	switch {
	case !known:
		return nil, Unknown
	case t.of.record.Revoked != nil:
		return nil, Revoked
	case !t.until.IsZero() && !now().Before(t.until):
		return nil, Expired
	}
	return t.of.who, None
}

// Of returns the principal of the key with an id, or nil if there is none. The key need not count
// any more.
func (s *Set) Of(id string) *trust.Principal {
	if in := s.now.Load(); in != nil {
		if a := in.records[id]; a != nil {
			return a.who
		}
	}
	return nil
}

// Known says whether the set has been filled once.
func (s *Set) Known() bool { return s.now.Load() != nil }

// Len returns how many keys there are, those that do not count included.
func (s *Set) Len() int {
	if in := s.now.Load(); in != nil {
		return len(in.records)
	}
	return 0
}

// Put replaces the keys by those of the records, which must be valid and not change any more. The
// principal of a key that has not changed stays the same. All principals of keys that are gone or
// revoked are revoked, those before a change of the key included. Put returns an error, and changes
// nothing, if two records have the same id or text. Only one goroutine at a time may call Put.
func (s *Set) Put(records []*Record) error {
	was, next := s.now.Load(), &snapshot{map[Digest]text{}, map[string]*accepted{}}
	first := was == nil
	if first {
		was = &snapshot{}
	}
	for _, r := range records {
		if next.records[r.ID] != nil {
			return fmt.Errorf("the id %s is there twice; leave one out", r.ID)
		}
		a := was.records[r.ID]
		if a == nil || a.record != r && !a.record.same(r) {
			a = &accepted{r, r.principal(a)}
		}
		next.records[r.ID] = a
		if err := next.add(a); err != nil {
			return err
		}
	}
	s.now.Store(next)
	if s.Changed != nil && !first {
		for _, c := range next.changes(was) {
			s.Changed(c)
		}
	}
	for id, a := range was.records {
		if now := next.records[id]; now == nil || now.record.Revoked != nil {
			a.who.Credential.Revoke()
		} else if now.who != a.who {
			now.who.Follow()
		}
	}
	return nil
}

// add adds the texts of a key.
func (s *snapshot) add(a *accepted) error {
	var ends time.Time
	if a.record.Expires != nil {
		ends = *a.record.Expires
	}
	if err := s.addText(a.record.SHA256, text{a, ends}); err != nil || a.record.Previous == nil {
		return err
	}
	until := a.record.Previous.Until
	if !ends.IsZero() && ends.Before(until) {
		until = ends
	}
	return s.addText(a.record.Previous.SHA256, text{a, until})
}

func (s *snapshot) addText(digits string, t text) error {
	sum, err := parseDigest(digits)
	if err != nil {
		return err
	}
	if other, twice := s.texts[sum]; twice {
		return fmt.Errorf("the keys %s and %s have the same sha256; leave one out", other.of.record.ID, t.of.record.ID)
	}
	s.texts[sum] = t
	return nil
}

// same says whether two records give the same rights by the same texts.
func (r *Record) same(x *Record) bool {
	a, errA := json.Marshal(r)
	b, errB := json.Marshal(x)
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// principal returns the principal of a key. was is the key as it was; nil: it is new.
func (r *Record) principal(was *accepted) *trust.Principal {
	scopes, _ := trust.ParseScopes(r.Scopes)
	var of *trust.Credential
	switch {
	case was == nil:
		of = trust.NewCredential(nil)
	case was.who.Revoked(): // a key that counts again has nothing of the revoked one but its debts
		of = trust.NewCredential(was.who.Credential)
	default:
		of = was.who.Credential
	}
	return &trust.Principal{
		ID: r.ID, Tenant: r.Tenant, Home: r.Tenant, Scopes: scopes, Models: trust.NewModelList(r.Models),
		Priority: uint8(r.Priority), Limit: limits.NewLimit(r.Limits), Credential: of,
	}
}
