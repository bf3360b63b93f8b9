package leg

import (
	"testing"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/residue"
)

// TestNothingOutlivesALeg: a field that recycling forgets would carry one client's data to another.
func TestNothingOutlivesALeg(t *testing.T) {
	l := newLeg()
	var taker place = func(*relay.Exchange) error { return nil }
	residue.Mark(l, []string{"prompt"}, taker) // which package where recycles
	l.reset()
	if left := residue.Left(l, "prompt"); left != nil {
		t.Errorf("left of a leg: %v", left)
	}
}

// TestNothingOutlivesAnAttempt that was dropped, apart from what try sets anew.
func TestNothingOutlivesAnAttempt(t *testing.T) {
	d := start(t, 1)
	l := d.Leg(asked(t, d, chat(100)), Question{}, nil)
	at, err := l.first()
	if err != nil {
		t.Fatal(err)
	}
	a := l.spare()
	residue.Mark(a, []string{"node", "ex", "abort"})
	a.node = l.pool.members[at]
	l.drop(a)
	if left := residue.Left(a); left != nil {
		t.Errorf("left of an attempt: %v", left)
	}
	l.permit.Release()
	l.recycle()
}
