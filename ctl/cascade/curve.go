package cascade

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/router/logprobs"
)

// record is one question, with the answers of a small and a large model.
type record struct {
	Confidence *float64  `json:"confidence"`
	Logprobs   []float64 `json:"logprobs"` // of the tokens of the small model's content
	SmallRight *bool     `json:"small_right"`
	LargeRight *bool     `json:"large_right"`
	SmallCost  *float64  `json:"small_cost"`
	// DroppedCost is the cost of the small model if its answer is dropped; nil: SmallCost. An early
	// judgement makes it lower.
	DroppedCost *float64 `json:"dropped_cost"`
	LargeCost   *float64 `json:"large_cost"`
}

// answer is a record whose small answer is measured.
type answer struct {
	confidence                        float64
	small, large                      float64 // 1: right, 0: wrong
	smallCost, droppedCost, largeCost float64
}

// options say how records are read.
type options struct {
	measure              logprobs.Measure
	tokens               int // leading tokens that count; 0: all
	smallCost, largeCost float64
}

// maxLine bounds a line of a file of records.
const maxLine = 16 << 20

// read reads records, one JSON object in a line.
func read(doc []byte, o options) (all []answer, err error) {
	lines := bufio.NewScanner(bytes.NewReader(doc))
	lines.Buffer(nil, maxLine)
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		a, err := readOne(lines.Bytes(), o)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		all = append(all, a)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(all) == 0 {
		return nil, errors.New("there are no records")
	}
	return all, nil
}

func readOne(line []byte, o options) (a answer, err error) {
	var r record
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return a, err
	}
	if r.SmallRight == nil || r.LargeRight == nil {
		return a, errors.New("small_right and large_right are needed; they say whether each model's answer is right")
	}
	switch {
	case r.Confidence != nil && len(r.Logprobs) > 0:
		return a, errors.New("confidence and logprobs are both given; leave one out")
	case r.Confidence != nil:
		a.confidence = *r.Confidence
	case len(r.Logprobs) > 0:
		values := r.Logprobs
		if o.tokens > 0 && o.tokens < len(values) {
			values = values[:o.tokens]
		}
		for i, v := range values {
			values[i] = min(max(v, logprobs.Least), 0)
		}
		a.confidence, _ = o.measure.Of(values)
	default:
		return a, errors.New("logprobs or confidence is needed; logprobs are those of the small model's tokens")
	}
	if !(a.confidence >= cluster.LeastConfidence && a.confidence <= 0) {
		return a, fmt.Errorf("confidence %g is not in %d..0", a.confidence, cluster.LeastConfidence)
	}
	a.small, a.large = number(*r.SmallRight), number(*r.LargeRight)
	a.smallCost, a.largeCost = o.smallCost, o.largeCost
	if r.SmallCost != nil {
		a.smallCost = *r.SmallCost
	}
	if a.droppedCost = a.smallCost; r.DroppedCost != nil {
		a.droppedCost = *r.DroppedCost
	}
	if r.LargeCost != nil {
		a.largeCost = *r.LargeCost
	}
	if min(a.smallCost, a.droppedCost, a.largeCost) < 0 {
		return a, errors.New("a cost is negative")
	}
	return a, nil
}

func number(right bool) float64 {
	if right {
		return 1
	}
	return 0
}

// Point is a threshold with its effect.
type Point struct {
	Threshold float64 `json:"threshold"`
	Escalated float64 `json:"escalated"` // share of the questions that go on to the large model
	Cost      float64 `json:"cost"`      // mean, of a question
	Relative  float64 `json:"cost_of_large"`
	Quality   float64 `json:"quality"` // share of right answers
}

// curve returns the effect of every threshold, from the lowest on. The first one keeps every
// answer. A threshold lies in the middle between two confidences.
func curve(all []answer) []Point {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b answer) int {
		switch {
		case a.confidence < b.confidence:
			return -1
		case a.confidence > b.confidence:
			return 1
		}
		return 0
	})
	n := float64(len(all))
	var cost, right, large float64
	for _, a := range all {
		cost, right, large = cost+a.smallCost, right+a.small, large+a.largeCost
	}
	points := []Point{}
	add := func(threshold float64, escalated int) {
		p := Point{Threshold: threshold, Escalated: float64(escalated) / n, Cost: cost / n, Quality: right / n}
		if large > 0 {
			p.Relative = cost / large
		}
		points = append(points, p)
	}
	add(cluster.LeastConfidence, 0)
	for i, a := range all {
		cost, right = cost+a.droppedCost-a.smallCost+a.largeCost, right+a.large-a.small
		switch {
		case i+1 == len(all) && a.confidence < 0:
			add(0, i+1)
		case i+1 < len(all) && all[i+1].confidence > a.confidence:
			add((a.confidence+all[i+1].confidence)/2, i+1)
		}
	}
	return points
}

// alone returns the effect of asking only the large model.
func alone(all []answer) Point {
	p := Point{Escalated: 1, Relative: 1}
	for _, a := range all {
		p.Cost += a.largeCost / float64(len(all))
		p.Quality += a.large / float64(len(all))
	}
	return p
}

// cheapest returns the cheapest point with at least this quality, the lowest threshold among equal
// ones. ok is false if there is none.
func cheapest(points []Point, quality float64) (best Point, ok bool) {
	for _, p := range points {
		if p.Quality >= quality-rounding && (!ok || p.Cost < best.Cost) {
			best, ok = p, true
		}
	}
	return best, ok
}

// rounding is far below the share of one answer.
const rounding = 1e-9

// thinned returns at most n points, evenly spaced over the escalated shares.
func thinned(points []Point, n int) []Point {
	var out []Point
	for i := range n {
		share := float64(i) / float64(n-1)
		at, _ := slices.BinarySearchFunc(points, share-rounding, func(p Point, share float64) int {
			if p.Escalated < share {
				return -1
			}
			return 1
		})
		if p := points[min(at, len(points)-1)]; len(out) == 0 || out[len(out)-1] != p {
			out = append(out, p)
		}
	}
	return out
}
