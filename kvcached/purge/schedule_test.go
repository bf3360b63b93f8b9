package purge

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
)

// world simulates a fleet in memory. etcd loses data or goes back. The hosts are cut off, pull
// blocks from each other and restart. A moment is the number of events so far.
type world struct {
	t     *testing.T
	r     *rand.Rand
	now   int
	etcd  *List
	was   []*List // earlier states of etcd's list
	hosts []*node
	trail []string
}

// node is a host. A node has at most one block of each model.
type node struct {
	*Ledger
	id      int
	dir     string
	blocks  map[string]int // by model: the moment when the block was made
	cut     bool           // cut off from etcd
	known   bool           // the host has read etcd's list since its start
	purged  map[string]int // by model: blocks made at this moment or before must not be served
	crashes bool
}

var models = []string{"a", "b", "c"}

func (n *node) put(model string, made int) { n.blocks[model] = made }

// Purge removes the matching blocks one by one. A crash leaves some of these blocks.
func (n *node) Purge(_ context.Context, match func(string, []byte) bool) (blocks int, err error) {
	for _, m := range models {
		if _, there := n.blocks[m]; there && match(space(m), nil) {
			if n.crashes {
				return blocks, fmt.Errorf("crash")
			}
			delete(n.blocks, m)
			blocks++
		}
	}
	return blocks, nil
}

