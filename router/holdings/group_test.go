package holdings

import (
	"testing"

	caches "github.com/cognitora/dataplane/kv/residency"
	"github.com/cognitora/dataplane/router/residency"
)

// TestGroupsAreTheCaches checks that the router's index and the cache daemons group blocks the same
// way.
func TestGroupsAreTheCaches(t *testing.T) {
	if residency.GroupBlocks != caches.GroupBlocks {
		t.Errorf("%d blocks in a group, and the caches have %d", residency.GroupBlocks, caches.GroupBlocks)
	}
}
