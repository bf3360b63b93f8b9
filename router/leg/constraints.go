package leg

import (
	"slices"

	"github.com/cognitora/dataplane/router/nvext"
)

// Constraints are a request's wishes for the labels of its node. The zero value allows every node.
type Constraints struct {
	Required  []string      // labels that the node must have, all of them
	Preferred []nvext.Taint // labels that count for the node, or against it by a negative weight
}

// allow says whether a node with these labels has all that are required.
func (c *Constraints) allow(labels []string) bool {
	for _, label := range c.Required {
		if !slices.Contains(labels, label) {
			return false
		}
	}
	return true
}

// Taint returns the sum of the weights of the preferred labels that are among labels. Taint
// allocates nothing.
func (c *Constraints) Taint(labels []string) (sum float64) {
	for i := range c.Preferred {
		if p := &c.Preferred[i]; slices.Contains(labels, p.Name) {
			sum += p.Weight
		}
	}
	return sum
}

// missing returns the required labels that are not among labels.
func (c *Constraints) missing(labels []string) (all []string) {
	for _, label := range c.Required {
		if !slices.Contains(labels, label) {
			all = append(all, label)
		}
	}
	return all
}
