package kvabuse

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

// What is demanded of an answer, always: it is a version of what was asked for, whole, and one of
// those that the subject may have now; a version that was replaced or deleted, with that
// acknowledged, never comes again, however it was stored.
//
// Of a miss: it must not be where the subject was acknowledged and the daemon lives, nor, after it
// was killed, where the acknowledged version was stored durably or has been seen to have survived a
// kill before. A version acknowledged in RAM only may be gone after a kill: either it is back (it
// was on SSD by then), or nothing is. Where SSD and RAM are too small for everything, a miss is
// allowed and counted.
//
// An operation that was not acknowledged may have happened or not. Only a durable Put over a
// durable version must leave one of the two.

// state is what a subject may be; version 0: not there.
type state struct {
	version uint64
	expires int64 // Unix ms; 0: never
}

// slack is how far two readings of the clock may be apart in the wrong order, in ms.
const slack = 2

// entry is what the clients know of a subject, which one of them alone changes.
type entry struct {
	mu     sync.Mutex
	maybe  []state // what it may be, at least one
	firm   bool    // a kill takes nothing of it
	begun  uint64  // the last version that was begun
	change uint64  // operations that were begun or acknowledged
}

func newEntry() *entry { return &entry{maybe: []state{{}}, firm: true} }

// begin tells that the subject is going to be next, and returns the number of its version; version
// 0 deletes.
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
		e.add(state{}) // the old one goes from SSD before the new one is acknowledged in RAM
	}
	return next
}

func (e *entry) add(s state) {
	if !slices.Contains(e.maybe, s) {
		e.maybe = append(e.maybe, s)
	}
}

// acknowledged tells that the subject is now is. firm: and stays that when the daemon is killed.
func (e *entry) acknowledged(is state, firm bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.change++
	e.maybe, e.firm = append(e.maybe[:0:0], is), firm || is.version == 0
}

// killed tells that the daemon is gone, and says whether something may be lost.
func (e *entry) killed() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.firm {
		e.add(state{})
	}
	e.change++
}

// snapshot of an entry before a read.
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

// judgement of a read.
type judgement struct {
	wrong   string // what is wrong with it; "": nothing
	missing bool   // it should have been there
	is      state
}

// judge holds what was read since b to what may be: a version, or 0 for a miss.
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

// settle takes what was found after a kill for what there is: RAM was empty, so it is on SSD and
// stays.
func (e *entry) settle(is state) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.maybe, e.firm = append(e.maybe[:0:0], is), true
	e.change++
}
