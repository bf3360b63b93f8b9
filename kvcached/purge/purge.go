// Package purge knows which blocks a fleet has purged.
//
// A purge removes all blocks that a selector names. A host that has confirmed a purge, or has
// started after the purge, serves no older block that the selector names. Purges are numbered: a
// purge's number is its revision. etcd has the list of purges, and the data directory of each host
// has a copy. A host sends a stamp with each block: the number of the last purge that the host has
// carried out. A receiver refuses the block if a purge after the stamp names the block.
package purge

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cognitora/dataplane/kv/block"
)

// MaxNamespaces is the number of namespaces that one purge may name.
const MaxNamespaces = 64

// ErrNothing says that a selector is empty, names too many namespaces, or has fields besides
// Everything.
var ErrNothing = errors.New("purge: name a model, a tenant or 1 to 64 namespaces, or say everything alone")

// Selector says which blocks a purge removes: the blocks that match all given fields, or with
// Everything all blocks.
type Selector struct {
	Namespaces []string `json:"namespaces,omitempty"` // the block's namespace is one of these canonical texts
	Model      string   `json:"model,omitempty"`      // model of the namespace, or part of a client's key
	Tenant     string   `json:"tenant,omitempty"`     // tenant of the block's namespace
	Everything bool     `json:"everything,omitempty"`
}

// Check returns ErrNothing, or an error that names a field that is too long.
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

// subject is a block that is compared with selectors.
type subject struct {
	text string // canonical text of the block's namespace
	block.Namespace
	key     string
	unknown bool // the key is not known
}

func (s *Selector) matches(b *subject) bool {
	switch {
	case s.Everything:
		return true
	case len(s.Namespaces) > 0 && !slices.Contains(s.Namespaces, b.text),
		s.Tenant != "" && s.Tenant != b.Tenant:
		return false
	}
	if b.unknown && block.OfKeys(b.text) {
		return true
	}
	return s.Model == "" || s.Model == b.Model || names(b.key, s.Model)
}

// slashless are replacements that clients use in keys for the slash of a model's name.
var slashless = []string{"-", "_", "--", "%2F"}

// names tells whether a client's key contains a model's name. LMCache's keys begin with the name
// and an @. Keys of other clients have the name between separators.
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

// carries tells whether a key contains a name that is not a part of a longer name.
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

// goesOn tells whether the character c beside a name makes the name longer.
func goesOn(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.'
}

// Func carries out a purge on all hosts and returns the outcome of each. The first outcome is this
// host's. An error says that no host carried out the purge.
type Func func(ctx context.Context, s Selector) ([]Done, error)

// Done is the outcome of a purge on one host.
type Done struct {
	Host   string // cache id; empty: this host is in no fleet
	Blocks int    // removed blocks
	Err    error  // the host has not confirmed the purge and may still serve purged blocks
}

// Refused is the reason why a purge did not begin, for the client that asked for it.
type Refused string

func (r Refused) Error() string { return string(r) }

// Outcomes of caches that a purge cannot reach.
const (
	ErrNoAddress = Refused("a cache without [quic] cannot be asked; purge it on its own host, too")
	ErrAlone     = Refused("this cache has no [quic], so it cannot ask others; purge on one of them, too")
)

// ErrNoEtcd says that a purge cannot begin, because etcd does not answer.
const ErrNoEtcd = Refused("etcd does not answer, so no host has confirmed the purge; see that it answers at " +
	"etcd.endpoints, and purge again")

// HostsError names the hosts that have not confirmed a purge.
type HostsError struct {
	Hosts []string // cache ids
	Err   error    // error of one of the hosts
	Here  bool     // this host has confirmed the purge
	Why   Refused  // reason why a host was not asked; empty: all were asked
	Again bool     // a host was asked in vain
}

// Failed returns a *HostsError if a host has not confirmed the purge. For a host in no fleet Failed
// returns that host's error. done must begin with this host.
func Failed(done []Done) error {
	failed := HostsError{Here: len(done) > 0 && done[0].Err == nil}
	for _, d := range done {
		if d.Err != nil {
			failed.Hosts, failed.Err = append(failed.Hosts, d.Host), d.Err
			failed.Again = !errors.As(d.Err, &failed.Why) || failed.Again
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

// Public is the error's text for the client that asked for the purge.
func (e *HostsError) Public() string {
	hosts := strings.Join(e.Hosts[:min(len(e.Hosts), 8)], ", ")
	if more := len(e.Hosts) - 8; more > 0 {
		hosts += fmt.Sprintf(" and %d more", more)
	}
	caches := "the cache on " + hosts + " has"
	if len(e.Hosts) > 1 {
		caches = "the caches on " + hosts + " have"
	}
	all := "all others were purged"
	if e.Here {
		all = "this host and all others were purged"
	}
	text := caches + " not confirmed the purge and may serve on what it had; " + all
	if e.Again {
		text += "; purge again when it answers or has left the fleet"
	}
	if e.Why != "" {
		text += "; " + e.Why.Error()
	}
	return text
}
