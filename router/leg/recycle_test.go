package leg

import (
	"testing"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/residue"
)

// TestNothingOutlivesALeg checks that recycle clears every field. A field left over would carry one
// client's data to another client.
func TestNothingOutlivesALeg(t *testing.T) {
	l := newLeg()
	var taker place = func(*relay.Exchange) error { return nil }
	residue.Mark(l, []string{"subject.prompt"}, taker) // package where recycles the prompt
	l.reset()
	if left := residue.Left(l, "subject.prompt"); left != nil {
		t.Errorf("left of a leg: %v", left)
	}
}

// TestNothingOutlivesAnAttempt checks that drop clears every field that try does not set.
func TestNothingOutlivesAnAttempt(t *testing.T) {
	d := start(t, 1)
	l := d.Leg(asked(t, d, chat(100)), Question{}, nil)
	at, err := l.first()
	if err != nil {
		t.Fatal(err)
	}
	a := l.spare()
	residue.Mark(a, []string{"node", "ex", "abort"})
	a.member = l.pool.members[at]
	l.drop(a)
	if left := residue.Left(a); left != nil {
		t.Errorf("left of an attempt: %v", left)
	}
	l.permit.Release()
	l.recycle()
}
