package leg

import "testing"

// TestStages checks what each end of D's exchange means for blocks that P keeps.
func TestStages(t *testing.T) {
	for _, c := range []struct {
		v                      verdict
		status                 int
		afterFresh, afterSpent stage
	}{
		{answered, 200, unasked, unasked},
		{answered, 422, spent, spent}, // a needy node's refusal
		{unreached, 0, fresh, spent},
		{starved, 0, fresh, spent},
		{broken, 0, spent, spent},
		{silent, 0, spent, spent},
		{garbled, 0, spent, spent},
		{failed500, 500, unasked, unasked},
		{overloaded, 429, spent, spent},
		{overloaded, 503, spent, spent},
		{overdue, 0, spent, spent},
		{stalled, 0, spent, spent},
		{noOptions, 400, spent, spent},
		{late, 0, spent, spent},
		{tooOld, 200, spent, spent},
		{tooLong, 200, spent, spent},
		{unfit, 0, spent, spent},
		{unpaired, 0, spent, spent},
		{lost, 0, unasked, unasked}, // the connection broke
		{lost, 200, unasked, unasked},
		{lost, 400, spent, spent},
		{lost, 422, spent, spent},
		{lost, 501, unasked, unasked},
		{orphaned, 0, spent, spent},
		{abandoned, 0, spent, spent},
	} {
		for _, x := range []struct{ before, after stage }{
			{unasked, unasked}, {together, together}, {fresh, c.afterFresh}, {spent, c.afterSpent},
		} {
			h := &hand{stage: x.before}
			if h.ended(c.v, c.status); h.stage != x.after {
				t.Errorf("%v, %d: from %d to %d, want %d", c.v, c.status, x.before, h.stage, x.after)
			}
		}
	}
	h := new(hand)
	if h.keep(nil); h.stage != fresh {
		t.Errorf("kept blocks are in stage %d", h.stage)
	}
	if h.spoil(); h.stage != spent {
		t.Errorf("spoilt blocks are in stage %d", h.stage)
	}
}
