package relay

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// errLoopsClosed ends the remaining streams when Loops close.
var errLoopsClosed = errors.New("relay loops closed")

// waitEvery is how often Wait checks.
const waitEvery = 5 * time.Millisecond

// Loops relays event streams, as the package's documentation describes. Loops is safe for
// concurrent use.
type Loops struct {
	o        LoopsOptions
	all      []*loop
	busy     atomic.Int64   // number of streams, plus connections that returned to the server
	draining atomic.Bool    // true if connections are closed with their stream
	serial   atomic.Uint64  // number of the last parked exchange
	running  sync.WaitGroup // threads, and goroutines that end streams
}

// NewLoops starts the threads. Close ends the threads.
func NewLoops(o LoopsOptions) (*Loops, error) {
	if o.Threads <= 0 { // the reason is at LoopsOptions.Threads
		o.Threads = max(1, runtime.GOMAXPROCS(0)-1)
	}
	if o.Lag == nil {
		o.Lag = func(float64) {}
	}
	if o.Panicked == nil {
		o.Panicked = func(any) {}
	}
	ls := &Loops{o: o}
	for range o.Threads {
		l, err := newLoop(ls)
		if err != nil {
			ls.Close()
			return nil, err
		}
		ls.all = append(ls.all, l)
		ls.running.Go(l.run)
	}
	return ls, nil
}

// pick returns the loop with the fewest streams.
func (ls *Loops) pick() *loop {
	best := ls.all[0]
	for _, l := range ls.all[1:] {
		if l.streams.Load() < best.streams.Load() {
			best = l
		}
	}
	return best
}

// Drain closes the connections that wait for a request. From now on, every other connection is
// closed when its stream has ended.
func (ls *Loops) Drain() {
	if !ls.draining.Swap(true) {
		for _, l := range ls.all {
			l.post(message{kind: msgDrain})
		}
	}
}

// Wait returns when there are no more streams, and no more requests on connections that returned to
// the server. Wait is called after Drain. A connection that returned before Drain counts until it
// is closed.
func (ls *Loops) Wait(ctx context.Context) error {
	tick := time.NewTicker(waitEvery)
	defer tick.Stop()
	for ls.busy.Load() > 0 {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}

// Close cuts the remaining streams and returns when all their followers have been told. Streams
// that are parked afterwards are cut immediately.
func (ls *Loops) Close() {
	ls.draining.Store(true)
	for _, l := range ls.all {
		l.post(message{kind: msgClose})
	}
	ls.running.Wait()
	for _, l := range ls.all {
		unix.Close(l.ep)
		unix.Close(l.wake)
	}
}

// message is a message to a loop from another goroutine.
type message struct {
	kind   messageKind
	flow   *flow
	serial uint64    // for msgInterrupt
	ticket ticket    // for msgSettled
	next   *Exchange // for msgNext
	err    error     // for msgNext: why there is no next source
}

type messageKind uint8

const (
	msgStart     messageKind = iota // the loop takes over flow
	msgInterrupt                    // the exchange with this serial has been canceled
	msgNext                         // the flow's next source is there, or there is none
	msgSettled                      // the resources of the last stream of this ticket's connection are released
	msgDrain
	msgClose
)

// post may be called from any goroutine.
func (l *loop) post(m message) {
	box := &l.mailbox
	box.mu.Lock()
	if box.dead {
		box.mu.Unlock()
		l.end(m)
		return
	}
	box.inbox = append(box.inbox, m)
	box.mu.Unlock()
	if l.asleep.Swap(false) {
		one := [8]byte{1}
		unix.Write(l.wake, one[:]) // the counter cannot overflow
	}
}

// end handles a message that comes after the thread's end. end ends the flow that the message
// brings.
func (l *loop) end(m message) {
	if m.kind == msgInterrupt { // its stream has ended
		return
	}
	box := &l.mailbox
	box.after.Lock()
	l.obey(m)
	late := box.late
	box.late = nil
	box.after.Unlock()
	for _, do := range late {
		do()
	}
}

// isEmpty reports whether there are no messages.
func (b *mailbox) isEmpty() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.inbox) == 0
}

// take empties the mailbox.
func (b *mailbox) take() []message {
	b.mu.Lock()
	defer b.mu.Unlock()
	taken := b.inbox
	b.inbox = b.letters[:0]
	return taken
}

// close marks the mailbox as dead and returns true, unless it has messages. A dead mailbox takes no
// more messages.
func (b *mailbox) close() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dead = len(b.inbox) == 0
	return b.dead
}

// readMail handles the messages in order. After a panic, readMail continues with the next message.
func (l *loop) readMail() {
	box := &l.mailbox
	if box.read == len(box.letters) {
		box.letters, box.read = box.take(), 0
	}
	for box.read < len(box.letters) {
		m := box.letters[box.read]
		box.letters[box.read] = message{}
		box.read++
		l.obey(m)
	}
}

func (l *loop) obey(m message) {
	switch m.kind {
	case msgStart:
		l.current = m.flow
		m.flow.start()
	case msgInterrupt:
		if m.flow.serial.Load() == m.serial && m.flow.isHere() {
			l.current = m.flow
			m.flow.interrupted()
		}
	case msgNext:
		l.current = m.flow
		m.flow.changed(m.next, m.err)
	case msgSettled:
		if f := l.find(m.ticket.slot, m.ticket.generation); f != nil {
			l.current = f
			f.settled()
		}
	case msgDrain:
		l.eachFlow((*flow).closeIdle)
	case msgClose:
		l.closed = true
		l.eachFlow(func(f *flow) { f.abandon(errLoopsClosed) })
	}
}

// errand runs n on a goroutine.
func (l *loop) errand(n *errand) {
	if l.mailbox.dead { // the caller holds after
		l.mailbox.late = append(l.mailbox.late, n.do)
	} else {
		l.loops.running.Go(n.do)
	}
}

// guard calls a method of a follower and handles a panic.
func (ls *Loops) guard(do func()) {
	defer func() {
		if p := recover(); p != nil {
			ls.o.Panicked(p)
		}
	}()
	do()
}

func newLoop(ls *Loops) (*loop, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	wake, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(ep)
		return nil, os.NewSyscallError("eventfd", err)
	}
	l := &loop{loops: ls, ep: ep, wake: wake, began: time.Now()}
	l.buffers.in = make([]byte, turnBytes)
	l.now = l.began
	// Edge triggered: every write wakes the thread, and nobody has to read.
	if err := l.watch(wake, noSlot, 0, unix.EPOLLIN); err != nil {
		unix.Close(ep)
		unix.Close(wake)
		return nil, err
	}
	return l, nil
}
