package leg

import (
	"slices"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/nvext"
)

// Constraints are a request's wishes for the labels and experts of its node. The zero value allows
// every node.
type Constraints struct {
	Required  []string      // labels that the node must have, all of them
	Preferred []nvext.Taint // labels that count for the node, or against it by a negative weight
	Experts   []string      // experts that the request needs, each once; a node with more of them is preferred
	Strict    bool          // the node must host all of Experts
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

// weight returns the sum of the weights of the preferred labels that are among labels. weight
// allocates nothing.
func (c *Constraints) weight(labels []string) (sum float64) {
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

// hosted returns how many of the request's experts are among those of a node. hosted allocates
// nothing.
func (c *Constraints) hosted(experts cluster.Experts) (n int) {
	if len(experts) == 0 {
		return 0
	}
	for _, expert := range c.Experts {
		if experts.Has(expert) {
			n++
		}
	}
	return n
}

// share returns the part of the request's experts that are among those of a node, from 0 to 1.
func (c *Constraints) share(experts cluster.Experts) float32 {
	return float32(c.hosted(experts)) / float32(max(len(c.Experts), 1))
}

// missingExperts returns the request's experts that are not among those of a node.
func (c *Constraints) missingExperts(experts cluster.Experts) (all []string) {
	for _, expert := range c.Experts {
		if !experts.Has(expert) {
			all = append(all, expert)
		}
	}
	return all
}
