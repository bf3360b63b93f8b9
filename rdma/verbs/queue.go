//go:build linux && cgo && rdma

package verbs

/*
#cgo noescape verbs_post_reads
#cgo nocallback verbs_post_reads
#cgo noescape verbs_poll
#cgo nocallback verbs_poll
#cgo noescape verbs_arm
#cgo nocallback verbs_arm
#cgo noescape verbs_taken
#cgo nocallback verbs_taken
#include "verbs.h"
*/
import "C"

import (
	"fmt"
	"os"
	"syscall"
	"unsafe"
)

// channel signals by a descriptor in the netpoller that a completion queue has completions.
type channel struct {
	object
	c    *C.struct_ibv_comp_channel
	file *os.File
}

func (k *card) channel() (*channel, error) {
	c, err := C.ibv_create_comp_channel(k.c)
	if c == nil {
		return nil, null("completion channel", err)
	}
	file, err := pollable(c.fd, "completions")
	if err != nil {
		C.ibv_destroy_comp_channel(c)
		return nil, err
	}
	return &channel{newObject("completion channel", &k.object), c, file}, nil
}

// forsake closes the descriptors of a channel that cannot be destroyed, because they would keep the
// card from being removed. No events are taken any more.
func (ch *channel) forsake() {
	_ = ch.file.Close()
	_ = syscall.Close(int(ch.c.fd))
}

func (ch *channel) close() error {
	return ch.destroy(func() error {
		_ = ch.file.Close()
		return failed(C.ibv_destroy_comp_channel(ch.c))
	})
}

// completions is a completion queue. Only one goroutine at a time may take completions or an event.
type completions struct {
	object
	c    *C.struct_ibv_cq
	ch   *channel
	done [C.VERBS_DONE]C.struct_verbs_done
}

func (k *card) completions(ch *channel, size int) (*completions, error) {
	mapping.RLock()
	defer mapping.RUnlock()
	c, err := C.ibv_create_cq(k.c, C.int(size), nil, ch.c, 0)
	if c == nil {
		return nil, null("completion queue", err)
	}
	return &completions{object: newObject("completion queue", &k.object, &ch.object), c: c, ch: ch}, nil
}

// event takes an event and all available completions. event returns EAGAIN if there is no event.
func (q *completions) event(take func([]C.struct_verbs_done)) error {
	return q.drain(C.verbs_taken(q.ch.c, &q.done[0]), take)
}

// is tells whether cq, from an event, is this queue.
func (q *completions) is(cq uintptr) bool { return uintptr(unsafe.Pointer(q.c)) == cq }

// arm makes the next completion send one event. arm also takes all available completions, which may
// have sent none.
func (q *completions) arm(take func([]C.struct_verbs_done)) error {
	return q.drain(C.verbs_arm(q.c, &q.done[0]), take)
}

// all takes all available completions.
func (q *completions) all(take func([]C.struct_verbs_done)) error {
	return q.drain(C.verbs_poll(q.c, &q.done[0]), take)
}

// drain takes the n completions that a function has stored, and then all others.
func (q *completions) drain(n C.int, take func([]C.struct_verbs_done)) error {
	for {
		done, err := q.taken(n)
		if err != nil {
			return err
		}
		if take(done); len(done) < len(q.done) {
			return nil
		}
		n = C.verbs_poll(q.c, &q.done[0])
	}
}

// taken returns the completions that a function has stored; n is the function's result.
func (q *completions) taken(n C.int) ([]C.struct_verbs_done, error) {
	if n < 0 {
		return nil, syscall.Errno(-n)
	}
	return q.done[:n], nil
}

func (q *completions) close() error {
	return q.destroy(func() error { return failed(C.ibv_destroy_cq(q.c)) })
}

// state is the last state that was set on a queue pair. The card can change the state by itself on
// an error, which only completions and events show.
type state int

const (
	initialized state = iota // answers no packets
	ready                    // reads, and serves reads
	broken                   // flushes all requests in progress
)

func (s state) String() string { return [...]string{"initialized", "ready", "broken"}[s] }

// queue is a reliable connected queue pair. A queue's methods, except qpn, are not safe for
// concurrent use, neither with each other nor with those of its completions.
type queue struct {
	object
	c     *C.struct_ibv_qp
	cq    *completions
	state state
}

func (d *domain) queue(q *completions, depth, port int) (*queue, error) {
	mapping.RLock()
	c, err := C.verbs_create_qp(d.c, q.c, C.int(depth))
	mapping.RUnlock()
	if c == nil {
		return nil, null("queue pair", err)
	}
	p := &queue{newObject("queue pair", &d.object, &q.object), c, q, initialized}
	if err := failed(C.verbs_init(c, C.int(port))); err != nil {
		_ = p.close()
		return nil, fmt.Errorf("verbs: queue pair is not initialized: %w", err)
	}
	return p, nil
}

func (p *queue) qpn() uint32 { return uint32(p.c.qp_num) }

// connect connects the queue pair and makes it ready.
func (p *queue) connect(path *C.struct_verbs_path) error {
	if p.state != initialized {
		return fmt.Errorf("%w: connect of one that is %s", ErrOrder, p.state)
	}
	if err := failed(C.verbs_ready(p.c, path)); err != nil {
		return fmt.Errorf("verbs: queue pair does not connect: %w", err)
	}
	p.state = ready
	return nil
}

// fail puts the queue pair into the state broken.
func (p *queue) fail() error {
	if p.state == broken {
		return nil
	}
	p.state = broken
	return failed(C.verbs_fail(p.c))
}

// query returns the card's own view of the state.
func (p *queue) query() (int, error) {
	s := C.verbs_state(p.c)
	if s < 0 {
		return 0, syscall.Errno(-s)
	}
	return int(s), nil
}

func (p *queue) postable() error {
	if p.state != ready {
		return fmt.Errorf("%w: a work request for one that is %s", ErrOrder, p.state)
	}
	return nil
}

// reads posts a chain, and returns the completions that are available right after. binds and
// invalidates do the same. The result is valid until completions are taken again.
func (p *queue) reads(id int, r []C.struct_verbs_read) ([]C.struct_verbs_done, error) {
	if err := p.postable(); err != nil {
		return nil, err
	}
	return p.cq.taken(C.verbs_post_reads(p.c, C.uint64_t(id), &r[0], C.int(len(r)), p.cq.c, &p.cq.done[0]))
}

func (p *queue) binds(id int, b []C.struct_verbs_bind) ([]C.struct_verbs_done, error) {
	if err := p.postable(); err != nil {
		return nil, err
	}
	return p.cq.taken(C.verbs_post_binds(p.c, C.uint64_t(id), &b[0], C.int(len(b)), p.cq.c, &p.cq.done[0]))
}

func (p *queue) invalidates(id int, b []C.struct_verbs_bind) ([]C.struct_verbs_done, error) {
	if err := p.postable(); err != nil {
		return nil, err
	}
	return p.cq.taken(C.verbs_post_invalidates(p.c, C.uint64_t(id), &b[0], C.int(len(b)), p.cq.c, &p.cq.done[0]))
}

func (p *queue) close() error {
	return p.destroy(func() error { return failed(C.ibv_destroy_qp(p.c)) })
}
