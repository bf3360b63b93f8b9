package ssd

import (
	"fmt"
	"sync"
	"time"

	"github.com/cognitora/dataplane/kv/block"
)

// names has the texts of namespaces. A namespace without blocks is forgotten when the rows are
// loaded, after a purge, and when there are nearly too many.
type names struct {
	mu      sync.RWMutex
	text    map[block.ModelID]string
	writing map[block.ModelID]int // running writes
	swept   time.Time             // time of the keeper's last search
	tenants map[string]int        // number of namespaces of each tenant
	tight   bool                  // a tenant has reached its share since then
}

// maxNames bounds the namespaces of a directory. Records of further ones are refused.
const maxNames = 1 << 16

// maxTenantNames bounds the namespaces of one tenant, and those without a tenant.
const maxTenantNames = maxNames / 4

// The keeper looks for unused namespaces from crowdedNames on, and at most once in sweepNames.
const (
	crowdedNames = maxNames / 8 * 7
	sweepNames   = time.Minute
)

func (n *names) get(id block.ModelID) string {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.text[id]
}

// begin is called before the first record of a write of the namespace. Until end, the namespace is
// not forgotten.
func (n *names) begin(r *rows, id block.ModelID, text string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.know(r, id, text); err != nil {
		return err
	}
	if n.writing == nil {
		n.writing = map[block.ModelID]int{}
	}
	n.writing[id]++
	return nil
}

func (n *names) end(id block.ModelID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.writing[id]--; n.writing[id] == 0 {
		delete(n.writing, id)
	}
}

// ensure writes the row of the namespace before its records are found again.
func (n *names) ensure(r *rows, id block.ModelID, text string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.know(r, id, text)
}

// know writes the row of the namespace if it is missing. The lock is held.
func (n *names) know(r *rows, id block.ModelID, text string) error {
	if n.text[id] == text && text != "" {
		return nil
	}
	if block.IDOf(text) != id {
		return fmt.Errorf("%w: the namespace is not the address's", ErrInvalid)
	}
	if len(n.text) >= maxNames {
		return fmt.Errorf("%w: %d namespaces are there already; purge some", ErrInvalid, maxNames)
	}
	if tenant := block.TenantOf(text); n.tenants[tenant] >= maxTenantNames {
		n.tight = true
		return fmt.Errorf("%w: tenant %q has %d namespaces already; purge some", ErrInvalid, tenant, maxTenantNames)
	}
	c := r.change()
	c.name(id, text)
	if err := c.commit(false); err != nil {
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	n.set(id, text)
	return nil
}

// set adds a namespace. The lock is held, or nobody else has the names.
func (n *names) set(id block.ModelID, text string) {
	n.text[id] = text
	if n.tenants == nil {
		n.tenants = map[string]int{}
	}
	n.tenants[block.TenantOf(text)]++
}

// drop forgets a namespace. The lock is held.
func (n *names) drop(id block.ModelID) {
	tenant := block.TenantOf(n.text[id])
	if n.tenants[tenant]--; n.tenants[tenant] == 0 {
		delete(n.tenants, tenant)
	}
	delete(n.text, id)
}

// due tells whether the keeper should look for unused namespaces now.
func (n *names) due(now time.Time) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.tight && len(n.text) < crowdedNames || now.Sub(n.swept) < sweepNames {
		return false
	}
	n.swept, n.tight = now, false
	return true
}

// ForgetNames forgets the namespaces that have no blocks any more.
func (t *Tier) ForgetNames() {
	if !t.users.enter() {
		return
	}
	defer t.users.leave()
	t.forgetNames()
}

func (t *Tier) forgetNames() {
	if t.loaded() { // otherwise the end of the load does it
		t.sweepNames()
	}
}

// sweepNames forgets the unused namespaces. All rows have been loaded.
func (t *Tier) sweepNames() {
	n := &t.names
	n.mu.Lock()
	defer n.mu.Unlock()
	c := t.rows.change()
	var unused []block.ModelID
	for id := range n.text {
		if n.writing[id] == 0 && !t.usage.has(id) {
			unused = append(unused, id)
			c.unname(id)
		}
	}
	if err := c.commit(false); err != nil {
		t.writeFailed("row", err)
		return
	}
	for _, id := range unused {
		n.drop(id)
	}
}
