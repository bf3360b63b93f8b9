package relay

import (
	"math"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	turnBytes    = 32 << 10 // most bytes read from one stream in one turn
	keptOutBytes = 256 << 10
	tickLength   = 10 * time.Millisecond
	noSlot       = math.MaxUint32
)

// loop is one thread around one epoll instance.
type loop struct {
	loops   *Loops
	ep      int
	wake    int // an eventfd
	streams atomic.Int32
	asleep  atomic.Bool // a message must wake the thread
	mailbox mailbox

	// Only the thread uses the fields below.
	batch   batch
	slots   []slot
	free    []uint32 // unused indexes of slots
	timers  wheel
	again   []ticket // flows that can read more
	turn    []ticket
	gone    []*flow // flows dismissed in this turn
	current *flow   // the flow whose event is being handled
	began   time.Time
	now     time.Time // start of this turn
	buffers buffers
	closed  bool
}

// mailbox holds messages from other goroutines. No message is handled with mu held, because a
// goroutine that cancels an exchange posts while it holds the exchange's lock.
type mailbox struct {
	mu    sync.Mutex
	inbox []message
	dead  bool // the thread has ended

	after sync.Mutex // held by a goroutine that does the thread's work after the thread's end
	late  []func()   // errands begun after the thread's end; the holder of after runs them

	letters []message // messages that the thread has taken from inbox
	read    int       // number of letters that were handled
}

// batch holds the events of one epoll_wait. ready[at:n] are not handled yet.
type batch struct {
	ready [256]unix.EpollEvent
	at, n int
}

// buffers are a loop's buffers, for one stream at a time.
type buffers struct {
	in  []byte // for reading
	out []byte // for the bytes to send
}

// slot maps an event to its flow. Events for an earlier user of the slot have another generation.
type slot struct {
	flow       *flow
	generation uint32
}

type ticket struct{ slot, generation uint32 }

func (l *loop) run() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for !l.closed {
		l.wait()
		for !l.step() {
		}
	}
	for !l.mailbox.close() {
		l.readMail()
	}
}

// wait returns when an event, a message or a deadline is due.
func (l *loop) wait() {
	timeout := l.timeout()
	if timeout != 0 {
		if l.asleep.Store(true); !l.mailbox.isEmpty() {
			timeout = 0
		}
	}
	n, err := unix.EpollWait(l.ep, l.batch.ready[:], timeout)
	l.asleep.Store(false)
	if err != nil { // interrupted by a signal
		n = 0
	}
	l.batch.at, l.batch.n, l.now = 0, n, time.Now()
}

// timeout returns how long to wait, in milliseconds; -1: for ever.
func (l *loop) timeout() int {
	if len(l.again) > 0 {
		return 0
	}
	tick, ok := l.timers.next()
	if !ok {
		return -1
	}
	left := time.Duration(tick)*tickLength - l.now.Sub(l.began)
	return max(0, int((left+time.Millisecond-1)/time.Millisecond))
}

// step handles everything that is ready. step returns false after a panic, and must then be called
// again.
func (l *loop) step() (done bool) {
	defer l.rescue()
	for b := &l.batch; b.at < b.n; {
		ev := &b.ready[b.at]
		b.at++
		l.dispatch(uint32(ev.Fd), uint32(ev.Pad), ev.Events)
	}
	l.turn, l.again = append(l.turn, l.again...), l.again[:0]
	for len(l.turn) > 0 {
		t := l.turn[len(l.turn)-1]
		l.turn = l.turn[:len(l.turn)-1]
		if f := l.find(t.slot, t.generation); f != nil {
			l.current, f.turn = f, waits
			f.pump()
		}
	}
	l.readMail()
	l.timers.advance(int64(l.now.Sub(l.began)/tickLength), fire)
	l.current = nil
	for i, f := range l.gone {
		l.gone[i] = nil
		f.recycle()
	}
	l.gone = l.gone[:0]
	l.loops.o.Lag(time.Since(l.now).Seconds())
	return true
}

// rescue ends the stream whose follower has panicked.
func (l *loop) rescue() {
	p := recover()
	if p == nil {
		return
	}
	l.loops.o.Panicked(p)
	if f := l.current; f != nil && f.isHere() {
		l.current = nil
		f.abandon(errFollower)
	}
}

// dispatch handles an event of slot id>>1. The last bit of id is set for the client's side.
func (l *loop) dispatch(id, generation, events uint32) {
	f := l.find(id>>1, generation)
	if f == nil {
		return
	}
	if l.current = f; id&1 != 0 {
		f.clientEvent(events)
	} else {
		f.upstreamEvent(events)
	}
}

func (l *loop) find(at, generation uint32) *flow {
	if int(at) >= len(l.slots) || l.slots[at].generation != generation {
		return nil
	}
	return l.slots[at].flow
}

// watch asks for edge-triggered events of fd.
func (l *loop) watch(fd int, id, generation, events uint32) error {
	err := unix.EpollCtl(l.ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{
		Events: events | unix.EPOLLET&math.MaxUint32, Fd: int32(id), Pad: int32(generation),
	})
	return os.NewSyscallError("epoll_ctl", err)
}

// unwatch ends watch. unwatch does nothing in a closed loop, whose epoll instance may be gone.
func (l *loop) unwatch(fd int) {
	if !l.closed {
		unix.EpollCtl(l.ep, unix.EPOLL_CTL_DEL, fd, nil)
	}
}

// admit gives f a slot.
func (l *loop) admit(f *flow) {
	if len(l.free) == 0 {
		l.free = append(l.free, uint32(len(l.slots)))
		l.slots = append(l.slots, slot{})
	}
	at := l.free[len(l.free)-1]
	l.free = l.free[:len(l.free)-1]
	l.slots[at].flow = f
	f.ticket = ticket{at, l.slots[at].generation}
}

// dismiss removes f from the loop.
func (l *loop) dismiss(f *flow) {
	s := &l.slots[f.ticket.slot]
	s.flow = nil
	s.generation++
	l.free = append(l.free, f.ticket.slot)
	l.timers.drop(&f.timer)
	f.step = dismissed
	l.gone = append(l.gone, f)
}

func (l *loop) eachFlow(do func(*flow)) {
	for i := range l.slots {
		if f := l.slots[i].flow; f != nil {
			l.current = f
			do(f)
		}
	}
}

// tick returns the first tick at or after t.
func (l *loop) tick(t time.Time) int64 {
	return int64((t.Sub(l.began) + tickLength - 1) / tickLength)
}
