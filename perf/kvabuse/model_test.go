package kvabuse

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// The rules for an answer: an answer must be complete, a version of the requested subject, and one
// of the subject's possible states. A version whose replacement or deletion was acknowledged must
// never return, however it was stored.
//
// The rules for a miss: a miss is not allowed if the subject was acknowledged and the daemon lives.
// After a kill, a miss is not allowed if the acknowledged version was stored durably, or has
// survived an earlier kill. A version that was acknowledged in RAM only may be missing after a
// kill. Such a version may also be back, if it was on SSD by the time of the kill. If RAM and SSD
// are too small for all subjects, a miss is allowed and counted.
//
// An operation without acknowledgement may have happened or not. Only a durable Put over a durable
// version must leave one of the two versions.

// state is a possible state of a subject; version 0: it does not exist.
type state struct {
	version uint64
	expires int64 // Unix ms; 0: never
}

// slack is how much two readings of the clock may differ in the wrong order, in ms.
const slack = 2

// entry is the clients' knowledge of a subject. Only one client changes the subject.
type entry struct {
	mu     sync.Mutex
	maybe  []state // possible states, at least one
	firm   bool    // a kill does not change the state
	begun  uint64  // the last version that a client has begun to store
	change uint64  // number of begun and of acknowledged operations
}

func newEntry() *entry { return &entry{maybe: []state{{}}, firm: true} }

// begin records that an operation begins, and returns the subject's next state; version 0 deletes.
func (e *entry) begin(deletes, durable bool, expires int64) (next state) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !deletes {
		e.begun++
		next = state{e.begun, expires}
	}
	e.change++
	e.add(next)
	if !durable {
		e.add(state{}) // the old version is removed from SSD before the new one is acknowledged in RAM
	}
	return next
}

func (e *entry) add(s state) {
	if !slices.Contains(e.maybe, s) {
		e.maybe = append(e.maybe, s)
	}
}

// acknowledged records that the subject now has this state. firm means that a kill does not change
// the state.
func (e *entry) acknowledged(is state, firm bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.change++
	e.maybe, e.firm = append(e.maybe[:0:0], is), firm || is.version == 0
}

// killed records a kill, which may have lost the subject.
func (e *entry) killed() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.firm {
		e.add(state{})
	}
	e.change++
}

// before is a snapshot of an entry before a read.
type before struct {
	maybe  []state
	begun  uint64
	change uint64
	at     int64
}

func (e *entry) before() before {
	e.mu.Lock()
	defer e.mu.Unlock()
	return before{slices.Clone(e.maybe), e.begun, e.change, time.Now().UnixMilli()}
}

// judgement is the result of checking a read.
type judgement struct {
	wrong   string // the error; "": none
	missing bool   // the subject should have been found
	is      state
}

// judge checks the version read since b against the possible states; version 0 is a miss.
func (e *entry) judge(b before, version uint64) judgement {
	now := time.Now().UnixMilli()
	e.mu.Lock()
	defer e.mu.Unlock()
	if version == 0 {
		return judgement{missing: !mayMiss(b, now) && e.change == b.change}
	}
	if version > b.begun && version <= e.begun {
		return judgement{is: state{version: version}}
	}
	for _, s := range b.maybe {
		switch {
		case s.version != version:
		case s.expires != 0 && b.at > s.expires+slack:
			return judgement{wrong: fmt.Sprintf("version %d, which was over %d ms ago", version, b.at-s.expires)}
		default:
			return judgement{is: s}
		}
	}
	return judgement{wrong: fmt.Sprintf("version %d, where only %v can be", version, b.maybe)}
}

func mayMiss(b before, now int64) bool {
	return slices.ContainsFunc(b.maybe, func(s state) bool {
		return s.version == 0 || s.expires != 0 && now >= s.expires-slack
	})
}

// settle stores the state found after a kill as the entry's only possible state. RAM was empty, so
// the state is on SSD and stays.
func (e *entry) settle(is state) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.maybe, e.firm = append(e.maybe[:0:0], is), true
	e.change++
}
