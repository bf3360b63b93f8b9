package learned

import (
	"container/list"
	"math/rand/v2"
	"time"
)

// record is what is known of the entries of a form. The counts halve every fadeEvery: an entry is
// also contradicted by blocks that an engine evicts between the pick and its answer, and a form
// that is not used cannot be confirmed.
type record struct {
	form         uint64
	right, wrong int             // entries that engines have confirmed and contradicted
	faded        time.Time       // when the counts were halved
	tails        map[string]tail // by the role of the message behind a boundary
}

// fade halves the counts as often as is due.
func (r *record) fade(now time.Time) {
	if n := now.Sub(r.faded) / fadeEvery; n > 0 {
		r.right, r.wrong, r.faded = r.right>>n, r.wrong>>n, r.faded.Add(n*fadeEvery)
	}
}

func (r *record) distrusted() bool { return r.wrong > r.right+tooWrong }

// forms are the records of the forms that were used last. A Map's lock guards them.
type forms struct {
	known map[uint64]*list.Element
	order list.List // of *record; front: used last
}

// find returns the record of a form, or nil.
func (s *forms) find(form uint64) *record {
	e := s.known[form]
	if e == nil {
		return nil
	}
	s.order.MoveToFront(e)
	return e.Value.(*record)
}

// add makes the record of a form that has none.
func (s *forms) add(form uint64) *record {
	if s.order.Len() >= maxForms {
		delete(s.known, s.order.Remove(s.order.Back()).(*record).form)
	}
	r := &record{form: form, faded: time.Now(), tails: map[string]tail{}}
	s.known[form] = s.order.PushFront(r)
	return r
}

// distrusted returns the number of forms that are not used.
func (s *forms) distrusted(now time.Time) (n int) {
	for e := s.order.Front(); e != nil; e = e.Next() {
		r := e.Value.(*record)
		if r.fade(now); r.distrusted() {
			n++
		}
	}
	return n
}

// tail is the number of ids that the first of two parting chats has behind the place where they
// part.
type tail struct {
	ids, agreed int // agreed: lessons in a row that had this number
}

const (
	maxForms = 1024 // with a record; those used least recently lose theirs, and are trusted again
	// A form whose entries were wrong more often than right, by more than this number, is not used
	// until the counts have faded. Its ids from /tokenize are not those of the engine's prompts.
	tooWrong  = 16
	fadeEvery = 10 * time.Minute
	// surely is the number of lessons that must agree on a tail before one chat is enough. Of the
	// lessons after that, one in againEvery asks for both chats.
	surely     = 4
	againEvery = 16
)

// formOf returns the record of a form. The caller holds the lock.
func (m *Map) formOf(form uint64) *record {
	if r := m.forms.find(form); r != nil {
		return r
	}
	return m.forms.add(form)
}

// tailOf returns the number of ids behind a boundary before a message of the role, if it is sure.
func (m *Map) tailOf(form uint64, role []byte) (ids int, sure bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.formOf(form).tails[string(role)]
	return t.ids, t.agreed >= surely && rand.IntN(againEvery) > 0
}

// agree notes the number of ids behind a boundary. Once two lessons differ, no number is sure for a
// long time.
func (m *Map) agree(form uint64, role []byte, ids int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.formOf(form)
	t := f.tails[string(role)]
	switch {
	case t.agreed == 0:
		t = tail{ids, 1}
	case t.ids == ids:
		t.agreed++
	default:
		t = tail{ids, -1000}
	}
	f.tails[string(role)] = t
}

// Settle notes that an engine's cached tokens have confirmed the entry, or contradicted it. A
// contradicted entry is forgotten.
func (m *Map) Settle(e *Entry, right bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.formOf(e.form)
	f.fade(time.Now())
	if right {
		f.right = min(f.right+1, f.wrong+tooWrong)
		return
	}
	f.wrong++
	if m.known[e.key] == e {
		m.count.wrong++
		m.forget(e)
	}
}

// trusts says whether the entries of a form are used.
func (m *Map) trusts(form uint64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.trusted(form)
}

// trusted is trusts for a caller that holds the lock.
func (m *Map) trusted(form uint64) bool {
	f := m.forms.find(form)
	if f == nil || !f.distrusted() {
		return true
	}
	f.fade(time.Now())
	return !f.distrusted()
}
