package leg

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/holdings"
)

// warmOn rehearses a request of a new prompt of 400 blocks. Only the cache of the node's host has
// its blocks, in RAM.
func warmOn(t *testing.T, d *Dispatcher, node string, report usage.Counts) (picked string, matched int) {
	t.Helper()
	r, err := d.Rehearse(Piece{Keys: newKeys(400), Warm: func(n *fleet.Node) holdings.Reach {
		reach := holdings.Reach{Device: holdings.Unknown}
		if n.ID == node {
			reach.Host = 400
		}
		return reach
	}}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	picked, matched = r.Node().ID, r.Matched()
	r.Finish(report, time.Now())
	return picked, matched
}

func newKeys(n int) []uint64 {
	keys := make([]uint64, n)
	for i := range keys {
		keys[i] = rand.Uint64()
	}
	return keys
}

// TestUnusedBlocksCountLess checks that blocks of a host count less once the node's engine has
// computed such blocks, and again once the engine uses them.
func TestUnusedBlocksCountLess(t *testing.T) {
	d := still(t, Options{Feedback: true}, twoNodes()...)
	if picked, matched := warmOn(t, d, "a", reported(6400, 0)); picked != "a" || matched != 400 {
		t.Fatalf("%s is picked for %d blocks", picked, matched)
	}
	for range 200 { // also requests for which the other node is picked
		warmOn(t, d, "a", usage.Counts{Prompt: 6400, HasPrompt: true}) // a count of 0 is left out
	}
	served := d.current()
	usage := &served.nodes[served.snap.Node("a")].usage
	if host, _, _ := usage.Ratios(); host > 0.02 {
		t.Errorf("%.3f of blocks count that the engine always computes", host)
	}
	for range 200 {
		warmOn(t, d, "a", reported(6400, 6384))
	}
	if host, _, _ := usage.Ratios(); host < 0.99 {
		t.Errorf("%.3f of blocks count that the engine uses again", host)
	}
	if picked, matched := warmOn(t, d, "a", reported(6400, 6384)); picked != "a" || matched < 398 {
		t.Errorf("%s is picked for %d blocks", picked, matched)
	}
}

// TestUsageCountsTokens checks that the usage of a host's cache is learned by blocks of tokens,
// also where the text of a known beginning has six times as many blocks.
func TestUsageCountsTokens(t *testing.T) {
	d := still(t, Options{Feedback: true}, twoNodes()[:1]...)
	r, err := d.Rehearse(Piece{Keys: newKeys(400), Warm: func(*fleet.Node) holdings.Reach {
		return holdings.Reach{Device: 10, Host: 50}
	}}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r.l.now.believed, r.l.now.coming = 60, 10
	r.Finish(reported(6400, 160), time.Now())
	served := d.current()
	if host, _, _ := served.nodes[served.snap.Nodes[0]].usage.Ratios(); host == 1 {
		t.Error("nothing was learned of the blocks that the engine has not used")
	}
}

// TestBlocksOfOtherHosts checks that the expected time to the first token has the transfer of
// blocks that only other hosts have, if a speed is known at which that pays.
func TestBlocksOfOtherHosts(t *testing.T) {
	d := still(t, Options{}, twoNodes()...)
	expect := func(fetch float32) time.Duration {
		t.Helper()
		r, err := d.Rehearse(Piece{Keys: newKeys(400), Warm: func(*fleet.Node) holdings.Reach {
			return holdings.Reach{Device: holdings.Unknown, Shared: 400, Fetch: fetch}
		}}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		defer r.Finish(reported(6400, 0), time.Now())
		return r.Expected()
	}
	computed := expect(0)
	if slow := expect(2); slow != computed {
		t.Errorf("%v of a slow network, want %v", slow, computed)
	}
	// 400 blocks of 2 MiB at 8 GiB a second take 98 ms. The blocks in RAM count three quarters.
	if fast := expect(2.0 / (8 << 10)); fast > computed/2 || fast < 98*time.Millisecond {
		t.Errorf("%v with a fast network, %v without", fast, computed)
	}
}
