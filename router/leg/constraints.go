package leg

import "slices"

// Constraints are a request's wishes for the labels of its node. The zero value allows every node.
type Constraints struct {
	Required  []string     // labels that the node must have, all of them
	Preferred []Preference // labels that count for the node
}

// Preference is a preferred label. A negative weight counts against the nodes with the label.
type Preference struct {
	Label  string
	Weight float64
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
		if p := &c.Preferred[i]; slices.Contains(labels, p.Label) {
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
