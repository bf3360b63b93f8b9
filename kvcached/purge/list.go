package purge

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math"
	"slices"
	"strings"

	"github.com/cognitora/dataplane/kv/block"
)

// Bounds of a list. If a list exceeds a bound, one purge of everything replaces the older half of
// its purges.
const (
	MaxPurges = 10_000
	MaxBytes  = 1 << 20 // size of the list as JSON, in bytes
)

// Purge is one purge of the fleet.
type Purge struct {
	ID       string `json:"id"` // the purge's ID in every list; its revision may differ
	Revision uint32 `json:"revision"`
	Selector
}

// List is all purges that a fleet has seen. A List keeps only the later of two purges with equal
// selectors. A List does not change after it is made.
type List struct {
	// History identifies one numbering of purges. Revisions of two histories do not compare. A host
	// begins a new history if etcd has lost the list, or has an older state of it. 0: the list was
	// never in etcd.
	History  uint32  `json:"history"`
	Revision uint32  `json:"revision"` // revision of the last purge
	Purges   []Purge `json:"purges"`   // by revision
	// Tips are the last states of the list, the present one last, at most maxTips. They tell a
	// later state of a list from another list that has the same numbers.
	Tips []Tip `json:"tips,omitempty"`
}

// Tip identifies one state of a list.
type Tip struct {
	Revision uint32 `json:"revision"`
	Token    string `json:"token"` // random
}

// maxTips bounds List.Tips.
const maxTips = 1024

// tip returns the present state; zero: an empty list that was never in etcd.
func (l *List) tip() Tip {
	if len(l.Tips) == 0 {
		return Tip{}
	}
	return l.Tips[len(l.Tips)-1]
}

// moved returns the tips of l and a new one.
func (l *List) moved() []Tip {
	tips := append(slices.Clone(l.Tips), Tip{l.Revision, newID()[:tokenSize]})
	return tips[max(0, len(tips)-maxTips):]
}

// state is a number for a state, 0 for that of an empty list. If etcd was set back, two different
// lists may have equal revisions, but their states differ.
func (t Tip) state() uint32 {
	if t.Token == "" {
		return 0
	}
	return max(1, crc32.ChecksumIEEE([]byte(t.Token)))
}

// Stamp names the state of the list that a host has carried out.
type Stamp struct{ History, State uint32 }

// Stamp is the stamp of a host that has carried out the whole list.
func (l *List) Stamp() Stamp { return Stamp{l.History, l.tip().state()} }

// ErrFull says that the revisions of a history are used up.
const ErrFull = Refused("the list of purges has used up its 2^32 numbers, so no host has confirmed the purge; stop " +
	"all caches " +
	"of the fleet, delete /cognitora/kv/purges in etcd and empty their data directories")

// With returns the list with one more purge.
func (l *List) With(s Selector) (*List, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	return l.append([]Purge{{ID: newID(), Selector: s}})
}

// append returns the list with more purges at its end, under new revisions.
func (l *List) append(more []Purge) (*List, error) {
	if uint64(l.Revision)+uint64(len(more)) > math.MaxUint32 {
		return nil, ErrFull
	}
	out := &List{History: l.History, Revision: l.Revision, Tips: l.Tips}
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
	out.Tips = out.moved()
	return out.fold(), nil
}

// fold replaces the older half of the purges by one purge of everything, as often as the bounds
// need it. The new purge's ID follows from those that it replaces.
func (l *List) fold() *List {
	for len(l.Purges) > MaxPurges || len(l.Purges) > 1 && len(l.Encode()) > MaxBytes {
		last := (len(l.Purges) - 1) / 2
		var ids strings.Builder
		for i := range l.Purges[:last+1] {
			ids.WriteString(l.Purges[i].ID)
		}
		sum := sha256.Sum256([]byte(ids.String()))
		id := base32.StdEncoding.EncodeToString(sum[:])[:idSize]
		everything := Purge{id, l.Purges[last].Revision, Selector{Everything: true}}
		l.Purges = append([]Purge{everything}, l.Purges[last+1:]...)
	}
	return l
}

// text is the selector as JSON. Equal selectors have equal texts.
func (p *Purge) text() string {
	s := p.Selector
	s.Namespaces = slices.Sorted(slices.Values(s.Namespaces))
	b, _ := json.Marshal(s) // the selector has only strings and a bool, so there is no error
	return string(b)
}

// Bars tells whether a purge later than the stamp removes the block, or may remove it if the key of
// a client's block is empty, so perhaps unknown. A stamp with a state that the
// list does not name is earlier than every purge.
func (l *List) Bars(s Stamp, namespace string, key []byte) bool {
	from := 0
	at := slices.IndexFunc(l.Tips, func(t Tip) bool { return t.state() == s.State })
	if s.History == l.History && at >= 0 {
		from, _ = slices.BinarySearchFunc(l.Purges, l.Tips[at].Revision, func(p Purge, revision uint32) int {
			return cmp.Compare(uint64(p.Revision), uint64(revision)+1)
		})
	}
	if from == len(l.Purges) {
		return false
	}
	return removed(l.Purges[from:], namespace, key, len(key) == 0)
}

