package ram

import (
	"errors"
	"fmt"

	"github.com/cognitora/dataplane/kv/block"
)

// MaxNamespaces is how many namespaces may have blocks at one time. Entries have 16 bits for the
// number of a namespace, and 0 is none.
const MaxNamespaces = 65_532

// MaxTenantNamespaces is how many namespaces one tenant may have, or all without a tenant.
const MaxTenantNamespaces = MaxNamespaces / 4

// ErrNamespaces says that one more namespace would be too many.
var ErrNamespaces = errors.New("ram: too many namespaces")

// Name is a namespace with blocks or other holders.
type Name struct {
	ID     block.ModelID
	Text   string // canonical
	Blocks int    // resident
	Bytes  int64  // of the arena, resident
	Quota  *Quota // nil: none
	holds  uint32
}

// Quota is the limit that one or more namespaces share.
type Quota struct {
	Account     string
	Used, Limit int64 // bytes of the arena, resident or reserved
	holds       int
}

// Names gives namespaces small numbers. A number without holders is used again.
type Names struct {
	byID     map[block.ModelID]uint32
	names    []Name
	spare    []uint32
	accounts map[string]*Quota
	tenants  map[string]int // number of namespaces of each tenant
	refused  uint64
	limits   func(namespace string) (account string, bytes int64)
}

func newNames(limits func(string) (string, int64)) *Names {
	return &Names{byID: map[block.ModelID]uint32{}, names: make([]Name, 1), accounts: map[string]*Quota{},
		tenants: map[string]int{}, limits: limits}
}

// Hold returns the number of a namespace and keeps it until Drop. id must be the text's ID. An
// empty text means a namespace that is known already.
func (n *Names) Hold(id block.ModelID, text string) (uint32, error) {
	if i, known := n.byID[id]; known {
		if name := &n.names[i]; text == "" || text == name.Text {
			name.holds++
			return i, nil
		}
		return 0, fmt.Errorf("%w: %q has not the ID of the address", block.ErrNamespace, text)
	}
	if len(text) > block.MaxNamespace || block.IDOf(text) != id {
		return 0, fmt.Errorf("%w: %.512q has not the ID of the address", block.ErrNamespace, text)
	}
	tenant := block.TenantOf(text)
	if n.tenants[tenant] >= MaxTenantNamespaces {
		n.refused++
		return 0, fmt.Errorf("%w: %d of tenant %q have blocks; delete those of some, or use other tenants",
			ErrNamespaces, MaxTenantNamespaces, tenant)
	}
	var i uint32
	if last := len(n.spare) - 1; last >= 0 {
		i, n.spare = n.spare[last], n.spare[:last]
	} else if len(n.names) > MaxNamespaces {
		n.refused++
		return 0, fmt.Errorf("%w: %d have blocks; delete those of some", ErrNamespaces, MaxNamespaces)
	} else {
		i = uint32(len(n.names))
		n.names = append(n.names, Name{})
	}
	n.names[i] = Name{ID: id, Text: text, Quota: n.quota(text), holds: 1}
	n.byID[id] = i
	n.tenants[tenant]++
	return i, nil
}

func (n *Names) quota(text string) *Quota {
	if n.limits == nil {
		return nil
	}
	account, limit := n.limits(text)
	if limit <= 0 {
		return nil
	}
	if account == "" {
		account = text
	}
	q := n.accounts[account]
	if q == nil {
		q = &Quota{Account: account, Limit: limit}
		n.accounts[account] = q
	}
	q.holds++
	return q
}

// Drop ends a hold.
func (n *Names) Drop(i uint32) {
	name := &n.names[i]
	if name.holds--; name.holds > 0 {
		return
	}
	if q := name.Quota; q != nil {
		if q.holds--; q.holds == 0 {
			delete(n.accounts, q.Account)
		}
	}
	delete(n.byID, name.ID)
	tenant := block.TenantOf(name.Text)
	if n.tenants[tenant]--; n.tenants[tenant] == 0 {
		delete(n.tenants, tenant)
	}
	*name = Name{}
	n.spare = append(n.spare, i)
}

// At is the namespace with number i, which is held.
func (n *Names) At(i uint32) *Name { return &n.names[i] }

// TextOf is the text of the namespace with an ID; empty: nothing holds it.
func (n *Names) TextOf(id block.ModelID) string { return n.names[n.byID[id]].Text }

// Each calls visit with every namespace.
func (n *Names) Each(visit func(*Name)) {
	for i := range n.names {
		if n.names[i].holds > 0 {
			visit(&n.names[i])
		}
	}
}
