package where

import (
	"testing"

	"github.com/cognitora/dataplane/internal/residue"
)

// TestNothingOutlivesAPrompt checks that Reset clears every field. The test excepts numbers in
// memory that is written before it is read.
func TestNothingOutlivesAPrompt(t *testing.T) {
	p := new(Prompt)
	residue.Mark(p, []string{"memory.step", "memory.again"})
	p.Reset()
	if left := residue.Left(p, "memory.step", "memory.again"); left != nil {
		t.Errorf("left of a prompt: %v", left)
	}
}
