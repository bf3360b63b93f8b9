package fleet

import (
	"container/list"
	"sync"
	"sync/atomic"

	"github.com/cognitora/dataplane/kv/block"
)

// maxNamespaces is the number of namespaces whose texts are remembered.
const maxNamespaces = 1 << 16

// names remembers the texts of the namespaces that clients used last. An address has only the
// digest of its namespace, and a request to another host needs the text. One tenant has at most a
// quarter of max texts. The namespaces without a tenant have the same share. Beyond a share, or
// beyond max in all, the least recently used text is forgotten. A block is not pulled if the text
// of its namespace is not known.
type names struct {
	max       int
	last      atomic.Pointer[string] // the last text; most calls of know repeat it
	mu        sync.Mutex
	byText    map[string]*name
	byID      map[block.ModelID]*name
	all       *list.List            // elements are *name, most recently used first
	tenants   map[string]*list.List // the same list for each tenant; no list is empty
	forgotten uint64
}

type name struct {
	text   string
	id     block.ModelID
	tenant string
	at, of *list.Element // elements in all and in the tenant's list
}

func newNames(limit int) *names {
	return &names{max: limit, byText: map[string]*name{}, byID: map[block.ModelID]*name{}, all: list.New(),
		tenants: map[string]*list.List{}}
}

// know records a use of a namespace.
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

// use makes a name the most recently used one. The caller holds the lock.
func (n *names) use(k *name) {
	n.all.MoveToFront(k.at)
	n.tenants[k.tenant].MoveToFront(k.of)
}

// forget removes a name. The caller holds the lock.
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

// of returns the text of a namespace and counts as a use of it; empty: the text is not known.
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

// Know remembers the text of a client's namespace. Requests to other hosts name blocks by this
// text. Call Know before each use of a namespace. The last 65,536 texts in all are remembered, and
// the last 16,384 of one tenant. A text longer than block.MaxNamespace is not remembered.
func (v *View) Know(namespace string) {
	if len(namespace) <= block.MaxNamespace {
		v.names.know(namespace)
	}
}

// nameOf returns the text of a namespace that clients used lately or that has blocks in this host's
// RAM; empty: the text is not known.
func (v *View) nameOf(id block.ModelID) string {
	if text := v.names.of(id); text != "" {
		return text
	}
	return v.Store.NamespaceOf(id)
}
