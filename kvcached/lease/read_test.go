//go:build linux

package lease_test

import (
	"fmt"
	"reflect"
	"testing"

	"github.com/cognitora/dataplane/kv/frame"
	"github.com/cognitora/dataplane/kv/residency"
	"github.com/cognitora/dataplane/kvcached/lease"
)

// says sends a Read.
func (r *raw) says(node, namespace string, end bool) frame.Status {
	r.t.Helper()
	h, _ := r.ask(frame.OpRead, len(node)+len(namespace),
		frame.AppendRead(nil, &frame.Read{End: end, Node: []byte(node), Namespace: []byte(namespace)}))
	return h.Status
}

// TestRead follows what connections say that engines read.
func TestRead(t *testing.T) {
	x := residency.New(residency.Options{})
	n := serve(t, lease.Options{Readers: x})
	is := func(what string, want ...residency.Reader) {
		t.Helper()
		if got := x.Readers(); !(len(got) == 0 && len(want) == 0) && !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	a, b := hello(t, n.path), hello(t, n.path)
	for range 2 { // again
		if s := a.says("a", namespace, false); s != frame.StatusOK {
			t.Error(s)
		}
	}
	a.says("a", wideNamespace, false)
	b.says("a", namespace, false)
	is("two connections", residency.Reader{Node: "a", Namespaces: []string{namespace, wideNamespace}})
	for range 2 {
		if s := a.says("a", namespace, true); s != frame.StatusOK {
			t.Error(s)
		}
	}
	is("the other one still reads it", residency.Reader{Node: "a", Namespaces: []string{namespace, wideNamespace}})
	b.says("a", namespace, true)
	is("none reads it", residency.Reader{Node: "a", Namespaces: []string{wideNamespace}})

	_ = a.conn.Close()
	until(t, "the connection has ended", func() bool { return n.server.Stats().Clients == 1 })
	is("in the grace", residency.Reader{Node: "a", Namespaces: []string{wideNamespace}})
	c := hello(t, n.path)
	c.says("a", namespace, false)
	is("it has started anew", residency.Reader{Node: "a", Namespaces: []string{namespace}})
}

// TestReadRefused checks what a Read must say, and the bound of a connection.
func TestReadRefused(t *testing.T) {
	x := residency.New(residency.Options{})
	for what, o := range map[string]lease.Options{"noted": {Readers: x}, "not noted": {}} {
		r := hello(t, serve(t, o).path)
		for _, c := range [][2]string{{"", namespace}, {"a", ""}, {"a", "key1;resp.0;"}, {"a", "kv1;m"}} {
			if s := r.says(c[0], c[1], false); s != frame.StatusNamespace {
				t.Errorf("%s: %q: %v", what, c, s)
			}
		}
		if s := r.says("a", "nothing", true); s != frame.StatusOK {
			t.Errorf("%s: the end of what never was: %v", what, s)
		}
		r.send(frame.OpRead, 1, []byte{2, 0, 0, 0, 'a'})
		if s := r.refused(); s != frame.StatusBadFrame {
			t.Errorf("%s: a node longer than the frame: %v", what, s)
		}
	}
	r := hello(t, serve(t, lease.Options{Readers: x}).path)
	for i := range residency.MaxReads {
		if s := r.says(fmt.Sprint("node", i), namespace, false); s != frame.StatusOK {
			t.Fatal(i, s)
		}
	}
	if s := r.says("one too many", namespace, false); s != frame.StatusQuota {
		t.Error(s)
	}
}
