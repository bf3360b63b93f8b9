//go:build linux && cgo && rdma

package verbs

/*
#include "verbs.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/cognitora/dataplane/rdma"
)

// downFor is how long a port may be down before the device counts as gone. Moving a cable to
// another socket takes longer, and an interruption of a switch is shorter.
const downFor = time.Second

// past is a deadline that ends waits in the netpoller.
var past = time.Unix(1, 0)

// event is an asynchronous event of the card.
type event struct {
	kind C.int
	port int     // 0 for events of no port
	qpn  uint32  // 0 for events of no queue pair
	cq   uintptr // 0 for events of no completion queue
}

// event takes the next event. event returns EAGAIN if there is none.
func (k *card) event() (event, error) {
	var kind, port C.int
	var qpn C.uint32_t
	var cq C.uintptr_t
	if err := failed(C.verbs_event(k.c, &kind, &port, &qpn, &cq)); err != nil {
		return event{}, err
	}
	return event{kind, int(port), uint32(qpn), uintptr(cq)}, nil
}

// follow takes the card's events until the device is closed. follow parks in the netpoller.
func (d *device) follow() {
	raw, err := d.card.async.SyscallConn()
	if err != nil {
		d.end(fmt.Errorf("its events cannot be followed: %w", err))
		return
	}
	var down *time.Timer
	defer func() {
		if down != nil {
			down.Stop()
		}
	}()
	for {
		var e event
		var failed error
		err := raw.Read(func(uintptr) bool {
			e, failed = d.card.event()
			return failed != syscall.EAGAIN
		})
		if err != nil {
			return // the device is closed
		}
		if failed != nil {
			d.end(fmt.Errorf("its events cannot be followed: %w", failed))
			return
		}
		switch {
		case e.kind == C.IBV_EVENT_DEVICE_FATAL:
			d.end(errors.New("it failed, or was taken away"))
		case e.port == d.port && e.kind == C.IBV_EVENT_PORT_ERR && down == nil:
			down = time.AfterFunc(time.Duration(d.downFor.Load()), func() { d.end(errors.New("its port is down")) })
		case e.port == d.port && e.kind == C.IBV_EVENT_PORT_ACTIVE && down != nil:
			down.Stop()
			down = nil
		case e.port == d.port && e.kind == C.IBV_EVENT_GID_CHANGE && !d.card.has(d.port, d.gid):
			d.end(errors.New("its address was taken away"))
		case e.qpn != 0, e.cq != 0:
			d.fail(e)
		}
	}
}

// fail breaks the pair that an event is about.
func (d *device) fail(e event) {
	for _, p := range d.all() {
		if e.qpn != 0 && p.local.QPN == e.qpn || e.cq != 0 && p.cq.is(e.cq) {
			p.fail(fmt.Errorf("%w: the card reports an error of it", rdma.ErrBroken))
		}
	}
}