func (w *world) say(format string, args ...any) {
	w.trail = append(w.trail, fmt.Sprintf("%d: ", w.now)+fmt.Sprintf(format, args...))
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// start restarts a host. The host keeps its blocks, as an SSD tier does.
func (w *world) start(n *node) {
	w.say("%d starts", n.id)
	old := n.Ledger
	n.Ledger = open(w.t, Options{Dir: n.dir, Store: n})
	if n.dir == "" && old != nil { // the ledger goes on with its old lists, as if a file had kept them
		known := old.List()
		n.Ledger.known.Store(known)
		n.done.Store(known)
		if old.done.Load() != known {
			n.done.Store(&List{History: known.History})
			_, err := n.Take(w.t.Context(), known)
			w.must(err)
		}
	}
	n.known = false
	n.purged = map[string]int{}
	for _, m := range models {
		n.purged[m] = w.hosts[0].purged["fleet "+m]
	}
	w.restore(n)
	w.refresh(n)
}

// restore lets a host that does not know the purges yet ask the other hosts.
func (w *world) restore(n *node) {
	if !n.known && !n.cut {
		w.others()
	}
}

// others writes the lists of all hosts to etcd after etcd has lost its data.
func (w *world) others() {
	for _, n := range w.hosts[1:] {
		if n.Ledger != nil {
			w.etcd = merge(w.t, n.List(), w.etcd)
		}
	}
}

func (w *world) write(n *node, change func(*List) (*List, error)) (*List, bool) {
	if n.cut {
		return nil, false
	}
	mine := n.List()
	list, err := Merge(mine, w.etcd)
	if err == nil {
		list, err = change(list)
	}
	w.must(err)
	if list != w.etcd {
		w.was, w.etcd = append(w.was, w.etcd), list
	}
	_, err = n.Replace(w.t.Context(), mine, list)
	return list, err == nil
}

func (w *world) refresh(n *node) {
	if _, done := w.write(n, func(l *List) (*List, error) { return l, nil }); done {
		n.known = true
	}
}

// purge carries out a purge in the fleet: on n and then on the hosts that etcd lists.
func (w *world) purge(n *node) {
	m := models[w.r.IntN(len(models))]
	s := Selector{Model: m}
	if w.r.IntN(8) == 0 {
		s = Selector{Everything: true}
	}
	began := w.now
	list, here := w.write(n, func(l *List) (*List, error) { return l.With(s) })
	if list == nil {
		return
	}
	w.say("%d purges %+v: %d of %x", n.id, s, list.Revision, list.History)
	confirm := func(purged map[string]int, prefix string) {
		for _, m := range models {
			if s.Everything || s.Model == m {
				purged[prefix+m] = max(purged[prefix+m], began)
			}
		}
	}
	confirm(w.hosts[0].purged, "fleet ")
	if here {
		confirm(n.purged, "")
	}
	for _, other := range w.hosts[1:] {
		if other == n || other.cut && w.r.IntN(2) == 0 {
			continue // etcd does not list the host, or the host is not reached
		}
		_, err := other.Take(w.t.Context(), list)
		if err == ErrHistory {
			w.refresh(other)
			_, err = other.Take(w.t.Context(), list)
		}
		if err == nil {
			w.say("%d confirms", other.id)
			confirm(other.purged, "")
		} else {
			w.say("%d does not confirm: %v", other.id, err)
		}
	}
}

// pull copies a block from one host to another. pull calls between after the holder was asked.
func (w *world) pull(to, from *node, between func()) {
	m := models[w.r.IntN(len(models))]
	asked, has := to.Stamp(), from.Stamp()
	if !to.known || !from.known || asked.History != 0 && has.History != 0 && asked.History != has.History {
		return
	}
	b, there := from.blocks[m]
	if !there {
		return
	}
	between()
	if _, there := to.blocks[m]; !there && !to.Bars(Stamp{asked.History, has.State}, space(m), nil) {
		w.say("%d has %s of %d from %d, %+v", to.id, m, b, from.id, has)
		to.put(m, b)
	}
}

func (w *world) check() {
	for _, n := range w.hosts[1:] {
		for m, b := range n.blocks {
			if n.known && b <= n.purged[m] && n.purged[m] > 0 {
				for _, line := range w.trail {
					w.t.Log(line)
				}
				w.t.Fatalf("host %d serves %s of %d, which was purged at %d", n.id, m, b, n.purged[m])
			}
		}
	}
}

func (w *world) event() {
	w.now++
	n := w.hosts[1+w.r.IntN(len(w.hosts)-1)]
	other := w.hosts[1+w.r.IntN(len(w.hosts)-1)]
	switch w.r.IntN(16) {
	case 0, 1, 2, 3:
		m := models[w.r.IntN(len(models))]
		n.put(m, w.now)
		w.say("%d makes %s", n.id, m)
	case 4, 5, 6:
		w.pull(n, other, func() {})
	case 7:
		w.pull(n, other, func() { w.purge(w.hosts[1+w.r.IntN(len(w.hosts)-1)]) })
	case 8, 9:
		w.purge(n)
	case 10:
		n.crashes = w.r.IntN(2) == 0
		w.purge(n)
		n.crashes = false
		w.start(n)
	case 11:
		w.start(n)
	case 12:
		w.say("%d is cut off", n.id)
		n.cut = true
	case 13:
		n.cut = false
		w.restore(n)
		w.refresh(n)
		w.say("%d reaches etcd", n.id)
	case 14:
		w.say("etcd is empty")
		w.etcd = nil
		if w.r.IntN(2) == 0 { // a host that knows less may write first
			w.refresh(n)
		}
	case 15:
		if len(w.was) > 0 && w.r.IntN(2) == 0 {
			w.etcd = w.was[w.r.IntN(len(w.was))]
			w.say("etcd is set back: %+v", w.etcd)
			if w.r.IntN(2) == 0 { // a host that knows less may be the first to purge
				w.refresh(n)
				w.purge(n)
			}
			if w.r.IntN(2) == 0 {
				w.others()
			}
		} else {
			w.refresh(n)
		}
	}
	w.check()
}

// TestSchedules runs random orders of purges, pulls, restarts, crashes and losses of etcd. No host
// may serve a block that is older than a purge which the host has confirmed. A host also serves no
// block that is older than a purge before the host's start.
func TestSchedules(t *testing.T) {
	const schedules = 5000
	for seed := range uint64(schedules) {
		w := &world{t: t, r: rand.New(rand.NewPCG(seed, 1))}
		w.hosts = []*node{{purged: map[string]int{}}} // the purged of hosts[0] has the purges of the whole fleet
		for i := range 3 {
			n := &node{id: i + 1, blocks: map[string]int{}}
			if seed%100 == 0 {
				n.dir = t.TempDir()
			}
			w.hosts = append(w.hosts, n)
			w.start(n)
		}
		for range 60 {
			w.event()
		}
	}
}

// TestFork cuts host 1 off from etcd after a purge and sets etcd back to the state before that
// purge. Host 2, which was away, then purges something else. The lists of both hosts now have the
// same history and revision. Host 1 takes no block from host 2 that is older than host 1's purge.
func TestFork(t *testing.T) {
	w := &world{t: t, r: rand.New(rand.NewPCG(1, 1))}
	w.hosts = []*node{{purged: map[string]int{}}}
	for i := range 2 {
		n := &node{id: i + 1, blocks: map[string]int{}}
		w.hosts = append(w.hosts, n)
		w.start(n)
	}
	one, two := w.hosts[1], w.hosts[2]
	purge := func(n *node, model string) {
		w.write(n, func(l *List) (*List, error) { return l.With(Selector{Model: model}) })
	}
	w.refresh(one)
	w.refresh(two)
	for _, m := range models {
		two.put(m, 1)
	}
	before := w.etcd
	w.now = 2
	purge(one, "a")
	one.purged["a"] = 2
	one.cut, w.etcd = true, before
	w.refresh(two)
	purge(two, "c")
	if one.Revision() != two.Revision() || one.Stamp().History != two.Stamp().History || one.Stamp() == two.Stamp() {
		t.Fatalf("%+v, %+v", one.Stamp(), two.Stamp())
	}
	for range 100 {
		w.pull(one, two, func() {})
	}
	w.check()
	if _, there := one.blocks["b"]; !there {
		t.Error("a block that no purge names is not taken")
	}
	one.cut = false
	for range 2 {
		w.refresh(one)
		w.refresh(two)
	}
	w.check()
	if _, there := two.blocks["a"]; there {
		t.Error("a purge that etcd has lost is not carried out")
	}
}
