package fleet

import (
	"container/list"
	"sync"
	"sync/atomic"

	"github.com/cognitora/dataplane/kv/block"
)

// maxNamespaces is how many texts of namespaces are known.
const maxNamespaces = 1 << 16

// names are the texts of the namespaces that clients asked for last: an address has only a digest
// of it, and other hosts are asked for blocks by the text. Of one tenant, or of nobody's, a quarter
// of max are known; past that, or past max, the one that was asked for longest ago is forgotten. A
// block of a namespace that is not known is not pulled.
type names struct {
	max       int
	last      atomic.Pointer[string] // most calls of know are of one and the same
	mu        sync.Mutex
	byText    map[string]*name
	byID      map[block.ModelID]*name
	all       *list.List            // of *name, latest use first
	tenants   map[string]*list.List // the same, of each; none is empty
	forgotten uint64
}

type name struct {
	text   string
	id     block.ModelID
	tenant string
	at, of *list.Element // in all and in the tenant's
}

func newNames(limit int) *names {
	return &names{max: limit, byText: map[string]*name{}, byID: map[block.ModelID]*name{}, all: list.New(),
		tenants: map[string]*list.List{}}
}

// know notes a use of a namespace.
func (n *names) know(text string) {
	if last := n.last.Load(); last != nil && *last == text {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if known := n.byText[text]; known != nil {
		n.use(known)
		n.last.Store(&known.text)
		return
	}
	tenant := block.TenantOf(text)
	switch its := n.tenants[tenant]; {
	case its != nil && its.Len() >= n.max/4:
		n.forget(its.Back().Value.(*name))
	case n.all.Len() >= n.max:
		n.forget(n.all.Back().Value.(*name))
	}
	its := n.tenants[tenant]
	if its == nil {
		its = list.New()
		n.tenants[tenant] = its
	}
	k := &name{text: text, id: block.IDOf(text), tenant: tenant}
	k.at, k.of = n.all.PushFront(k), its.PushFront(k)
	n.byText[text], n.byID[k.id] = k, k
	n.last.Store(&k.text)
}

// use puts one before all others. The lock is held.
func (n *names) use(k *name) {
	n.all.MoveToFront(k.at)
	n.tenants[k.tenant].MoveToFront(k.of)
}

// forget drops one. The lock is held.
func (n *names) forget(k *name) {
	n.all.Remove(k.at)
	its := n.tenants[k.tenant]
	if its.Remove(k.of); its.Len() == 0 {
		delete(n.tenants, k.tenant)
	}
	delete(n.byText, k.text)
	delete(n.byID, k.id)
	n.forgotten++
}

// of is the text of the namespace with an ID, which is thereby used; empty: it is not known.
func (n *names) of(id block.ModelID) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	k := n.byID[id]
	if k == nil {
		return ""
	}
	n.use(k)
	return k.text
}

func (n *names) stats() (known int64, forgotten uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return int64(n.all.Len()), n.forgotten
}

// Know remembers the text of a namespace that clients use, because a block is asked for by it. It
// is to be called before each use: of 65,536, and of 16,384 of one tenant, those used last are
// known. Text longer than block.MaxNamespace is not remembered.
func (v *View) Know(namespace string) {
	if len(namespace) <= block.MaxNamespace {
		v.names.know(namespace)
	}
}

// nameOf is the text of a namespace that clients asked for lately, or of which there are blocks in
// this host's RAM; empty: it is not known.
func (v *View) nameOf(id block.ModelID) string {
	if text := v.names.of(id); text != "" {
		return text
	}
	return v.Store.NamespaceOf(id)
}
