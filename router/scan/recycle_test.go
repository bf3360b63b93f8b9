package scan

import (
	"testing"

	"github.com/cognitora/dataplane/internal/residue"
)

// TestNothingOutlivesAScan checks that Reset clears everything of one client's body. The test
// excepts bytes in memory that is written before it is read.
func TestNothingOutlivesAScan(t *testing.T) {
	r := new(Request)
	residue.Mark(r, nil)
	r.Reset()
	if left := residue.Left(r); left != nil {
		t.Errorf("left of a scan: %v", left)
	}
}
