package policy

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// CostTerms are the parts of one node's cost, in blocks of CostSettings.BlockTokens tokens.
type CostTerms struct {
	Cached   float64 `json:"cached_blocks"` // device, host and disk, each by its weight
	Raw      float64 `json:"raw_prefill_blocks"`
	Decay    float64 `json:"overlap_credit_decay"`
	Credit   float64 `json:"overlap_credit_blocks"`
	Experts  float64 `json:"expert_blocks,omitempty"` // part of Credit for hosted experts
	Scale    float64 `json:"prefill_load_scale"`
	Prefill  float64 `json:"adjusted_prefill_blocks"` // max(0, Raw-Credit)
	Decode   float64 `json:"decode_blocks"`
	Requests float64 `json:"active_request_blocks"`
	Labels   float64 `json:"taint_factor"` // factor of the preferred labels
	// Elsewhere is the worth of a block that only other hosts have, part of Credit.
	Elsewhere float64 `json:"shared_worth,omitempty"`
	Total     float64 `json:"total"` // the cost
	// OffDecode says that Credit is taken off Decode. Raw and Prefill do not count then.
	OffDecode bool `json:"credit_off_decode,omitempty"`
	// Probability is the probability of the node in a draw by temperature.
	Probability float64 `json:"probability,omitempty"`
}

// formula returns the cost as a sum:
//
//	125.5 = 1.0 * 100.5 + 25.0 (cached_blocks: 15)
//
// The sum has the cost, the scaled prefill, the decode, and the cached blocks. The cost of active
// requests, the credit taken off decode, the factor of labels, the credit for hosted experts and
// the worth of a block of other hosts appear if they count.
func (t *CostTerms) formula() string {
	sum := decimal(t.Scale) + " * " + decimal(t.Prefill) + " + " + decimal(t.Decode)
	if t.OffDecode {
		sum = "max(0, " + decimal(t.Decode) + " - " + decimal(t.Credit) + ")"
	}
	if t.Requests > 0 {
		sum += " + " + decimal(t.Requests)
	}
	if t.Labels != 1 {
		sum = decimal(t.Labels) + " * (" + sum + ")"
	}
	return decimal(t.Total) + " = " + sum + cachedBlocks(t.Cached, t.Experts, t.Elsewhere)
}

// cachedBlocks returns the end of a formula. elsewhere is the worth of a block of other hosts.
func cachedBlocks(cached, experts, elsewhere float64) string {
	text := " (cached_blocks: " + strings.TrimSuffix(decimal(cached), ".0")
	if experts > 0 {
		text += ", expert_blocks: " + strings.TrimSuffix(decimal(experts), ".0")
	}
	if elsewhere > 0 {
		text += ", shared_worth: " + decimal(elsewhere)
	}
	return text + ")"
}

// decimal writes v with one to three decimals.
func decimal(v float64) string { return decimals(v, 3) }

// decimals writes v with one to most decimals.
func decimals(v float64, most int) string {
	text := strings.TrimRight(strconv.FormatFloat(v, 'f', most, 64), "0")
	if strings.HasSuffix(text, ".") {
		text += "0"
	}
	return text
}

// fill fills in the cost of every candidate.
func (k *costing) fill(s *Situation, e *Explanation) {
	for i := range e.Terms {
		t := &e.Terms[i]
		t.Total = k.cost(&s.Candidates[i], &t.Cost)
		t.Formula = t.Cost.formula()
	}
}

// explain says why candidate pick was chosen. stays says that the request's session is there, and
// near enough to the lowest cost.
func (k *costing) explain(e *Explanation, pick int, low, high float64, stays bool) {
	n, tied, weights := 0, 0, 0.0
	for i := range e.Terms {
		if t := &e.Terms[i]; t.Eligible {
			n++
			weights += math.Exp(k.logWeight(t.Cost.Total, low, high))
			if t.Cost.Total == low {
				tied++
			}
		}
	}
	decided := stays && (k.Temperature > 0 || tied > 1 || e.Terms[pick].Cost.Total > low)
	switch {
	case decided && e.Terms[pick].Cost.Total == low:
		e.Why = "its session is there, and no cost is below its cost " + decimal(low)
	case decided:
		e.Why = fmt.Sprintf("its session is there, and its cost %s is within %s, a tenth of the prompt's blocks, of "+
			"the lowest cost %s", decimal(e.Terms[pick].Cost.Total), decimal(k.margin()), decimal(low))
	case k.Temperature > 0:
		for i := range e.Terms {
			if t := &e.Terms[i]; t.Eligible {
				t.Cost.Probability = math.Exp(k.logWeight(t.Cost.Total, low, high)) / weights
			}
		}
		t := &e.Terms[pick].Cost
		e.Why = fmt.Sprintf("drawn with probability %.3f at temperature %g for its cost %s; the lowest of %d candidates "+
			"is %s", t.Probability, k.Temperature, decimal(t.Total), n, decimal(low))
	case tied > 1:
		e.Why = fmt.Sprintf("drawn at random among %d of %d candidates with the lowest cost %s", tied, n, decimal(low))
	default:
		e.Why = fmt.Sprintf("lowest cost %s of %d candidates", decimal(low), n)
	}
}
