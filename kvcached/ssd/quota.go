package ssd

import (
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/cognitora/dataplane/kv/block"
)

// ErrQuota says that an account has all of the disk that it may have. It has room again when blocks
// of it are deleted, or dropped by reclaim.
var ErrQuota = errors.New("ssd: over the quota")

// quotas count what accounts have on disk. Number 0 is everybody without a limit.
type quotas struct {
	limits func(namespace string) (account string, bytes int64) // nil: nobody has one

	mu       sync.Mutex
	accounts []account
	numbers  map[string]uint16        // of accounts
	models   map[block.ModelID]uint16 // of namespaces asked for; too many: asked for anew
}

// account is what one or more namespaces share, in bytes of segments.
type account struct {
	name    string
	limit   int64
	used    int64 // of records that the index has
	pending int64 // of those being written
}

// of is the number of the account of a namespace with that text. Accounts beyond 65,535 have no
// limit.
func (q *quotas) of(id block.ModelID, text string) uint16 {
	if q.limits == nil {
		return 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.number(id, text)
}

// number is of with the lock held.
func (q *quotas) number(id block.ModelID, text string) uint16 {
	if n, known := q.models[id]; known {
		return n
	}
	if block.IDOf(text) != id {
		return 0 // such a record is refused, or damaged
	}
	name, limit := q.limits(text)
	if name == "" {
		name = text
	}
	n, known := q.numbers[name]
	switch {
	case limit <= 0:
		n = 0
	case !known && len(q.accounts) <= math.MaxUint16:
		if q.accounts == nil {
			q.accounts, q.numbers = make([]account, 1), map[string]uint16{}
		}
		n = uint16(len(q.accounts))
		q.accounts, q.numbers[name] = append(q.accounts, account{name: name, limit: limit}), n
	}
	if q.models == nil || len(q.models) >= maxNames {
		q.models = map[block.ModelID]uint16{}
	}
	q.models[id] = n
	return n
}

// take sets bytes aside on the account of a namespace for a record that replaces one of some bytes;
// release ends that.
func (q *quotas) take(id block.ModelID, text string, bytes, replaced int64) (number uint16, err error) {
	if q.limits == nil {
		return 0, nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if number = q.number(id, text); number == 0 {
		return 0, nil
	}
	a := &q.accounts[number]
	if a.used+a.pending+bytes-replaced > a.limit {
		return 0, fmt.Errorf("%w: %q has %d of %d bytes", ErrQuota, a.name, a.used+a.pending, a.limit)
	}
	a.pending += bytes
	return number, nil
}

func (q *quotas) release(number uint16, bytes int64) {
	if number == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.accounts[number].pending -= bytes
}

// account adds a record to an account, or takes it off.
func (q *quotas) account(number uint16, bytes int64) {
	if number == 0 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.accounts[number].used += bytes
}

// quotaOf is the number of the account of an address.
func (t *Tier) quotaOf(a *block.Addr) uint16 {
	if t.quotas.limits == nil {
		return 0
	}
	return t.quotas.of(a.Model, t.names.get(a.Model))
}

// takeQuota is quotas.take for a record.
func (t *Tier) takeQuota(h *header) (number uint16, err error) {
	if t.quotas.limits == nil {
		return 0, nil
	}
	replaced := int64(0)
	if old, ok := t.index.get(t.index.hash(&h.Addr)); ok && old.state == stateLive {
		replaced = old.bytes()
	}
	number, err = t.quotas.take(h.Addr.Model, h.Namespace, int64(h.pages())*page, replaced)
	if err != nil {
		t.stats.overQuota.Add(1)
	}
	return number, err
}
