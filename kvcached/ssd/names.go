package ssd

import (
	"fmt"
	"sync"
	"time"

	"github.com/cognitora/dataplane/kv/block"
)

// names are the texts of namespaces. One that has no records any more is forgotten when the rows
// are loaded, after a purge, and when there are nearly too many.
type names struct {
	mu      sync.RWMutex
	text    map[block.ModelID]string
	writing map[block.ModelID]int      // writes under way
	touched map[block.ModelID]struct{} // written to since the search for unused ones began; nil: nobody searches
	swept   time.Time                  // when the keeper searched last
	tenants map[string]int             // how many of text are each one's
	tight   bool                       // a tenant had its share since then
}

// maxNames is how many namespaces a directory may hold; records of more are refused.
const maxNames = 1 << 16

// maxTenantNames is how many of them may be one tenant's, or nobody's.
const maxTenantNames = maxNames / 4

// When the keeper looks for unused namespaces: there are so many, and it has not looked for so
// long.
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
	if n.touched != nil {
		n.touched[id] = struct{}{}
	}
	return nil
}

func (n *names) end(id block.ModelID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.writing[id]--; n.writing[id] == 0 {
		delete(n.writing, id)
	}
}

// ensure has the row of the namespace written before its records are found again.
func (n *names) ensure(r *rows, id block.ModelID, text string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.know(r, id, text)
}

// know has the row of the namespace written if it is not there. The lock is held.
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

// set takes up a namespace that is not there. The lock is held, or nobody else has the names.
func (n *names) set(id block.ModelID, text string) {
	n.text[id] = text
	if n.tenants == nil {
		n.tenants = map[string]int{}
	}
	n.tenants[block.TenantOf(text)]++
}

// drop forgets one. The lock is held.
func (n *names) drop(id block.ModelID) {
	tenant := block.TenantOf(n.text[id])
	if n.tenants[tenant]--; n.tenants[tenant] == 0 {
		delete(n.tenants, tenant)
	}
	delete(n.text, id)
}

// crowded tells whether there are nearly too many.
func (n *names) crowded() bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.tight || len(n.text) >= crowdedNames
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

// search begins to look for unused namespaces; false: somebody does already. It must be followed by
// forget.
func (n *names) search() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.touched != nil {
		return false
	}
	n.touched = map[block.ModelID]struct{}{}
	for id := range n.writing {
		n.touched[id] = struct{}{}
	}
	return true
}

// forget ends the search, which has met rows of the namespaces in met, and drops all others. Nil:
// it was given up.
func (n *names) forget(r *rows, met map[block.ModelID]struct{}) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	touched := n.touched
	if n.touched = nil; met == nil {
		return nil
	}
	c := r.change()
	var unused []block.ModelID
	for id := range n.text {
		_, written := touched[id]
		if _, there := met[id]; !there && !written {
			unused = append(unused, id)
			c.unname(id)
		}
	}
	if len(unused) == 0 {
		c.discard()
		return nil
	}
	if err := c.commit(false); err != nil {
		return err
	}
	for _, id := range unused {
		n.drop(id)
	}
	return nil
}

// ForgetNames drops the namespaces that have no blocks any more. It reads all rows.
func (t *Tier) ForgetNames() {
	if !t.users.enter() {
		return
	}
	defer t.users.leave()
	t.forgetNames()
}

func (t *Tier) forgetNames() {
	if !t.loaded() || !t.names.search() {
		return // the end of the load, or whoever searches, will do it
	}
	met := map[block.ModelID]struct{}{}
	err := t.rows.each([]byte{rowRecord}, []byte{rowRecord + 1}, func(key, _ []byte) bool {
		if a, ok := parseAddr(key[1:]); ok {
			met[a.Model] = struct{}{}
		}
		return t.stop.Err() == nil
	})
	if err != nil || t.stop.Err() != nil {
		met = nil
	}
	if err := t.names.forget(t.rows, met); err != nil {
		t.writeFailed("row", err)
	}
}
