package residency

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cognitora/dataplane/kv/block"
)

// These are the longest names of an engine and of an adapter, in bytes.
const (
	MaxEngineName  = 136 // a node's id, and the number of a data-parallel rank
	MaxAdapterName = 256
)

// Kind is the kind of an engine's event.
type Kind uint8

// These are the events of an engine's cache.
const (
	Stored  Kind = iota + 1 // the engine now has Digests, a run of blocks that follows Parent
	Removed                 // the engine no longer has Digests, which have any order
	Cleared                 // the engine has no block in any tier
)

// Event is a change of an engine's blocks. A block holds all layers. The namespace names the
// block's tensor- and pipeline-parallel rank.
type Event struct {
	Kind      Kind
	Namespace string // canonical text of a model's namespace
	Tier      Tiers  // tier of the change
	Pinned    bool   // the engine will not evict the stored blocks
	// name of the blocks' LoRA adapter; "" means none. The name is a label, because digests differ
	// by adapter anyway
	Adapter string
	Parent  block.Digest
	Digests []block.Digest // Report does not keep the slice
}

// Report is one report of an engine. Reports have an order.
type Report struct {
	Engine string // the fleet's node id; with several data-parallel ranks followed by the rank
	Epoch  uint64 // of the engine's incarnation; a later one is larger
	Number uint64 // number of this report: the number of the previous report plus 1, unless Fresh
	Fresh  bool   // earlier reports no longer count; Events are the complete state's beginning
	Gone   bool   // the engine has ended; no Events
	Events []Event
	// Reads are the namespaces of the daemon's blocks that the engine can read, at most MaxReads.
	// Nil: the report does not say. Empty: the engine can read none.
	Reads []string
}

// reportStep is the number of blocks applied per hold of the lock.
const reportStep = 64

// Report applies a report as a whole or not at all. A repeated report changes nothing. The error is
// ErrGap, ErrStale, ErrReport or ErrEngines. After ErrGap the engine must begin anew with a Fresh
// report. Reports wait for each other.
func (x *Index) Report(r *Report) error {
	x.reports.Lock()
	defer x.reports.Unlock()
	ids, err := x.check(r)
	if err != nil {
		return err
	}
	h, err := x.accept(r)
	if h == nil {
		return err
	}
	for i := range r.Events {
		e := &r.Events[i]
		if e.Kind == Cleared {
			h = x.replace(h)
			continue
		}
		parent := prefix(&e.Parent)
		for from := 0; from < len(e.Digests); from += reportStep {
			parent = x.take(h, e, ids[i], e.Digests[from:min(from+reportStep, len(e.Digests))], parent)
		}
	}
	return nil
}

// check refuses a malformed report. check returns the namespaces' ids, which are valid until the
// next call. The caller holds x.reports.
func (x *Index) check(r *Report) ([]block.ModelID, error) {
	bad := func(format string, args ...any) ([]block.ModelID, error) {
		return nil, fmt.Errorf("%w: %s", ErrReport, fmt.Sprintf(format, args...))
	}
	if r.Engine == "" || len(r.Engine) > MaxEngineName {
		return bad("engine has %d bytes; give the node's id, 1 to %d bytes", len(r.Engine), MaxEngineName)
	}
	if r.Gone && len(r.Events) > 0 {
		return bad("events of an engine that is gone; send them before")
	}
	if len(r.Reads) > MaxReads {
		return bad("the engine reads %d namespaces; name at most %d", len(r.Reads), MaxReads)
	}
	for _, text := range r.Reads {
		if err := CheckRead(r.Engine, text); err != nil {
			return bad("reads: %v", err)
		}
	}
	ids := slices.Grow(x.ids[:0], len(r.Events))[:len(r.Events)]
	x.ids = ids
	for i := range r.Events {
		e := &r.Events[i]
		switch {
		case e.Kind == Cleared:
			continue
		case e.Kind != Stored && e.Kind != Removed:
			return bad("event %d is of kind %d; use stored, removed or cleared", i, e.Kind)
		case e.Tier == 0 || e.Tier&^anyTier != 0:
			return bad("event %d has medium %d; use device, host, disk or shared", i, e.Tier)
		case len(e.Adapter) > MaxAdapterName:
			return bad("event %d has an adapter of %d bytes; give its name, at most %d", i, len(e.Adapter),
				MaxAdapterName)
		}
		if i > 0 && e.Namespace == r.Events[i-1].Namespace && r.Events[i-1].Kind != Cleared {
			ids[i] = ids[i-1]
			continue
		}
		var err error
		if ids[i], err = x.checked.id(e.Namespace); err != nil {
			return bad("event %d: %v", i, err)
		}
	}
	return ids, nil
}

