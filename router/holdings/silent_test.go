package holdings

import "testing"

// TestSilentAcrossHosts has a prompt's blocks on another host. They count for a silent node while
// the fleet has no other configuration of the model, or once the node's own host has that one.
func TestSilentAcrossHosts(t *testing.T) {
	pulled := func() float64 { return 0 }
	daemons, m := fleetOf(t, map[string]func() float64{"a": pulled, "b": pulled, "c": pulled, "outside": nil})
	chain, digests := prompt(40)
	_, further := prompt(60)
	counts := func(own, shared int32) {
		t.Helper()
		eventually(t, m, chain, "a:1", Reach{Unknown, own, own, shared, 0})
	}
	n := others()
	daemons["b"].put(digests, 0, 20)
	daemons["outside"].putIn(n["dtype"], further, 50, 51)
	until(t, "all is known", func() bool { return m.Stats().Held == 2 })
	counts(0, 20)
	daemons["c"].putIn(n["dtype"], further, 50, 51)
	counts(0, 0)
	daemons["a"].put(digests, 0, 1)
	counts(1, 20)
	daemons["a"].putIn(n["tenant"], further, 50, 51)
	counts(0, 0) // not even its own
	daemons["a"].removeIn(n["tenant"], further[50])
	counts(1, 20)
	for _, d := range daemons {
		d.stop()
	}
}
