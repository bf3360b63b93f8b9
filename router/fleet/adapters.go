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
	for _, a := range i.Adapters {
		if a.Name == model {
			return a.Base
		}
	}
	return ""
}

// serves says whether the node serves a model of this name that is no adapter.
func (i *Info) serves(name string) bool {
	return slices.Contains(i.Models, name) && i.baseOf(name) == ""
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
	n.adapters.SetSlots(h.AdapterSlots)
	for i := range h.Adapters {
		if at, ok := h.Adapters[i].UsedAt(now); ok {
			n.adapters.Use(h.Adapters[i].Name, at)
		}
	}
}

// expectAdapters tells the nodes which adapters they serve that their engines load at the first
// request.
func (s *Snapshot) expectAdapters() {
	expected := map[*Node][]lora.Adapter{}
	for _, m := range s.models {
		if m.Base == nil || m.Settings == nil || m.Settings.Base == "" {
			continue
		}
		for _, n := range slices.Concat(m.Nodes, m.Prefill) {
			if !slices.Contains(n.Info().Models, m.Name) {
				expected[n] = append(expected[n], lora.Adapter{Name: m.Name, Base: m.Base.Name})
			}
		}
	}
	for _, n := range s.Nodes {
		n.adapters.Expect(expected[n])
	}
}
