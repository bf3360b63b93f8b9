package purge

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cognitora/dataplane/kv/block"
)

// Bounds of a list. Beyond either the older half of the purges becomes one of everything.
const (
	MaxPurges = 10_000
	MaxBytes  = 1 << 20 // as JSON
)

// Purge is one purge of the fleet.
type Purge struct {
	ID       string `json:"id"` // the same in every list, whatever its number there
	Revision uint32 `json:"revision"`
	Selector
}

// List is all purges that a fleet has seen. Of two purges with equal selectors it keeps the later
// one. A List is not changed once it is made.
type List struct {
	// History names the numbering: revisions of two histories do not compare. A list that etcd has
	// lost, or has in an older state, begins a new one. 0: the list was never in etcd.
	History  uint32  `json:"history"`
	Revision uint32  `json:"revision"` // of the last purge
	Purges   []Purge `json:"purges"`   // by revision
}

// Stamp says up to which purge a host has removed what was to be removed.
type Stamp struct{ History, Revision uint32 }

// Stamp is the state of a host that has carried out all of the list.
func (l *List) Stamp() Stamp { return Stamp{l.History, l.Revision} }

// ErrFull says that the numbers of a history are used up.
var ErrFull = errors.New("purge: 2^32 purges are behind this list")

// With is the list with one more purge.
func (l *List) With(s Selector) (*List, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	return l.append([]Purge{{ID: newID(), Selector: s}})
}

// append puts purges behind the others, with new numbers.
func (l *List) append(more []Purge) (*List, error) {
	if uint64(l.Revision)+uint64(len(more)) > math.MaxUint32 {
		return nil, ErrFull
	}
	out := &List{History: l.History, Revision: l.Revision}
	again := map[string]bool{}
	for i := range more {
		again[more[i].text()] = true
	}
	for i := range l.Purges {
		if !again[l.Purges[i].text()] {
			out.Purges = append(out.Purges, l.Purges[i])
		}
	}
	for _, p := range more {
		out.Revision++
		p.Revision = out.Revision
		out.Purges = append(out.Purges, p)
	}
	return out.fold(), nil
}

// fold makes the older half of too many purges one of everything.
func (l *List) fold() *List {
	for len(l.Purges) > MaxPurges || len(l.Purges) > 1 && len(l.Encode()) > MaxBytes {
		last := (len(l.Purges) - 1) / 2
		everything := Purge{l.Purges[last].ID, l.Purges[last].Revision, Selector{Everything: true}}
		l.Purges = append([]Purge{everything}, l.Purges[last+1:]...)
	}
	return l
}

// text is the selector as the same text for equal ones.
func (p *Purge) text() string {
	s := p.Selector
	s.Namespaces = slices.Sorted(slices.Values(s.Namespaces))
	b, _ := json.Marshal(s) // it has strings and a bool only
	return string(b)
}

// Bars tells whether a purge later than a stamp removes a block. Stamps of another history are
// earlier than every purge.
func (l *List) Bars(s Stamp, namespace string, key []byte) bool {
	from := 0
	if s.History == l.History {
		from, _ = slices.BinarySearchFunc(l.Purges, s.Revision, func(p Purge, revision uint32) int {
			return cmp.Compare(uint64(p.Revision), uint64(revision)+1)
		})
	}
	if from == len(l.Purges) {
		return false
	}
	return matchAny(l.Purges[from:])(namespace, key)
}

// matchAny tells of a block whether one of some purges removes it.
func matchAny(purges []Purge) func(namespace string, key []byte) bool {
	return func(namespace string, key []byte) bool {
		n, err := block.ParseNamespace(namespace)
		b := subject{namespace, n, string(key)}
		return slices.ContainsFunc(purges, func(p Purge) bool { return p.Everything || err == nil && p.matches(&b) })
	}
}

// since is the purges that a host which has carried out an earlier list has not.
func (l *List) since(done *List) (more []Purge) {
	if l.History == done.History {
		for i := range l.Purges {
			if l.Purges[i].Revision > done.Revision {
				more = append(more, l.Purges[i])
			}
		}
		return more
	}
	return l.besides(done)
}

