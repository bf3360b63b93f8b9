//go:build !race

package gate

import (
	"context"
	"testing"
)

// The race detector keeps books on every byte, which this would count.
func TestIndexBytesPerBlock(t *testing.T) {
	v, detail, err := indexBytesPerBlock(context.Background(), nil)
	if err != nil || v < 4 || v > 200 {
		t.Errorf("%v (%s), %v", v, detail, err)
	}
}
