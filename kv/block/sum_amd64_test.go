package block

import "testing"

// TestExtendWithout runs TestExtend as on processors without the faster instructions.
func TestExtendWithout(t *testing.T) {
	defer func(fold, mix bool) { hasFold, hasMix = fold, mix }(hasFold, hasMix)
	hasFold = false
	t.Run("fold", TestExtend)
	hasMix = false
	t.Run("mix", TestExtend)
}
