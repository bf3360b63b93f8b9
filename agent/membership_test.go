package agent

import "testing"

// TestEtcdStateIsTheWorst: a missing or lost connection is reported, in whatever order the nodes
// come.
func TestEtcdStateIsTheWorst(t *testing.T) {
	const unknown = ""
	for _, c := range []struct {
		links [2]string
		want  string
	}{
		{[2]string{"connected", "connected"}, "connected"},
		{[2]string{"connected", "lost"}, "lost"},
		{[2]string{"lost", "connected"}, "lost"},
		{[2]string{"lost", "lost"}, "lost"},
		{[2]string{"lost", unknown}, "connecting"},
		{[2]string{unknown, "lost"}, "connecting"},
		{[2]string{unknown, "connected"}, "connecting"},
	} {
		a := &Agent{}
		a.etcd.Endpoints = []string{"127.0.0.1:2379"}
		for _, link := range c.links {
			n := &node{member: &membership{}}
			if link != unknown {
				n.member.link.Store(&link)
			}
			a.nodes = append(a.nodes, n)
		}
		if got := a.etcdState(); got != c.want {
			t.Errorf("%q: %s, want %s", c.links, got, c.want)
		}
	}
	if got := (&Agent{}).etcdState(); got != "off" {
		t.Errorf("without etcd: %s", got)
	}
}
