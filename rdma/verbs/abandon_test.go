//go:build linux && cgo && rdma

package verbs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/rdma"
)

func TestFreeFails(t *testing.T) {
	below := newObject("domain")
	above := newObject("queue pair", &below)
	free := func(err error) func() error { return func() error { return err } }
	if err := above.destroy(free(syscall.EIO)); !errors.Is(err, syscall.EIO) {
		t.Error(err)
	}
	if err := below.destroy(free(nil)); !errors.Is(err, ErrInUse) {
		t.Errorf("what an object hangs on that could not be destroyed: %v", err)
	}
	if err := errors.Join(above.destroy(free(nil)), below.destroy(free(nil))); err != nil || above.live || below.live {
		t.Error(err)
	}
}

// stays makes the destruction of a queue pair fail, as a faulty driver would.
func stays(p *pair) {
	p.q.mu.Lock()
	defer p.q.mu.Unlock()
	p.q.held++
}

// givenUp tells whether the device was abandoned because of stays. An abandoned device destroys
// nothing in order.
func givenUp(d *device) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return errors.Is(d.cause, ErrInUse)
}

// TestQueuePairStays: if a queue pair cannot be destroyed, the kernel has destroyed it when Read,
// Revoke or Close returns, and the device is gone. libibverbs leaks memory in this case, which
// AddressSanitizer would report at the end of the process. So with AddressSanitizer the test runs
// in a process without that report.
func TestQueuePairStays(t *testing.T) {
	const unasked = "detect_leaks=0"
	if underASan && os.Getenv("ASAN_OPTIONS") != unasked {
		itself(t, nil, "ASAN_OPTIONS="+unasked)
		return
	}
	closes := func(_, w *pair, _ []rdma.Window) error { return w.Close() }
	for name, end := range map[string]func(r, w *pair, windows []rdma.Window) error{
		"close": closes, "close, and its file has no name any more": closes,
		"revoke": func(_, w *pair, windows []rdma.Window) error {
			w.fail(rdma.ErrUnreachable)
			return w.Revoke(context.Background(), windows)
		},
		"read": func(r, _ *pair, _ []rdma.Window) error { // the card never ends its chain, so drop ends it
			r.chains.take(0)
			r.fail(rdma.ErrUnreachable)
			return r.await(context.Background(), r.chains.all[len(r.chains.all)-1])
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSoft(t)
			before := used(t, s.card)
			d := s.open()
			under, _, ends := busyLoops(t, d, d, 2, rdma.PairOptions{})
			under()
			r, w := connected(t, d, d, rdma.PairOptions{})
			windows := granted(t, w, registeredIn(t, d, 1<<20))
			stays(r)
			stays(w)
			named := func() {}
			if name != "close" && strings.HasPrefix(name, "close") {
				named = unnamed(t, d)
			}
			if err := end(r, w, windows); err == nil {
				t.Error("it says that all is well")
			}
			named()
			if u := used(t, s.card); u.QP != before.QP || u.MR != before.MR || u.pinned != before.pinned {
				t.Errorf("in use yet: %+v, before: %+v", u, before)
			}
			if _, err := d.Pair(rdma.PairOptions{}); !errors.Is(err, rdma.ErrGone) {
				t.Errorf("a pair of a device that was given up: %v", err)
			}
			for range cap(ends) {
				if err := <-ends; !errors.Is(err, rdma.ErrGone) {
					t.Errorf("a read through another pair ends with %v", err)
				}
			}
			if err := d.Close(); !errors.Is(err, ErrInUse) {
				t.Errorf("closed: %v", err)
			}
			if u := used(t, s.card); u.Ctx != before.Ctx {
				t.Errorf("in use yet: %+v, before: %+v", u, before)
			}
			d = s.open()
			works(t, d)
		})
	}
}

// unnamed removes the name of the device file of the card, until named is called.
func unnamed(t *testing.T, d *device) (named func()) {
	t.Helper()
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", d.card.c.cmd_fd))
	var st unix.Stat_t
	if err = errors.Join(err, unix.Stat(name, &st), os.Remove(name)); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Mknod(name, st.Mode, int(st.Rdev)); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMappings: mappingsOf finds all mappings of a file, with or without a name, and no others.
// mappingsOf fails if there are none.
func TestMappings(t *testing.T) {
	const maps = `7f0000000000-7f0000002000 rw-s 00000000 00:05 215                        /dev/infiniband/uverbs0
7f0000002000-7f0000003000 rw-p 00000000 00:00 0
7f0000003000-7f0000005000 rw-s 00001000 00:05 215                        /dev/infiniband/uverbs0 (deleted)
7f0000005000-7f0000006000 rw-s 00000000 00:05 216                        /dev/infiniband/uverbs01
7f0000006000-7f0000007000 r--p 00000000 00:00 0                          [vvar]
`
	want := []extent{{0x7f0000000000, 0x7f0000002000}, {0x7f0000003000, 0x7f0000005000}}
	for _, file := range []string{"/dev/infiniband/uverbs0", "/dev/infiniband/uverbs0 (deleted)"} {
		if got, err := mappingsOf(file, maps); err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %x, %v", file, got, err)
		}
	}
	for _, file := range []string{"/dev/infiniband/uverbs", "/dev/infiniband/uverbs2", "anon_inode:[infinibandevent]"} {
		if got, err := mappingsOf(file, maps); err == nil {
			t.Errorf("%s: %x", file, got)
		}
	}
}
