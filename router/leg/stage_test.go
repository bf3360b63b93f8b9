package leg

import "testing"

// TestStages checks what each end of D's exchange means for blocks that P keeps.
func TestStages(t *testing.T) {
	for v := answered; v <= abandoned; v++ {
		afterFresh, afterSpent := spent, spent
		switch v {
		case answered, lost, failed500:
			afterFresh, afterSpent = unasked, unasked
		case unreached, starved:
			afterFresh = fresh
		}
		for before, want := range map[stage]stage{
			unasked: unasked, together: together, fresh: afterFresh, spent: afterSpent,
		} {
			h := &hand{stage: before}
			if h.ended(v); h.stage != want {
				t.Errorf("%v: from %d to %d, want %d", v, before, h.stage, want)
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
