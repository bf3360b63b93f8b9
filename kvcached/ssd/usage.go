package ssd

import (
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/cognitora/dataplane/kv/block"
)

// ErrQuota says that an account has reached its limit. Deletions and reclaim make room again.
var ErrQuota = errors.New("ssd: over the quota")

// usage counts the blocks in the index by namespace, and their bytes also by account. Namespaces
// beyond 65,535 share number 0, which has no account and is not listed.
type usage struct {
	limits func(namespace string) (account string, bytes int64) // nil: no account has a limit

	mu       sync.Mutex
	numbers  map[block.ModelID]uint16
	spaces   []taken
	unused   []uint16            // numbers without blocks
	accounts map[string]*account // accounts with bytes
}

// taken is the usage of one namespace.
type taken struct {
	id            block.ModelID
	account       *account // nil: no limit
	blocks, bytes int64
}

// account is the use that one or more namespaces share, in bytes of segments.
type account struct {
	name    string
	limit   int64
	used    int64 // of records in the index
	pending int64 // of records that are being written
}

// NamespaceUsage is the use of the disk by a namespace.
type NamespaceUsage struct {
	Namespace string // canonical text
	Blocks    int
	Bytes     int64 // of segments, with headers, as quotas count them
}

func newUsage(limits func(namespace string) (account string, bytes int64)) usage {
	return usage{limits: limits, numbers: map[block.ModelID]uint16{}, spaces: make([]taken, 1),
		accounts: map[string]*account{}}
}

// add counts a block before the index has it, and returns the number of its namespace.
func (u *usage) add(id block.ModelID, text string, bytes int64) uint16 {
	u.mu.Lock()
	defer u.mu.Unlock()
	n, known := u.numbers[id]
	if !known {
		n = u.number(id)
		u.spaces[n].account = u.accountOf(n, id, text)
	}
	s := &u.spaces[n]
	s.blocks++
	s.bytes += bytes
	if s.account != nil {
		s.account.used += bytes
		u.accounts[s.account.name] = s.account
	}
	return n
}

// number gives a namespace a number. The lock is held.
func (u *usage) number(id block.ModelID) (n uint16) {
	switch last := len(u.unused) - 1; {
	case last >= 0:
		n, u.unused = u.unused[last], u.unused[:last]
	case len(u.spaces) <= math.MaxUint16:
		n = uint16(len(u.spaces))
		u.spaces = append(u.spaces, taken{})
	default:
		return 0
	}
	u.spaces[n].id, u.numbers[id] = id, n
	return n
}

// sub uncounts a block that add has counted.
func (u *usage) sub(n uint16, bytes int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	s := &u.spaces[n]
	s.blocks--
	s.bytes -= bytes
	if s.account != nil {
		s.account.used -= bytes
		u.drop(s.account)
	}
	if s.blocks == 0 && n != 0 {
		delete(u.numbers, s.id)
		u.unused = append(u.unused, n)
	}
}

// drop forgets an account without bytes. The lock is held.
func (u *usage) drop(a *account) {
	if a.used == 0 && a.pending == 0 {
		delete(u.accounts, a.name)
	}
}

// has tells whether a namespace has blocks.
func (u *usage) has(id block.ModelID) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, known := u.numbers[id]
	return known || u.spaces[0].blocks > 0
}

// accountOf returns the account of a namespace with this text; nil: none. The lock is held.
func (u *usage) accountOf(n uint16, id block.ModelID, text string) *account {
	if n == 0 || u.limits == nil || block.IDOf(text) != id { // such a record is refused, or damaged
		return nil
	}
	name, limit := u.limits(text)
	if name == "" {
		name = text
	}
	switch a := u.accounts[name]; {
	case limit <= 0:
		return nil
	case a != nil:
		return a
	}
	return &account{name: name, limit: limit}
}

// take reserves bytes in the account of a namespace, for a record that replaces a record of
// replaced bytes. release ends the reservation.
func (u *usage) take(id block.ModelID, text string, bytes, replaced int64) (*account, error) {
	if u.limits == nil {
		return nil, nil
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	var a *account
	if n, known := u.numbers[id]; known {
		a = u.spaces[n].account
	} else {
		a = u.accountOf(math.MaxUint16, id, text)
	}
	if a == nil {
		return nil, nil
	}
	if a.used+a.pending+bytes-replaced > a.limit {
		return nil, fmt.Errorf("%w: %q has %d of %d bytes", ErrQuota, a.name, a.used+a.pending, a.limit)
	}
	a.pending += bytes
	u.accounts[a.name] = a
	return a, nil
}

func (u *usage) release(a *account, bytes int64) {
	if a == nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	a.pending -= bytes
	u.drop(a)
}

// takeQuota is usage.take for a record.
func (t *Tier) takeQuota(h *header) (*account, error) {
	replaced := int64(0)
	if old, ok := t.index.get(t.index.hash(&h.Addr)); ok && old.state == stateLive {
		replaced = old.bytes()
	}
	a, err := t.usage.take(h.Addr.Model, h.Namespace, int64(h.pages())*page, replaced)
	if err != nil {
		t.stats.overQuota.Add(1)
	}
	return a, err
}

// Namespaces lists the namespaces that have blocks, in no order, as far as the index is loaded.
func (t *Tier) Namespaces() []NamespaceUsage {
	t.usage.mu.Lock()
	some := make([]taken, 0, len(t.usage.numbers))
	for _, n := range t.usage.numbers {
		some = append(some, t.usage.spaces[n])
	}
	t.usage.mu.Unlock()
	all := make([]NamespaceUsage, 0, len(some))
	for i := range some {
		if text := t.names.get(some[i].id); text != "" {
			all = append(all, NamespaceUsage{text, int(some[i].blocks), some[i].bytes})
		}
	}
	return all
}
