package fleet

import (
	"slices"
	"time"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/lora"
)

// AdapterResident says whether the node's engine has loaded the LoRA adapter with this name. A
// model that is no adapter on this node is always loaded. known is false if that cannot be told.
// AdapterResident allocates nothing.
func (n *Node) AdapterResident(name string) (resident, known bool) {
	if !n.adapters.Has(name) && n.info.Load().serves(name) { // Has is faster with many adapters
		return true, true
	}
	return n.adapters.Loaded(name)
}

// UseAdapter notes that the node's engine computes for the LoRA adapter with this name, and so has
// loaded it. UseAdapter ignores other models.
func (n *Node) UseAdapter(name string, at time.Time) { n.adapters.Use(name, at) }

// UseAdapterBytes is UseAdapter for a name in a buffer.
func (n *Node) UseAdapterBytes(name []byte, at time.Time) { n.adapters.UseBytes(name, at) }

// UnuseAdapter takes back UseAdapter with the same arguments, for an adapter that the engine does
// not list.
func (n *Node) UnuseAdapter(name string, at time.Time) { n.adapters.Unuse(name, at) }

// AdapterCounts counts the adapters that the node's engine lists or has loaded, by state: loaded,
// listed or unknown. AdapterCounts returns nil for a node without adapters.
func (n *Node) AdapterCounts() map[string]int {
	var counts map[string]int
	for _, s := range n.adapters.States() {
		if !s.Listed && s.Used.IsZero() {
			continue
		}
		if counts == nil {
			counts = map[string]int{"loaded": 0, "listed": 0, "unknown": 0}
		}
		switch {
		case !s.Known:
			counts["unknown"]++
		case s.Loaded:
			counts["loaded"]++
		default:
			counts["listed"]++
		}
	}
	return counts
}

// baseOf returns the model whose adapter the node's engine says the given model is; "" for none.
func (i *Info) baseOf(model string) string {
	return i.bases[model]
}

// findBases returns the base of each of the models.
func (i *Info) findBases() map[string]string {
	bases := make(map[string]string, len(i.Models))
	for _, name := range i.Models {
		bases[name] = ""
	}
	for _, a := range slices.Backward(i.Adapters) { // the first of a name counts
		if _, serves := bases[a.Name]; serves {
			bases[a.Name] = a.Base
		}
	}
	return bases
}

// serves says whether the node serves a model of this name that is no adapter.
func (i *Info) serves(name string) bool {
	base, serves := i.bases[name]
	return serves && base == ""
}

// Bases returns the node's models that are no adapters.
func (i *Info) Bases() (names []string) {
	for _, name := range i.Models {
		if i.baseOf(name) == "" {
			names = append(names, name)
		}
	}
	return names
}

// listAge bounds the age of the list of models in a heartbeat.
const listAge = time.Minute

// takeAdapters stores what a heartbeat that came at now says of the engine's adapters.
func (n *Node) takeAdapters(h *cluster.NodeHealth, now time.Time) {
	if len(h.Models) > 0 { // otherwise the agent has not read the engine's list yet
		n.adapters.List(h.Listed(), lora.KeepingOf(h.Engine), now.Add(-listAge))
	}
	n.adapters.Clamp(now)
	n.adapters.SetSlots(h.AdapterSlots)
	for i := range h.Adapters {
		if at, ok := h.Adapters[i].UsedAt(now); ok {
			n.adapters.Use(h.Adapters[i].Name, at)
		}
	}
}

// expectAdapters tells the nodes which adapters they serve that their engines load at the first
// request. Nodes with the same adapters get one list.
func (s *Snapshot) expectAdapters() {
	shared, expected := map[*ModelView][]lora.Adapter{}, map[*Node][]lora.Adapter{}
	for _, m := range s.models {
		if m.Base == nil || m.Settings == nil || m.Settings.Base == "" {
			continue
		}
		a := lora.Adapter{Name: m.Name, Base: m.Base.Name}
		if sameList(m.Nodes, m.Base.Nodes) && sameList(m.Prefill, m.Base.Prefill) {
			shared[m.Base] = append(shared[m.Base], a)
			continue
		}
		for _, n := range slices.Concat(m.Nodes, m.Prefill) {
			expected[n] = n.unlisted(expected[n], []lora.Adapter{a})
		}
	}
	for _, base := range s.models {
		adapters := shared[base]
		if len(adapters) == 0 {
			continue
		}
		for _, n := range slices.Concat(base.Nodes, base.Prefill) {
			expected[n] = n.unlisted(expected[n], adapters)
		}
	}
	for _, n := range s.Nodes {
		n.adapters.Expect(expected[n])
	}
}

// sameList says whether both are one slice.
func sameList(a, b []*Node) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// unlisted appends to before the adapters that the node's engine does not list. The result may be
// adapters itself.
func (n *Node) unlisted(before, adapters []lora.Adapter) []lora.Adapter {
	models := n.Info().bases
	lists := func(a lora.Adapter) bool { _, listed := models[a.Name]; return listed }
	if len(before) == 0 && !slices.ContainsFunc(adapters, lists) {
		return slices.Clip(adapters)
	}
	for _, a := range adapters {
		if !lists(a) {
			before = append(before, a)
		}
	}
	return before
}
