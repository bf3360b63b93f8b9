// Package purge knows which blocks a fleet has purged.
//
// A purge removes all blocks that a selector names, and it is certain: no host that has confirmed
// it, or has started after it, serves a block that is older. Purges are numbered. The list of them
// lies in etcd, and a copy lies in the data directory of each host. Each host says with a block up
// to which purge it has removed what was to be removed; that number is the block's stamp. A host
// that knows a later purge of such blocks does not take the block.
package purge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cognitora/dataplane/kv/block"
)

// MaxNamespaces bounds the namespaces that one purge names.
const MaxNamespaces = 64

// ErrNothing says that a selector names nothing, or too much.
var ErrNothing = errors.New("purge: name a model, a tenant or 1 to 64 namespaces, or say everything alone")

// Selector says which blocks are purged: those that match all fields given, or with Everything all.
type Selector struct {
	Namespaces []string `json:"namespaces,omitempty"` // one of these canonical texts
	Model      string   `json:"model,omitempty"`      // of the namespace, or named in a client's key
	Tenant     string   `json:"tenant,omitempty"`     // of the namespace
	Everything bool     `json:"everything,omitempty"`
}

// Check returns ErrNothing, or an error that names the field that is too long.
func (s *Selector) Check() error {
	given := len(s.Namespaces) > 0 || s.Model != "" || s.Tenant != ""
	if given == s.Everything || len(s.Namespaces) > MaxNamespaces {
		return ErrNothing
	}
	for _, text := range append([]string{s.Model, s.Tenant}, s.Namespaces...) {
		if len(text) > block.MaxNamespace {
			return fmt.Errorf("purge: a name has %d bytes, at most %d are allowed", len(text), block.MaxNamespace)
		}
	}
	return nil
}

// Matches tells whether a block of a namespace is purged. The key is the client's own name for the
// block, nil for a block that has an address only.
func (s *Selector) Matches(namespace string, key []byte) bool {
	if s.Everything {
		return true
	}
	n, err := block.ParseNamespace(namespace)
	return err == nil && s.matches(&subject{namespace, n, string(key)})
}

// subject is a block that selectors are held to.
type subject struct {
	text string // of the namespace
	block.Namespace
	key string
}

func (s *Selector) matches(b *subject) bool {
	switch {
	case s.Everything:
		return true
	case len(s.Namespaces) > 0 && !slices.Contains(s.Namespaces, b.text),
		s.Tenant != "" && s.Tenant != b.Tenant:
		return false
	}
	return s.Model == "" || s.Model == b.Model || b.key != "" && names(b.key, s.Model)
}

// slashless are the ways in which clients write the slash of a model's name in a key.
var slashless = []string{"-", "_", "--", "%2F"}

// names tells whether a client's key carries a model's name. LMCache's keys begin with the name and
// an @, those of other clients have it between separators.
func names(key, model string) bool {
	if carries(key, model) {
		return true
	}
	if !strings.Contains(model, "/") {
		return false
	}
	return slices.ContainsFunc(slashless, func(slash string) bool {
		return carries(key, strings.ReplaceAll(model, "/", slash))
	})
}

// carries tells whether a key has a name that goes on neither before nor behind.
func carries(key, name string) bool {
	for from := 0; ; {
		at := strings.Index(key[from:], name)
		if at < 0 {
			return false
		}
		at += from
		end := at + len(name)
		if (at == 0 || !goesOn(key[at-1])) && (end == len(key) || !goesOn(key[end])) {
			return true
		}
		from = at + 1
	}
}

// goesOn tells whether a character beside a name would be part of a longer name.
func goesOn(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.'
}

// Func removes blocks from all hosts and tells what became of each, this one first. Its error says
// that nothing was purged.
type Func func(ctx context.Context, s Selector) ([]Done, error)

// Done is the outcome of a purge on one host.
type Done struct {
	Host   string // cache id; empty: this cache is in no fleet
	Blocks int    // removed
	Err    error  // the host has not confirmed the purge: it may go on with blocks that were to go
}

// ErrNoEtcd says that a purge of a fleet cannot begin.
var ErrNoEtcd = errors.New("etcd does not answer, so no host has confirmed the purge; see that it answers at " +
	"etcd.endpoints, and purge again")

// HostsError names the hosts that have not confirmed a purge.
type HostsError struct {
	Hosts []string // cache ids
	Err   error    // of one of them
	Here  bool     // this host has confirmed it
}

// Failed is a *HostsError where some host has not confirmed a purge, or the error of the host that
// is in no fleet. This host is the first in done.
func Failed(done []Done) error {
	failed := HostsError{Here: len(done) > 0 && done[0].Err == nil}
	for _, d := range done {
		if d.Err != nil {
			failed.Hosts, failed.Err = append(failed.Hosts, d.Host), d.Err
		}
	}
	switch {
	case failed.Err == nil:
		return nil
	case failed.Hosts[0] == "":
		return failed.Err
	}
	return &failed
}

func (e *HostsError) Error() string { return fmt.Sprintf("%s: %v", e.Public(), e.Err) }

func (e *HostsError) Unwrap() error { return e.Err }

// Public is what a client of a purge may be told.
func (e *HostsError) Public() string {
	hosts := strings.Join(e.Hosts[:min(len(e.Hosts), 8)], ", ")
	if more := len(e.Hosts) - 8; more > 0 {
		hosts += fmt.Sprintf(" and %d more", more)
	}
	all := "all others were purged"
	if e.Here {
		all = "this host and all others were purged"
	}
	return fmt.Sprintf("the cache on %s has not confirmed the purge and may serve on what it had; %s; purge "+
		"again when "+
		"it answers or has left the fleet", hosts, all)
}
