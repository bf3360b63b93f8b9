package prefix

import (
	"testing"

	"github.com/cognitora/dataplane/internal/residue"
)

// TestNothingOutlivesAChain checks that Reset clears every field. The test excepts numbers in
// memory that is written before it is read.
func TestNothingOutlivesAChain(t *testing.T) {
	c := new(Chain)
	residue.Mark(c, nil)
	c.Reset(Digest{}, nil, nil)
	if left := residue.Left(c); left != nil {
		t.Errorf("left of a chain: %v", left)
	}
}
