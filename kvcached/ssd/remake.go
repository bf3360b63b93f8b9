package ssd

import (
	"errors"
	"sync"

	"github.com/cognitora/dataplane/kv/block"
)

// rebuilders is how many segments are read at once.
const rebuilders = 8

// remakeBatch is how many rows are written at once, under the locks of their addresses.
const remakeBatch = 256

// rebuilder makes rows again.
type rebuilder struct {
	t     *Tier
	found *index // the newest that was found of each address, alive or dead: as large as the tier's index
	total int

	mu   sync.Mutex
	done int
	err  error
}

// finding is what a segment says of an address: a record, or that it is dead.
type finding struct {
	addr block.Addr
	e    entry
	row  row
}

// rebuild makes the rows of the segments before resume.below.
func (t *Tier) rebuild() error {
	b := rebuilder{t: t, found: newIndex()}
	if err := b.prime(); err != nil {
		return err
	}
	var from []*segment
	for _, s := range t.segs.all() {
		if s.id < t.resume.below {
			from = append(from, s)
		}
	}
	b.total = len(from)
	if err := b.run(from); err != nil {
		return err
	}
	c := t.rows.change()
	_ = c.batch.Delete([]byte{rowRebuild}, nil)
	if err := c.commit(true); err != nil {
		return err
	}
	t.dead = nil
	t.stats.rebuilt.Store(b.live())
	t.rebuilding.Store(false)
	t.o.Logger.Info("ssd: the rows of the index are made again", "blocks", t.stats.rebuilt.Load(), "dropped",
		t.stats.unproven.Load())
	return nil
}

// prime tells the rebuilder what has been recovered from later segments: it is newer than all that
// it will find.
func (b *rebuilder) prime() error {
	t := b.t
	for a, seq := range t.dead {
		b.note(entry{hash: t.index.hash(&a), seq: seq, state: stateDead})
	}
	return t.rows.each([]byte{rowRecord}, []byte{rowRecord + 1}, func(key, value []byte) bool {
		var r row
		if a, ok := parseAddr(key[1:]); ok && r.decode(value) == nil && r.segment >= t.resume.below {
			b.note(r.entry(t.index.hash(&a), 0))
		}
		return t.stop.Err() == nil
	})
}

// note remembers e if nothing as new is known of its address.
func (b *rebuilder) note(e entry) (newest bool) {
	_, newest = b.found.put(e, func(old *entry) bool { return old.state != 0 && old.seq >= e.seq })
	return newest
}

// live is how many addresses have a record that was found.
func (b *rebuilder) live() (n uint64) {
	for i := range b.found.shards {
		s := &b.found.shards[i]
		for j := range s.slots {
			if e := &s.slots[j]; e.state == stateLive && e.segment < b.t.resume.below {
				n++
			}
		}
	}
	return n
}

func (b *rebuilder) run(from []*segment) error {
	todo := make(chan *segment)
	var wg sync.WaitGroup
	for range rebuilders {
		wg.Go(func() {
			for s := range todo {
				if b.t.o.scanning != nil {
					b.t.o.scanning()
				}
				r := remaking{b: b, s: s, keys: map[block.ModelID]bool{}}
				b.finished(r.run())
			}
		})
	}
	for _, s := range from {
		todo <- s
	}
	close(todo)
	wg.Wait()
	return b.err
}

func (b *rebuilder) finished(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err == nil {
		b.err = err
	}
	if b.done++; b.done%64 == 0 || b.done == b.total {
		b.t.o.Logger.Info("ssd: making the rows of the index again", "segments", b.done, "of", b.total)
	}
}

// remaking is one segment's turn.
type remaking struct {
	b    *rebuilder
	s    *segment
	keys map[block.ModelID]bool // whether the namespace's blocks are dropped
	list []finding              // not in the rows yet
	err  error
}

func (r *remaking) run() error {
	t := r.b.t
	table, bad := footerOf(r.s)
	switch {
	case bad == nil:
		r.headers(table)
	case r.s.id < t.resume.doubted:
		// What of it a failed write has left cannot be told. It is believed that all is over that
		// it says is new.
		bad = t.walk(t.stop, r.s, 1, r.s.pageCount(), false, func(h *header, head []byte, _ error) {
			r.visit(h, head, errRecord)
		})
		r.fail(bad)
	default:
		r.fail(t.walk(t.stop, r.s, 1, r.s.pageCount(), true, func(h *header, head []byte, damage error) {
			if damage == nil {
				r.s.note(h)
			}
			r.visit(h, head, damage)
		}))
		r.seal()
	}
	r.commit()
	r.fail(t.stop.Err())
	return r.err
}

func (r *remaking) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

