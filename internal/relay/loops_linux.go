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

var (
	// errLoopsClosed ends the streams that are there when Loops close.
	errLoopsClosed = errors.New("relay loops closed")
	// errObserver ends a stream whose Observer has panicked.
	errObserver = errors.New("following the stream failed")
)

// waitEvery is how often Wait looks.
const waitEvery = 5 * time.Millisecond

// Loops relays event streams: see the package's text. It is safe for
// concurrent use.
type Loops struct {
	options  LoopsOptions
	all      []*loop
	busy     atomic.Int64   // streams, and connections that are served again
	draining atomic.Bool    // connections are closed with their stream
	serial   atomic.Uint64  // of the last stream
	running  sync.WaitGroup // threads, and goroutines that end streams
}

// NewLoops starts the threads. Close ends them.
func NewLoops(o LoopsOptions) (*Loops, error) {
	if o.Threads <= 0 { // see LoopsOptions
		o.Threads = max(1, runtime.GOMAXPROCS(0)-1)
	}
	if o.Lag == nil {
		o.Lag = func(float64) {}
	}
	if o.Panicked == nil {
		o.Panicked = func(any) {}
	}
	ls := &Loops{options: o}
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

// pick is the loop with the fewest streams.
func (ls *Loops) pick() *loop {
	best := ls.all[0]
	for _, l := range ls.all[1:] {
		if l.streams.Load() < best.streams.Load() {
			best = l
		}
	}
	return best
}

// Drain closes the connections that wait for a request, and from now on each
// other one when its stream has ended.
func (ls *Loops) Drain() {
	if !ls.draining.Swap(true) {
		for _, l := range ls.all {
			l.post(message{kind: msgDrain})
		}
	}
}

// Wait returns when there are no streams any more, and no requests for which
// connections went back to the server. It is for after Drain: connections that
// went back before count until they are closed.
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

// Close cuts what is left and returns when everybody who follows a stream has
// been told. What is lent afterwards is cut at once.
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

// message is what other goroutines tell a loop.
type message struct {
	kind   messageKind
	flow   *flow
	serial uint64
	ticket ticket // of msgSettled
}

type messageKind uint8

const (
	msgStart     messageKind = iota // flow is the loop's from now on
	msgInterrupt                    // the exchange of that serial has been canceled
	msgSettled                      // the end of the last stream of ticket's connection is through
	msgDrain
	msgClose
)

// post may be called from any goroutine.
func (l *loop) post(m message) {
	l.mu.Lock()
	if l.dead {
		l.obey(m) // which ends what begins
		late := l.late
		l.late = nil
		l.mu.Unlock()
		for _, do := range late {
			do()
		}
		return
	}
	l.inbox = append(l.inbox, m)
	l.mu.Unlock()
	if l.asleep.Swap(false) {
		one := [8]byte{1}
		unix.Write(l.wake, one[:]) // the counter cannot overflow
	}
}

// mail reports whether there are messages.
func (l *loop) mail() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.inbox) > 0
}

// readMail does what the messages say, in the order in which they came. After a panic it goes on with the next.
func (l *loop) readMail() {
	if l.read == len(l.letters) {
		l.mu.Lock()
		l.letters, l.inbox, l.read = l.inbox, l.letters[:0], 0
		l.mu.Unlock()
	}
	for l.read < len(l.letters) {
		m := l.letters[l.read]
		l.letters[l.read] = message{}
		l.read++
		l.obey(m)
	}
}

func (l *loop) obey(m message) {
	switch m.kind {
	case msgStart:
		l.current = m.flow
		m.flow.start()
	case msgInterrupt:
		if m.flow.serial.Load() == m.serial && m.flow.started {
			l.current = m.flow
			m.flow.interrupted()
		}
	case msgSettled:
		if f := l.find(m.ticket.slot, m.ticket.generation); f != nil {
			l.current = f
			f.settled()
		}
	case msgDrain:
		l.eachFlow((*flow).closeIdle)
	case msgClose:
		l.closed = true
		l.eachFlow((*flow).abandon)
	}
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
	l := &loop{loops: ls, ep: ep, wake: wake, began: time.Now(), space: make([]byte, turnBytes)}
	l.now = l.began
	// Edge triggered: every write wakes, and nobody has to read.
	if err := l.watch(wake, noSlot, 0, unix.EPOLLIN); err != nil {
		unix.Close(ep)
		unix.Close(wake)
		return nil, err
	}
	return l, nil
}
