package scan

import (
	"testing"

	"github.com/cognitora/dataplane/internal/residue"
)

// TestNothingOutlivesAScan: of one client's body nothing is there when the next one is scanned, but
// for bytes in memory that is written before it is read.
func TestNothingOutlivesAScan(t *testing.T) {
	r := new(Request)
	residue.Mark(r, nil)
	r.Reset()
	if left := residue.Left(r); left != nil {
		t.Errorf("left of a scan: %v", left)
	}
}
