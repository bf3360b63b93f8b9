package cluster

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/cognitora/dataplane/internal/lora"
)

// Adapter is a LoRA adapter in a node's value.
type Adapter struct {
	Name string `json:"name"`
	Base string `json:"base,omitempty"`
	// IdleMs is the time since the engine computed for the adapter, in milliseconds; absent: not
	// known to have done so.
	IdleMs *int64 `json:"idle_ms,omitempty"`
}

// maxAdapterSlots bounds the adapters that an engine can use at once.
const maxAdapterSlots = 1 << 16

// AdaptersOf returns the adapters that an engine lists, for its node's value.
func AdaptersOf(states []lora.State, now time.Time) (all []Adapter) {
	for _, s := range states {
		if !s.Listed {
			continue
		}
		a := Adapter{Name: s.Name, Base: s.Base}
		if !s.Used.IsZero() {
			idle := max(now.Sub(s.Used), 0).Milliseconds()
			a.IdleMs = &idle
		}
		all = append(all, a)
	}
	return all
}

// UsedAt returns when the engine computed for the adapter, for a value that came at now. ok is
// false if that is unknown.
func (a *Adapter) UsedAt(now time.Time) (at time.Time, ok bool) {
	if a.IdleMs == nil {
		return time.Time{}, false
	}
	return now.Add(-time.Duration(*a.IdleMs) * time.Millisecond), true
}

// Listed returns the adapters without their use.
func (h *NodeHealth) Listed() (all []lora.Adapter) {
	for _, a := range h.Adapters {
		all = append(all, lora.Adapter{Name: a.Name, Base: a.Base})
	}
	return all
}

func (h *NodeHealth) checkAdapters() error {
	if len(h.Adapters) > maxModels {
		return fmt.Errorf("%d adapters; at most %d are allowed", len(h.Adapters), maxModels)
	}
	for _, a := range h.Adapters {
		if !modelFits(a.Name) || len(a.Base) > maxModelBytes {
			return fmt.Errorf("adapters holds an empty name, or one or a base above %d bytes", maxModelBytes)
		}
		if a.IdleMs != nil && *a.IdleMs < 0 {
			return fmt.Errorf("adapter %s: idle_ms %d is negative", a.Name, *a.IdleMs)
		}
	}
	if h.AdapterSlots < 0 || h.AdapterSlots > maxAdapterSlots {
		return fmt.Errorf("adapter_slots %d is not in 0..%d", h.AdapterSlots, maxAdapterSlots)
	}
	return nil
}

// fitAdapters leaves out adapters that no router would accept, and those that have no room beside
// the models. Routers know nothing of their loading then.
func (h *NodeHealth) fitAdapters() {
	names, _ := json.Marshal(h.Models)
	room, fit := maxModelsJSON-len(names), h.Adapters[:0:0]
	for _, a := range h.Adapters {
		text, err := json.Marshal(a)
		if room -= len(text) + len(","); err != nil || room < 0 || len(fit) == maxModels {
			break
		}
		if modelFits(a.Name) && len(a.Base) <= maxModelBytes {
			fit = append(fit, a)
		}
	}
	if h.Adapters = fit; h.AdapterSlots < 0 || h.AdapterSlots > maxAdapterSlots {
		h.AdapterSlots = 0
	}
}