// matchAny returns a function that tells whether one of the purges removes a block. The function
// gets the block's key, which may be empty.
func matchAny(purges []Purge) func(namespace string, key []byte) bool {
	return func(namespace string, key []byte) bool { return removed(purges, namespace, key, false) }
}

// removed tells whether one of the purges removes a block, or may remove it if the key is unknown.
func removed(purges []Purge, namespace string, key []byte, unknown bool) bool {
	n, err := block.ParseNamespace(namespace)
	b := subject{text: namespace, Namespace: n, key: string(key), unknown: unknown}
	return slices.ContainsFunc(purges, func(p Purge) bool { return p.Everything || err == nil && p.matches(&b) })
}

// since returns the purges of l that are not carried out on a host which has carried out the list
// done.
func (l *List) since(done *List) (more []Purge) {
	if l.Follows(done) {
		for i := range l.Purges {
			if l.Purges[i].Revision > done.Revision {
				more = append(more, l.Purges[i])
			}
		}
		return more
	}
	return l.besides(done)
}

// besides returns the purges of l that other does not have. Revisions of the purges do not matter.
func (l *List) besides(other *List) (more []Purge) {
	known := make(map[string]bool, len(other.Purges))
	for i := range other.Purges {
		known[other.Purges[i].ID] = true
	}
	for i := range l.Purges {
		if !known[l.Purges[i].ID] {
			more = append(more, l.Purges[i])
		}
	}
	return more
}

// Follows reports whether l is the list earlier, or was made from that list.
func (l *List) Follows(earlier *List) bool {
	return l.History == earlier.History && (slices.Contains(l.Tips, earlier.tip()) || earlier.tip() == Tip{})
}

// Merge returns the list that etcd should have. theirs is etcd's list, nil if it has none, and mine
// is the list of a host. A purge that etcd has lost gets a revision above those of both lists.
// Nothing has to be written if Merge returns theirs.
func Merge(mine, theirs *List) (*List, error) {
	if theirs == nil {
		out := List{History: newHistory(), Revision: mine.Revision, Purges: mine.Purges}
		out.Tips = out.moved()
		return &out, nil
	}
	if theirs.Follows(mine) {
		return theirs, nil
	}
	if mine.History == 0 { // these purges covered only their own host
		return theirs, nil
	}
	lost := mine.besides(theirs)
	if mine.History == theirs.History && theirs.forgot(mine.tip()) { // a later purge may stand for one of mine
		lost = slices.DeleteFunc(lost, func(p Purge) bool {
			return slices.ContainsFunc(theirs.Purges, func(q Purge) bool {
				return q.Revision >= p.Revision && (q.Everything || q.text() == p.text())
			})
		})
	}
	back := mine.History == theirs.History && !theirs.forgot(mine.tip())
	if !back && len(lost) == 0 {
		return theirs, nil
	}
	out := *theirs
	if back { // etcd has gone back to an earlier state
		out.History, out.Tips = newHistory(), nil
	}
	out.Revision = max(out.Revision, mine.Revision)
	texts := map[string]bool{}
	for i := range theirs.Purges {
		texts[theirs.Purges[i].text()] = true
	}
	for i := range lost {
		if texts[lost[i].text()] { // the purge stands for both; no side has carried out both
			lost[i].ID = newID()
		}
	}
	return out.append(lost)
}

// forgot reports whether a state is older than all states that l names.
func (l *List) forgot(t Tip) bool { return len(l.Tips) == maxTips && t.Revision < l.Tips[0].Revision }

// Encode is the list as JSON.
func (l *List) Encode() []byte {
	b, _ := json.Marshal(l) // the list has only strings, numbers and bools, so there is no error
	return b
}

// Parse reads and checks a list. Anybody with write access to etcd may have written the list.
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
	if len(l.Tips) > maxTips {
		return fmt.Errorf("tips: there are %d, at most %d are allowed", len(l.Tips), maxTips)
	}
	for i, t := range l.Tips {
		if len(t.Token) != tokenSize || t.Revision > l.Revision {
			return fmt.Errorf("tips[%d] is not a state of the list", i)
		}
	}
	if len(l.Purges) > MaxPurges {
		return fmt.Errorf("purges: there are %d, at most %d are allowed", len(l.Purges), MaxPurges)
	}
	return nil
}

// Lengths of random texts; crypto/rand.Text has 26 characters.
const (
	idSize    = 26
	tokenSize = 12
)

func newID() string { return rand.Text() }

func newHistory() uint32 {
	var b [4]byte
	_, _ = rand.Read(b[:]) // rand.Read never returns an error
	return max(1, binary.LittleEndian.Uint32(b[:]))
}