// maxChecked bounds the namespaces that are remembered as well-formed.
const maxChecked = 64

// checked holds the ids of well-formed namespaces of engines by their texts. Most reports have the
// namespace of an earlier one. Parsing takes four times as long as the rest of a small report.
type checked map[string]block.ModelID

// id returns the id of a namespace, or an error if it is not a namespace of a model.
func (c checked) id(text string) (block.ModelID, error) {
	if id, ok := c[text]; ok {
		return id, nil
	}
	n, err := block.ParseNamespace(text)
	if err != nil {
		return block.ModelID{}, err
	}
	if n.Space != "" {
		return block.ModelID{}, errors.New("an engine has no blocks of a namespace of keys")
	}
	if len(c) >= maxChecked {
		clear(c)
	}
	id := block.IDOf(text)
	c[strings.Clone(text)] = id
	return id, nil
}

// accept finds the reporting holder. accept returns nil without an error if there is nothing to
// apply.
func (x *Index) accept(r *Report) (*holder, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	h := x.engines[r.Engine]
	if h != nil && r.Epoch < h.Epoch {
		return nil, fmt.Errorf("%w: it began with epoch %d, the report is of %d", ErrStale, h.Epoch, r.Epoch)
	}
	switch {
	case r.Gone:
		if h != nil {
			x.leave(h)
		}
		return nil, nil
	case r.Fresh:
		if h != nil {
			x.stats.Restarts++
			x.leave(h)
		} else if len(x.engines) >= x.maxEngines {
			return nil, fmt.Errorf("%w: %d", ErrEngines, x.maxEngines)
		}
		h = x.join(r.Engine, r.Epoch)
		x.engines[r.Engine] = h
	case h == nil || r.Epoch != h.Epoch:
		return nil, fmt.Errorf("%w: this start of the engine is not known; begin with a fresh report", ErrGap)
	case r.Number < h.next:
		h.heard = time.Now()
		return nil, nil
	case r.Number > h.next:
		return nil, fmt.Errorf("%w: number %d came, %d is due; send it, or begin with a fresh report", ErrGap, r.Number,
			h.next)
	}
	h.next, h.heard = r.Number+1, time.Now()
	if !slices.Equal(h.reads, r.Reads) || (h.reads == nil) != (r.Reads == nil) {
		if h.reads = nil; r.Reads != nil {
			h.reads = make([]string, 0, len(r.Reads))
		}
		for _, text := range r.Reads {
			h.reads = append(h.reads, strings.Clone(text))
		}
		x.tellReaders()
	}
	return h, nil
}

// replace replaces a holder by a new, empty one.
func (x *Index) replace(old *holder) *holder {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.holders[old.Number] != old {
		return old // expired meanwhile
	}
	x.leave(old)
	h := x.join(old.Engine, old.Epoch)
	h.next, h.heard, h.reads = old.next, old.heard, old.reads
	x.engines[h.Engine] = h
	return h
}

// take applies some blocks of an event. take returns the last one as the parent of the next blocks.
func (x *Index) take(h *holder, e *Event, id block.ModelID, digests []block.Digest, parent uint64) uint64 {
	x.mu.Lock()
	defer x.mu.Unlock()
	ns, ok := x.space(id, e.Namespace, e.Kind == Stored)
	if !ok || x.holders[h.Number] != h {
		return 0
	}
	adapter := h.usage.adapter(e.Adapter)
	for i := range digests {
		n := news{own: prefix(&digests[i]), layer: block.LayerAll, namespace: ns, remove: Pinned}
		switch {
		case e.Kind == Removed:
			n.remove |= e.Tier
		case e.Pinned:
			n.add, n.remove = e.Tier|Pinned, 0
		default:
			n.add = e.Tier
		}
		if e.Kind == Stored {
			n.adapter, n.parent, parent = adapter, parent, n.own
		}
		x.set(h, &n)
	}
	x.settle(settleStep + len(digests))
	return parent
}

// Expire forgets the engines without a report for the given time and returns their number. An
// engine that comes back must report everything anew. A report without events is a sign of life.
func (x *Index) Expire(silent time.Duration) (engines int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	for _, h := range x.engines {
		if now.Sub(h.heard) > silent {
			x.leave(h)
			x.stats.Expired++
			engines++
		}
	}
	return engines
}
