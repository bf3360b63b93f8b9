package resp

import "testing"

// TestKeeperAllocs checks that the other arguments of a command with a large value cause no
// garbage.
func TestKeeperAllocs(t *testing.T) {
	k := keeper{server: &Server{o: Options{maxQuery: 1 << 20, maxBuffered: 1 << 20}}}
	allocs := testing.AllocsPerRun(1000, func() {
		for _, n := range []int{len("SET"), 20, 512} {
			if arg, refused := k.room(n); refused != "" || len(arg) != n {
				t.Fatal("no room for an argument of ", n)
			}
		}
		k.drop()
	})
	if allocs >= 1 { // under -race a pool drops some
		t.Errorf("%v allocations", allocs)
	}
	if n := k.server.buffered.Load(); n != 0 {
		t.Errorf("%d bytes are still counted", n)
	}
}
