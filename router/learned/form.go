package learned

import "math/rand/v2"

// record is what is known of the entries of a form.
type record struct {
	right, wrong int             // entries that engines have confirmed and contradicted
	tails        map[string]tail // by the role of the message behind a boundary
}

// tail is the number of ids that the first of two parting chats has behind the place where they
// part.
type tail struct {
	ids, agreed int // agreed: lessons in a row that had this number
}

const (
	maxForms = 1024 // nothing is known of further forms, and they are trusted
	// A form whose entries were wrong more often than right, by more than this number, is not used
	// any more. Its ids from /tokenize are not those of the engine's prompts.
	tooWrong = 16
	// surely is the number of lessons that must agree on a tail before one chat is enough. Of the
	// lessons after that, one in againEvery asks for both chats.
	surely     = 4
	againEvery = 16
)

// formOf returns the record of a form. The caller holds the lock.
func (m *Map) formOf(form uint64) *record {
	f := m.forms[form]
	if f == nil {
		f = &record{tails: map[string]tail{}}
		if len(m.forms) < maxForms {
			m.forms[form] = f
		}
	}
	return f
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
	f := m.forms[form]
	return f == nil || f.wrong <= f.right+tooWrong
}
