package policy

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// These constants describe a fleet of 8 nodes with 16 slots each, in virtual milliseconds. Every
// prompt begins with the same system prompt. A prompt's blocks are recorded when the request is
// sent, as in the router's index. A request takes 200 ms plus 1 ms per uncached block.
const (
	herdNodes, herdSlots = 8, 16
	promptBlocks         = 100
)

type herd struct {
	cands   []Candidate
	ends    [][]int // end times of the running requests, by node
	hasSys  []bool  // the system prompt is recorded at the node
	sent    []int
	refused int
}

func newHerd() *herd {
	h := &herd{cands: blanks(herdNodes), ends: make([][]int, herdNodes), hasSys: make([]bool, herdNodes),
		sent: make([]int, herdNodes)}
	for i := range h.cands {
		h.cands[i].MaxConcurrent = herdSlots
	}
	return h
}

func (h *herd) retire(now int) {
	for i, ends := range h.ends {
		keep := ends[:0]
		for _, e := range ends {
			if e > now {
				keep = append(keep, e)
			}
		}
		h.ends[i] = keep
		h.cands[i].InFlight = int32(len(keep))
	}
}

func (h *herd) arrive(t *testing.T, p *Policy, now int, sharedBlocks int32, k key, r uint64) {
	for i := range h.cands {
		h.cands[i].Matched = 0
		if h.hasSys[i] {
			h.cands[i].Matched = sharedBlocks
		}
	}
	pick := pick(p, h.cands, promptBlocks, k, r)
	if pick < 0 {
		h.refused++
		for i := range h.cands {
			if h.cands[i].InFlight < herdSlots {
				t.Fatalf("at %d ms a request was refused while node %d had a free slot", now, i)
			}
		}
		return
	}
	if h.cands[pick].InFlight >= herdSlots {
		t.Fatalf("at %d ms node %d was given more than its slots", now, pick)
	}
	cost := 200 + promptBlocks - int(h.cands[pick].Matched)
	h.hasSys[pick] = true
	h.sent[pick]++
	h.ends[pick] = append(h.ends[pick], now+cost)
	h.cands[pick].InFlight++
}

func TestNoHerding(t *testing.T) {
	for _, shared := range []int32{50, 70, 90} {
		for _, utilisation := range []float64{0.3, 0.7, 0.95} {
			t.Run(fmt.Sprintf("shared=%d%% load=%.2f", shared, utilisation), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(uint64(shared), 5))
				h, p := newHerd(), Default()
				perMs := utilisation * herdNodes * herdSlots / float64(200+promptBlocks-shared)
				for now, due := 0, rng.ExpFloat64()/perMs; now < 20_000; now++ {
					h.retire(now)
					for ; due < float64(now); due += rng.ExpFloat64() / perMs {
						h.arrive(t, p, now, shared, key(rng.Uint64()|1), rng.Uint64())
					}
				}
				h.check(t, utilisation)
			})
		}
	}
}

// check tests that the load spreads. The system prompt gets to every node that the load needs. Once
// the fleet is busy, no node does much more than its share. Every arrival checks that no request is
// refused while a slot is free.
func (h *herd) check(t *testing.T, utilisation float64) {
	total, holders, most := 0, 0, 0
	for i, n := range h.sent {
		total += n
		most = max(most, n)
		if h.hasSys[i] {
			holders++
		}
	}
	if need := int(utilisation * herdNodes); holders < need {
		t.Errorf("the prefix is on %d nodes at load %.2f", holders, utilisation)
	}
	if utilisation >= 0.7 && (holders != herdNodes || most > total*2/herdNodes) {
		t.Errorf("on %d nodes; one took %d of %d", holders, most, total)
	}
	if utilisation <= 0.3 && h.refused > 0 {
		t.Errorf("%d refused far below the fleet's capacity", h.refused)
	}
}
