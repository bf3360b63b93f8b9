package holdings

import (
	"testing"

	caches "github.com/cognitora/dataplane/kv/residency"
	"github.com/cognitora/dataplane/router/residency"
)

// TestGroupsAreTheCaches holds the groups of the router's table to those by which caches name
// leaders.
func TestGroupsAreTheCaches(t *testing.T) {
	if residency.GroupBlocks != caches.GroupBlocks {
		t.Errorf("%d blocks in a group, and the caches have %d", residency.GroupBlocks, caches.GroupBlocks)
	}
}
