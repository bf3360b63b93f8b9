package kv

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/cognitora/dataplane/ctl/cell"
)

// linesPerSecond is how many lines a terminal gets before a second's further changes are summed.
const linesPerSecond = 20

// mostSums bounds the lines of a second's sums. Further ones are in one line.
const mostSums = 20

// printer writes happenings, one a line.
type printer struct {
	out   io.Writer
	json  bool
	sums  bool // changes are summed if there are many
	since time.Time
	lines int // printed since then
	sum   map[sumKey]int
}

// sumKey says which changes are summed.
type sumKey struct{ sign, tiers, holder, model string }

// others stands for holders and models beyond mostSums.
const others = "(others)"

const lineFormat = "%-12s  %s  %-8s  %8s  %8s  %-16s  %-8s  %s\n"

func (p *printer) head() {
	if !p.json {
		fmt.Fprintf(p.out, lineFormat, "TIME", "±", "TIER", "TOKENS", "FROM", "BLOCK", "AT", "MODEL")
	}
}

// print writes a happening, or adds it to the second's sums.
func (p *printer) print(now time.Time, h *happening) error {
	if p.json {
		return json.NewEncoder(p.out).Encode(struct {
			Time time.Time `json:"time"`
			*happening
		}{now, h})
	}
	if p.sums && now.Sub(p.since) >= time.Second {
		if err := p.rest(now); err != nil {
			return err
		}
		p.since, p.lines = now, 0
	}
	clock := now.Format("15:04:05.000")
	switch h.Event {
	case cameEvent, leftEvent:
		return p.change(clock, h)
	}
	if err := p.rest(now); err != nil {
		return err
	}
	switch h.Event {
	case goneEvent:
		_, err := fmt.Fprintf(p.out, "%s  -  engine %s and its %d tokens\n", clock, unquoted(h.Engine), h.Tokens)
		return err
	case gapEvent:
		_, err := fmt.Fprintf(p.out, "%s  gap: %s\n", clock, h.Why)
		return err
	}
	_, err := fmt.Fprintf(p.out, "%s  there are %d tokens in %d blocks%s\n", clock, h.Tokens, h.Blocks,
		byTier(h.ByTier))
	return err
}

func byTier(blocks map[string]int) string {
	var parts []string
	for _, tier := range slices.Sorted(maps.Keys(blocks)) {
		parts = append(parts, fmt.Sprintf("%d %s", blocks[tier], tier))
	}
	if len(parts) == 0 {
		return ""
	}
	return ": " + strings.Join(parts, ", ")
}

func (p *printer) change(clock string, h *happening) error {
	sign := "+"
	if h.Event == leftEvent {
		sign = "-"
	}
	holder, model := cmp.Or(unquoted(h.Engine), "cache"), cell.Dash(unquoted(h.Model))
	if p.sums && p.lines >= linesPerSecond {
		if p.sum == nil {
			p.sum = map[sumKey]int{}
		}
		key := sumKey{sign, h.Tiers, holder, model}
		if _, ok := p.sum[key]; !ok && len(p.sum) >= mostSums {
			key = sumKey{sign, others, others, others}
		}
		p.sum[key] += h.Tokens
		return nil
	}
	p.lines++
	if h.Layer != nil {
		model += fmt.Sprintf(" layer %d", *h.Layer)
	}
	_, err := fmt.Fprintf(p.out, lineFormat, clock, sign, h.Tiers, fmt.Sprint(h.Tokens), h.from(), h.Block, holder,
		model)
	return err
}

// rest writes the sums of a second that is over.
func (p *printer) rest(now time.Time) error {
	for _, key := range slices.SortedFunc(maps.Keys(p.sum), func(a, b sumKey) int {
		return cmp.Or(cmp.Compare(a.model, b.model), cmp.Compare(a.holder, b.holder), cmp.Compare(a.tiers, b.tiers),
			cmp.Compare(a.sign, b.sign))
	}) {
		if _, err := fmt.Fprintf(p.out, lineFormat, now.Format("15:04:05.000"), key.sign, key.tiers,
			fmt.Sprint(p.sum[key]), "-", "summed", key.holder, key.model); err != nil {
			return err
		}
	}
	clear(p.sum)
	return nil
}
