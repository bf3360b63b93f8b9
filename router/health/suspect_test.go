package health

import (
	"slices"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
)

// suspected returns a healthy node and the reports of its suspicion.
func suspected(t *testing.T) (n *Node, told *[]string) {
	t.Helper()
	told = &[]string{}
	n = &Node{pool: relay.NewPool(relay.Target{Addr: "n:1"}, relay.PoolOptions{Watch: true})}
	n.breaker.init(Healthy, func(_, to State, why string) { *told = append(*told, to.String()+": "+why) })
	n.suspicion.changed = func(why string) { *told = append(*told, why) }
	t.Cleanup(n.pool.Close)
	return n, told
}

// lost returns a connection with the given number of timeouts. Its last packets were sent ago
// before now, and nothing has been received since.
func lost(timeouts int, ago time.Duration) relay.Link {
	return relay.Link{Lost: timeouts, Since: ago, Heard: ago + time.Second}
}

func well(heard time.Duration) relay.Link { return relay.Link{Heard: heard} }

func TestSuspicion(t *testing.T) {
	const became = "a packet to it was not acknowledged in time"
	inBubble(t, func(t *testing.T) {
		time.Sleep(time.Hour) // checks have not heard of the node for long
		for name, c := range map[string]struct {
			rounds  [][]relay.Link // 50 ms apart
			suspect bool
			state   State
			told    []string
		}{
			"all is well":    {rounds: [][]relay.Link{{well(time.Minute), well(0)}}, state: Healthy},
			"nothing in use": {rounds: [][]relay.Link{nil}, state: Healthy},
			"first timeout": {rounds: [][]relay.Link{{well(time.Second), lost(1, 200*time.Millisecond)}},
				suspect: true, state: Healthy, told: []string{became}},
			"told once": {rounds: [][]relay.Link{{lost(1, 200*time.Millisecond)},
				{lost(1, 250*time.Millisecond)}}, suspect: true, state: Healthy, told: []string{became}},
			"alive elsewhere": {rounds: [][]relay.Link{{lost(1, 200*time.Millisecond), well(100 * time.Millisecond)}},
				state: Healthy},
			"second timeout": {rounds: [][]relay.Link{{lost(1, 200*time.Millisecond)},
				{lost(2, 300*time.Millisecond)}}, state: Open,
				told: []string{became, "open: no packet is acknowledged"}},
			"both at once": {rounds: [][]relay.Link{{lost(2, 300*time.Millisecond)}}, state: Open,
				told: []string{"open: no packet is acknowledged"}},
			"one path alone is dead": {rounds: [][]relay.Link{{lost(6, 10*time.Second), well(20 * time.Millisecond)}},
				state: Healthy},
			"acknowledged": {rounds: [][]relay.Link{{lost(1, 200*time.Millisecond)},
				{well(10 * time.Millisecond)}}, state: Healthy, told: []string{became, ""}},
			"any acknowledgement": {rounds: [][]relay.Link{{lost(1, 200*time.Millisecond)},
				{lost(1, 250*time.Millisecond), well(20 * time.Millisecond)}}, state: Healthy,
				told: []string{became, ""}},
			"its requests have left": {rounds: [][]relay.Link{{lost(1, 200*time.Millisecond)}, nil,
				{well(time.Second)}}, suspect: true, state: Healthy, told: []string{became}},
		} {
			n, told := suspected(t)
			for _, links := range c.rounds {
				time.Sleep(lookEvery)
				n.consider(links, byLook, time.Now())
			}
			if n.Well() != (c.state == Healthy && !c.suspect) {
				t.Errorf("%s: well %v", name, n.Well())
			}
			if n.Suspect() != c.suspect || n.State() != c.state || !slices.Equal(*told, c.told) {
				t.Errorf("%s: suspect %v, %v, told %q; want %v, %v, %q", name, n.Suspect(), n.State(), *told,
					c.suspect, c.state, c.told)
			}
		}
	})
}

// TestSuspicionAndChecks checks the weight of a health check. An answered check clears a suspicion
// and outweighs older timeouts. An unanswered check ejects a node that was suspect during the whole
// check.
func TestSuspicionAndChecks(t *testing.T) {
	inBubble(t, func(t *testing.T) {
		time.Sleep(time.Hour)
		n, _ := suspected(t)
		dead := []relay.Link{lost(1, 200*time.Millisecond)}
		n.consider(dead, byLook, time.Now())
		time.Sleep(10 * time.Millisecond)
		n.suspicion.answered(time.Now())
		if n.Suspect() {
			t.Error("suspect after an answer")
		}
		n.consider([]relay.Link{lost(3, 20*time.Millisecond)}, byLook, time.Now())
		if n.Suspect() || n.State() != Healthy {
			t.Error("a packet that was lost before the answer counts")
		}
		time.Sleep(time.Second)
		began := time.Now()
		time.Sleep(time.Millisecond)
		n.consider(dead, byLook, time.Now())
		n.unanswered(began)
		if !n.Suspect() || n.State() != Healthy {
			t.Error("ejected by a check that had begun before the suspicion")
		}
		n.unanswered(time.Now())
		if n.Suspect() || n.State() != Open {
			t.Errorf("suspect %v, %v after a check without an answer", n.Suspect(), n.State())
		}
		if ok, why := n.Eligible(time.Now()); ok || why != "breaker open: it acknowledges no packets" {
			t.Errorf("%v, %q", ok, why)
		}
		n.consider(dead, byLook, time.Now()) // packets still in flight
		if times, _ := n.Suspected(); n.Suspect() || times != 2 {
			t.Errorf("suspect while it is out, %d times in all", times)
		}
		n.breaker.checked(checkWell, time.Now())
		n.breaker.is(t, HalfOpen)
		time.Sleep(checkedFor)
		n.breaker.checked(checkWell, time.Now())
		time.Sleep(checkedFor)
		n.breaker.checked(checkWell, time.Now())
		n.breaker.checked(checkWell, time.Now())
		n.breaker.is(t, Healthy)
	})
}

// TestRefusedAfterADoubt checks that a broken connection and then a refused one open the breaker.
func TestRefusedAfterADoubt(t *testing.T) {
	b := newBreaker(Healthy)
	b.report(Reset)
	b.checked(checkConfirmed, time.Now())
	b.is(t, Open)
	b = newBreaker(Healthy)
	b.checked(checkRefused, time.Now())
	b.is(t, Healthy)
}
