package policy

import "fmt"

// ExpectedCost is a node's cost in mode predicted, with all that it is made of:
//
//	first_s = base_s + weights.wait * wait_s + stalled_s + prefill_s + fetch_s + steps_s + slot_s + adapter_s
//	          or, with via_s, base_s + stalled_s + steps_s + max(via_s, slot_s + adapter_s)
//	total   = (weights.first * (first_s - shared_s) + answer_s + weights.others * (stalls_s + slower_s) +
//	          weights.late * late_s) * taint_factor
type ExpectedCost struct {
	ExpectedTerms
	ExpectedParts
}

// ExpectedParts are the parts of a cost that only an explanation has: those of First that
// ExpectedTerms does not have, in seconds, and the weights.
type ExpectedParts struct {
	Base    float64         `json:"base_s"`    // before the first token of any answer
	Steps   float64         `json:"steps_s"`   // decode steps that the first token waits for
	Slot    float64         `json:"slot_s"`    // until the node's engine has a free slot
	Adapter float64         `json:"adapter_s"` // until the request's adapter is loaded
	Weights ExpectedWeights `json:"weights"`
}

// ExpectedWeights are the weights of the terms. Late is no setting.
type ExpectedWeights struct {
	First  float64 `json:"first"`
	Wait   float64 `json:"wait"`
	Others float64 `json:"others"`
	Late   float64 `json:"late"`
}

// parts returns the parts of a candidate's cost.
func (x *expecting) parts(c *Candidate, at *Timing) ExpectedParts {
	step := at.Decode(at.Decoding, at.Blocks)
	return ExpectedParts{
		Base: at.PrefillFactor * at.Base, Steps: at.PrefillFactor * at.Steps * step, Slot: x.slot(c, at, step),
		Adapter: at.Load, Weights: ExpectedWeights{x.First, x.Wait, x.Others, lateness},
	}
}

// expected stores the terms with their formula:
//
//	5.0285 = 12.0 * 0.208 + 2.5 + 1.0 * 0.0325 (first_s: 0.208, ...)
//
// The bracket has the parts of the time to the first token that are not 0, and the time of a step.
func (t *Terms) expected(x *ExpectedTerms, parts ExpectedParts) {
	w := &parts.Weights
	t.Expected, t.Parts, t.Total = *x, parts, x.Total
	first := seconds(x.First)
	if x.Shared > 0 {
		first = "(" + first + " - " + seconds(x.Shared) + ")"
	}
	sum := seconds(w.First) + " * " + first + " + " + seconds(x.Answer) + " + " + seconds(w.Others) +
		" * " + seconds(x.Stalls+x.Slower)
	if x.Late > 0 {
		sum += fmt.Sprintf(" + %g * ", w.Late) + seconds(x.Late)
	}
	if x.Labels != 1 {
		sum = seconds(x.Labels) + " * (" + sum + ")"
	}
	t.Formula = seconds(x.Total) + " = " + sum + " (first_s: " + seconds(x.First)
	for _, part := range []struct {
		name   string
		weight float64
		v      float64
	}{
		{"base_s", 1, parts.Base}, {"wait_s", w.Wait, x.Wait}, {"stalled_s", 1, x.Delay},
		{"prefill_s", 1, x.Prefill}, {"fetch_s", 1, x.Fetch}, {"via_s", 1, x.Via}, {"steps_s", 1, parts.Steps},
		{"slot_s", 1, parts.Slot}, {"adapter_s", 1, parts.Adapter},
	} {
		if part.v == 0 {
			continue
		}
		t.Formula += ", " + part.name + ": "
		if part.weight != 1 {
			t.Formula += seconds(part.weight) + " * "
		}
		t.Formula += seconds(part.v)
	}
	t.Formula += ", step_s: " + seconds(x.Step) + ")"
}

// seconds writes a part of a formula with one to four decimals.
func seconds(v float64) string { return decimals(v, 4) }
