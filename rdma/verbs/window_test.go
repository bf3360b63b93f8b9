//go:build linux && cgo && rdma

package verbs

import (
	"context"
	"errors"
	"testing"

	"github.com/cognitora/dataplane/rdma"
)

// closedWith checks that a pair is closed: the card has no object of it, so nobody can read through
// it.
func closedWith(t *testing.T, p *pair, before resources) {
	t.Helper()
	if u := used(t, p.d.name); u.QP != before.QP || u.MR != before.MR {
		t.Errorf("in use yet: %+v, before: %+v", u, before)
	}
	if !p.isBroken() {
		t.Error("the pair does not say that it is broken")
	}
}

// TestRevokesWhatItCannot: if one of several windows cannot be revoked, the pair is closed and all
// its windows are gone.
func TestRevokesWhatItCannot(t *testing.T) {
	kinds(t, func(t *testing.T, d *device) {
		mem := registeredIn(t, d, 1<<20)
		for name, list := range map[string]func(w, other *pair) []rdma.Window{
			"twice in it": func(w, _ *pair) []rdma.Window { g := granted(t, w, mem); return append(g, g...) },
			"revoked": func(w, _ *pair) []rdma.Window {
				g := granted(t, w, mem, mem)
				if err := w.Revoke(within(t), g[:1]); err != nil {
					t.Fatal(err)
				}
				return g
			},
			"another's": func(w, other *pair) []rdma.Window {
				return append(granted(t, w, mem), granted(t, other, mem)...)
			},
			"none of us": func(w, _ *pair) []rdma.Window { return append(granted(t, w, mem), nil) },
		} {
			t.Run(name, func(t *testing.T) {
				other, r := connected(t, d, d, rdma.PairOptions{})
				before := used(t, d.name)
				w := granting(t, d, r)
				windows := list(w, other)
				if name == "another's" && !d.limit.Windows {
					before.MR++ // other has a window that w cannot revoke
				}
				if err := w.Revoke(within(t), windows); err == nil {
					t.Error("it says that all is well")
				}
				closedWith(t, w, before)
			})
		}
	})
}

// granting returns a pair that another one can read through. The test must close the pair.
func granting(t *testing.T, d *device, to *pair) *pair {
	t.Helper()
	w, err := d.pair(rdma.PairOptions{})
	if err == nil {
		err = w.Connect(to.Local())
	}
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// TestGrantFails: if a card binds some windows of a Grant and refuses another, the whole pair is
// closed.
func TestGrantFails(t *testing.T) {
	d := opened(t)
	d.limit.Windows = true
	mem := registeredIn(t, d, 1<<20)
	_, r := connected(t, d, d, rdma.PairOptions{})
	before := used(t, d.name)
	w := granting(t, d, r)
	many := make([][]byte, 100) // more than fit into a chain
	for i := range many {
		many[i] = mem
	}
	if err := w.Revoke(within(t), granted(t, w, many...)); err != nil {
		t.Fatal(err)
	}
	w.windows.idle[0] = granted(t, w, mem)[0].(*window).o // it is bound already, and is the last to be taken
	if _, err := w.Grant(within(t), many); !errors.Is(err, rdma.ErrBroken) {
		t.Errorf("a window that is bound was bound once more: %v", err)
	}
	closedWith(t, w, before)
}

// TestGrantStays: if the registrations of a failed Grant cannot be undone, they end with the pair.
func TestGrantStays(t *testing.T) {
	d := opened(t)
	d.limit.Windows = false
	mem := registeredIn(t, d, 1<<20)
	_, r := connected(t, d, d, rdma.PairOptions{})
	before := used(t, d.name)
	w := granting(t, d, r)
	half, err := w.register(context.Background(), [][]byte{mem})
	if err != nil {
		t.Fatal(err)
	}
	stuck := &half[0].(*window).r.object
	stuck.held++ // as a faulty driver would
	if err := w.deregister(half); !errors.Is(err, ErrInUse) || !w.isBroken() {
		t.Errorf("broken: %v, %v", w.isBroken(), err)
	}
	stuck.held--
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	closedWith(t, w, before)
}