// besides is the purges of a list that another list does not have, whatever their numbers. A fold
// has the ID of the last purge in it.
func (l *List) besides(other *List) (more []Purge) {
	known := make(map[string]*Purge, len(other.Purges))
	for i := range other.Purges {
		known[other.Purges[i].ID] = &other.Purges[i]
	}
	for i := range l.Purges {
		p := &l.Purges[i]
		if q := known[p.ID]; q == nil || p.Everything && !q.Everything {
			more = append(more, *p)
		}
	}
	return more
}

// Follows tells whether a list is a later state, or the same, of an earlier one: with the same
// numbering, and without purges that the earlier one should have and has not.
func (l *List) Follows(earlier *List) bool {
	if l.History != earlier.History || l.Revision < earlier.Revision {
		return false
	}
	numbers := make(map[string]uint32, len(earlier.Purges))
	for i := range earlier.Purges {
		numbers[earlier.Purges[i].ID] = earlier.Purges[i].Revision
	}
	for i := range l.Purges {
		p := &l.Purges[i]
		if p.Revision <= earlier.Revision && numbers[p.ID] != p.Revision {
			return false
		}
	}
	return true
}

// Merge is the list that etcd is to have, where it has theirs, nil for none, and a host knows mine.
// Purges that etcd has lost get numbers above all that either knows. Nothing is to be written where
// theirs comes back.
func Merge(mine, theirs *List) (*List, error) {
	if theirs == nil {
		out := *mine
		out.History = newHistory()
		return &out, nil
	}
	if theirs.Follows(mine) {
		return theirs, nil
	}
	lost := mine.besides(theirs)
	if mine.History != theirs.History && len(lost) == 0 {
		return theirs, nil
	}
	out := *theirs
	if mine.History == theirs.History { // etcd was set back to an earlier state
		out.History = newHistory()
	}
	out.Revision = max(out.Revision, mine.Revision)
	texts := map[string]bool{}
	for i := range theirs.Purges {
		texts[theirs.Purges[i].text()] = true
	}
	for i := range lost {
		if texts[lost[i].text()] { // it stands for both, and neither side has carried out both
			lost[i].ID = newID()
		}
	}
	return out.append(lost)
}

// Encode is the list as JSON.
func (l *List) Encode() []byte {
	b, _ := json.Marshal(l) // it has strings, numbers and bools only
	return b
}

// Parse reads a list, which may come from anybody who may write to etcd.
func Parse(text []byte) (*List, error) {
	if len(text) > MaxBytes+MaxBytes/8 {
		return nil, fmt.Errorf("purge: a list of %d bytes, at most %d are allowed", len(text), MaxBytes)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	l := &List{}
	if err := d.Decode(l); err != nil {
		return nil, fmt.Errorf("purge: the list of purges: %w", err)
	}
	return l, l.check()
}

func (l *List) check() error {
	last := uint32(0)
	for i := range l.Purges {
		p := &l.Purges[i]
		if err := p.Check(); err != nil {
			return fmt.Errorf("purges[%d]: %w", i, err)
		}
		if p.Revision <= last || p.Revision > l.Revision {
			return fmt.Errorf("purges[%d].revision is %d: it must be above %d and not above the list's, %d", i,
				p.Revision, last, l.Revision)
		}
		if len(p.ID) != idSize {
			return fmt.Errorf("purges[%d].id has %d characters, not %d", i, len(p.ID), idSize)
		}
		last = p.Revision
	}
	if len(l.Purges) > MaxPurges {
		return fmt.Errorf("purges: there are %d, at most %d are allowed", len(l.Purges), MaxPurges)
	}
	return nil
}

const idSize = 26 // of crypto/rand.Text

func newID() string { return rand.Text() }

func newHistory() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // it does not fail
	return max(1, binary.LittleEndian.Uint32(b[:]))
}
