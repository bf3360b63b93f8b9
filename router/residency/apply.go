package residency

// Kind is the kind of an event.
type Kind uint8

// These are the events of an engine's cache.
const (
	Stored  Kind = iota + 1 // the node now holds Keys, a run of blocks that follows Parent
	Removed                 // the node no longer holds Keys
	Cleared                 // the node no longer holds any block
)

// Event is a change of the blocks that a node holds.
type Event struct {
	Kind Kind
	// Parent, for Stored, is the key of the block before Keys[0]; 0 if Keys[0] is the first block
	// of a prompt.
	Parent Key
	// Keys are blocks. The keys of a Removed event have any order. Apply does not keep the slice.
	Keys []Key
}

// Apply applies one batch of a node's events, in order. The first batch after Join may have any
// number; each further batch must have the next number. Otherwise Apply changes nothing and returns
// ErrGap or ErrSeen. ErrLeft says that the node has left, possibly in the middle of the batch.
//
// One goroutine at a time applies the batches of a node. Apply allocates only to enlarge a table.
// Other writers then wait, about 2 ms for a million blocks in groups, and 30 ms if all are single.
func (x *Index) Apply(ref Ref, number uint64, events []Event) error {
	if err := x.accept(ref, number); err != nil {
		return err
	}
	for len(events) > 0 {
		n := someOf(events)
		if err := x.applySome(ref, events[:n]); err != nil {
			return err
		}
		events = events[n:]
	}
	return nil
}

func (x *Index) accept(ref Ref, number uint64) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, ok := x.where(ref); !ok {
		return ErrLeft
	}
	s := &x.streams[ref.node()]
	switch {
	case s.started && number > s.next:
		return ErrGap
	case s.started && number < s.next:
		return ErrSeen
	}
	s.started, s.next = true, number+1
	return nil
}

// touchAhead is the number of blocks whose slots are loaded before the first of them is used.
const touchAhead = 128

// someOf returns the number of events to apply per hold of the lock: one, or several small ones
// with at most touchAhead blocks together.
func someOf(events []Event) int {
	blocks := 0
	for i := range events {
		if blocks += 1 + len(events[i].Keys); blocks > touchAhead {
			return max(i, 1)
		}
	}
	return len(events)
}

func (x *Index) applySome(ref Ref, events []Event) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	w, ok := x.where(ref)
	if !ok {
		return ErrLeft
	}
	s, bit := &x.shards[w.shard()], uint64(1)<<w.bit()
	if len(events) > 1 {
		m := s.table.Load().slots.Load()
		for i := range events {
			m.touch(events[i].Keys)
		}
	}
	blocks := 0
	for i := range events {
		e := &events[i]
		blocks += len(e.Keys)
		switch e.Kind {
		case Stored:
			x.store(s.table.Load(), bit, e)
		case Removed:
			x.remove(s.table.Load(), bit, e.Keys)
		case Cleared:
			w, _ = x.where(ref)
			s, bit = x.clear(ref, w)
		}
	}
	x.sweepSome(sweepStep + sweepPerBlock*blocks)
	return nil
}

// store adds a node to the holders of a run of blocks.
func (x *Index) store(t *holderTable, bit uint64, e *Event) {
	if _, unswept := x.unswept.first(); unswept && x.max-x.held < len(e.Keys) {
		x.sweepAll()
	}
	parent, after, before, room := e.Parent, -1, t.blocks, x.max-x.held
	defer func() { x.held += t.blocks - before }()
	if parent != 0 {
		after, _ = t.find(parent.leader(), -1)
	}
	for keys, touched := e.Keys, 0; len(keys) > 0; {
		if touched <= 0 {
			touched = min(len(keys), touchAhead)
			t.slots.Load().touch(keys[:touched])
		}
		n := run(keys)
		var done int
		if done, after = t.store(keys[:n], parent, bit, after+1, room-(t.blocks-before)); done < n {
			x.overflow += uint64(len(keys) - done)
			return
		}
		parent, keys, touched = keys[n-1], keys[n:], touched-n
	}
}

// remove removes a node from the holders of blocks.
func (x *Index) remove(t *holderTable, bit uint64, keys []Key) {
	near, before := -1, t.blocks
	for len(keys) > 0 {
		some := keys[:min(len(keys), touchAhead)]
		t.slots.Load().touch(some)
		for from, i := 0, 1; i <= len(some); i++ {
			if i == len(some) || some[i].leader() != some[from].leader() {
				near = t.remove(some[from:i], bit, near)
				from = i
			}
		}
		keys = keys[len(some):]
	}
	x.held += t.blocks - before
}
