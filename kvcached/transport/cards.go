package transport

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Release closes a card, so that the host may remove it. It waits for the end of the closing, or
// for ctx. The card is used again after it has been away and has come back. Release returns
// ErrNoCard if the card is not wanted.
func (r *Rails) Release(ctx context.Context, name string) error {
	identity := r.o.Present()[name]
	r.mu.Lock()
	c := r.cards[name]
	if c == nil || r.stop.Err() != nil {
		r.mu.Unlock()
		return fmt.Errorf("%w: %s", ErrNoCard, name)
	}
	if identity != "" {
		c.kept = identity
	}
	was, busy := c.rail, c.busy
	if was != nil {
		c.rail, c.busy = nil, make(chan struct{})
		busy = c.busy
	}
	if identity != "" || busy != nil {
		r.closed(name, c, errKept)
	}
	if was != nil {
		r.work.Go(func() { r.shut(name, was) })
	}
	r.mu.Unlock()
	if busy == nil {
		return nil
	}
	select {
	case <-busy:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("transport: %s is not closed yet: %w", name, context.Cause(ctx))
	}
}

// Open returns the names of the open cards.
func (r *Rails) Open() (names []string) {
	for _, c := range r.Cards() {
		if c.Address != "" {
			names = append(names, c.Name)
		}
	}
	return names
}

// Card describes a wanted card.
type Card struct {
	Name    string
	Address string // empty: the card is not open
	Trusted bool   // Address is in a trusted network
	Kept    bool   // the card is closed because Release was called
	Why     string // why the card is not open
}

// Cards returns the wanted cards, sorted by name. It returns AnyCard if all cards are wanted and
// the host has none.
func (r *Rails) Cards() (out []Card) {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, c := range r.cards {
		k := Card{Name: name}
		if c.rail != nil {
			k.Address, k.Trusted = c.rail.addr.String(), r.trusts(c.rail.addr)
		} else if c.why != nil {
			k.Why, k.Kept = c.why.Error(), c.kept != ""
		}
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b Card) int { return strings.Compare(a.Name, b.Name) })
	if r.none {
		out = append(out, Card{Name: AnyCard, Why: errNone.Error()})
	}
	return out
}
