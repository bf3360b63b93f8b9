package router

import "testing"

// TestConnectionsLeaveFilesToTheRest checks that the admin port answers while clients use all their
// connections, each with a node's connection.
func TestConnectionsLeaveFilesToTheRest(t *testing.T) {
	for _, c := range []struct {
		limit  uint64
		wanted int
		want   int
	}{
		{8, 16384, 1}, {64, 16384, 20}, {1024, 16384, 384}, {1024, 100, 100}, {65536, 16384, 16384}, {1 << 63, 16384, 16384}, {1<<64 - 1, 1 << 40, 1 << 30},
	} {
		got := connectionsWithin(c.limit, c.wanted)
		if got != c.want {
			t.Errorf("of %d files for %d connections: %d, want %d", c.limit, c.wanted, got, c.want)
		}
		if got > 1 && uint64(2*got)+filesKeptMin > c.limit {
			t.Errorf("of %d files %d connections leave too little", c.limit, got)
		}
	}
}