// seal gives the segment the footer that a crash kept it from getting.
func (r *remaking) seal() {
	if s := r.s; r.err == nil && len(s.table) > 0 {
		last := &s.table[len(s.table)-1]
		s.next = last.page + last.pages()
		if err := r.b.t.sealSegment(s); err != nil {
			r.b.t.writeFailed("seal", err)
		}
	}
	r.s.table = nil
}

// dense is how many headers in a window make it worth reading as a whole.
const dense = 8

// headers visits the records in the footer's table, whose order is that of their pages.
func (r *remaking) headers(table []tableEntry) {
	window := alignedBytes(walkWindow)
	start, have := uint32(0), uint32(0) // pages in the window
	for i := range table {
		if r.err != nil || r.b.t.stop.Err() != nil {
			return
		}
		e := &table[i]
		var damage error
		if e.page < start || e.page >= start+have {
			start, have = e.page, 1
			if j := i + dense; j < len(table) && table[j].page > e.page && table[j].page-e.page < walkWindow/page {
				have = min(walkWindow/page, r.s.pageCount()-e.page)
			}
			if damage = r.s.f.ReadAt([][]byte{window[:have*page]}, int64(start)*page); damage != nil && have > 1 {
				have = 1
				damage = r.s.f.ReadAt([][]byte{window[:page]}, int64(start)*page)
			}
		}
		head := window[(e.page-start)*page:][:page]
		var h header
		if damage == nil {
			damage = h.decode(head)
		}
		if damage == nil && (h.place != place{r.s.id, e.page} || h.salt != r.s.salt || h.Addr != e.addr ||
			h.seq != e.seq) {
			damage = errRecord
		}
		if damage != nil {
			r.b.t.stats.corrupt.Add(1)
			r.b.t.warnDamaged("ssd: a record that its segment names is damaged; it is dropped", place{r.s.id, e.page},
				damage)
			h = header{seq: e.seq, flags: e.flags, place: place{r.s.id, e.page}, Record: Record{Addr: e.addr}}
		}
		r.visit(&h, head, damage)
	}
}

// visit takes up what a header says. A record that is damaged still says that older ones are over.
func (r *remaking) visit(h *header, head []byte, damage error) {
	t := r.b.t
	if h.flags&flagGraves != 0 {
		graves, err := t.gravesOf(r.s, h, head)
		if err != nil {
			t.stats.corrupt.Add(1)
		}
		for i := range graves {
			r.dead(&graves[i].addr, graves[i].seq, h.place)
		}
		return
	}
	if damage != nil {
		r.dead(&h.Addr, h.seq, h.place)
		return
	}
	dropped, known := r.keys[h.Addr.Model]
	if !known {
		n, err := block.ParseNamespace(h.Namespace)
		if dropped = err != nil || n.Space != ""; !dropped {
			err = t.names.ensure(t.rows, h.Addr.Model, h.Namespace)
			dropped = errors.Is(err, ErrInvalid)
			if !dropped {
				r.fail(err)
			}
		}
		r.keys[h.Addr.Model] = dropped
	}
	if dropped {
		t.stats.unproven.Add(1)
		return
	}
	found := rowOf(h)
	found.key, found.attr = append([]byte(nil), h.Key...), append([]byte(nil), h.Attr...)
	r.add(finding{h.Addr, found.entry(t.index.hash(&h.Addr), 0), found})
}

func (r *remaking) dead(a *block.Addr, seq uint64, p place) {
	r.add(finding{addr: *a, e: entry{hash: r.b.t.index.hash(a), seq: seq, place: p, state: stateDead}})
}

func (r *remaking) add(f finding) {
	if !r.b.note(f.e) {
		return
	}
	if r.list = append(r.list, f); len(r.list) >= remakeBatch {
		r.commit()
	}
}

// commit writes the rows of what is still the newest that was found, and was neither written nor
// deleted since Open.
func (r *remaking) commit() {
	t := r.b.t
	if len(r.list) == 0 || r.err != nil {
		return
	}
	addrs := make([]block.Addr, len(r.list))
	for i := range r.list {
		addrs[i] = r.list[i].addr
	}
	locked := t.lockAll(addrs)
	defer t.unlockAll(locked)
	c := t.rows.change()
	for i := range r.list {
		f := &r.list[i]
		if _, touched := t.index.get(f.e.hash); touched {
			continue
		}
		if newest, _ := r.b.found.get(f.e.hash); !newest.same(&f.e) {
			continue
		}
		if f.e.state == stateLive {
			c.put(&f.addr, &f.row)
		} else {
			c.drop(&f.addr)
		}
	}
	r.list = r.list[:0]
	r.fail(c.commit(false))
}
