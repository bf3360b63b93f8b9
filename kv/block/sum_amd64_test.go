package block

import "testing"

// TestExtendWithout is TestExtend as on processors that lack what this one may have.
func TestExtendWithout(t *testing.T) {
	defer func(fold, mix bool) { hasFold, hasMix = fold, mix }(hasFold, hasMix)
	hasFold = false
	t.Run("fold", TestExtend)
	hasMix = false
	t.Run("mix", TestExtend)
}
