//go:build linux && cgo && rdma

package verbs

/*
#cgo LDFLAGS: -libverbs
#include "verbs.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// object keeps a verbs object from being destroyed while other objects depend on it. The zero value
// is a destroyed object.
type object struct {
	what string
	on   []*object
	mu   *sync.Mutex // one for all objects of a context; never held during a call of libibverbs
	held int         // number of objects that depend on this one
	live bool
}

// mapping protects the card's memory that libibverbs maps. Functions that make or destroy objects
// with mapped memory hold mapping for reading. forsake replaces the mapped memory, and holds
// mapping for writing.
var mapping sync.RWMutex

// newObject returns an object that depends on the objects on.
func newObject(what string, on ...*object) object {
	o := object{what: what, on: on, live: true}
	if len(on) == 0 {
		o.mu = new(sync.Mutex)
		return o
	}
	o.mu = on[0].mu
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range on {
		p.held++
	}
	return o
}

// destroy calls free, unless other objects depend on this one. destroy does nothing if the object
// is destroyed already.
func (o *object) destroy(free func() error) error {
	if o.mu == nil {
		return nil
	}
	o.mu.Lock()
	live, held := o.live, o.held
	if live && held == 0 {
		o.live = false
	}
	o.mu.Unlock()
	if !live {
		return nil
	}
	if held > 0 {
		return fmt.Errorf("%w: %s, on which %d hang", ErrInUse, o.what, held)
	}
	mapping.RLock()
	err := free()
	mapping.RUnlock()
	if err != nil {
		o.mu.Lock()
		o.live = true
		o.mu.Unlock()
		return fmt.Errorf("verbs: cannot destroy %s: %w", o.what, busy(err))
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, p := range o.on {
		p.held--
	}
	return nil
}

// busy turns the kernel's error for an object in use into ErrInUse.
func busy(err error) error {
	if err == syscall.EBUSY {
		return ErrInUse
	}
	return err
}

// failed returns the error for a result of libibverbs; nil for 0.
func failed(rc C.int) error {
	if rc == 0 {
		return nil
	}
	return syscall.Errno(rc)
}

// null returns the error of a function that returned no object. errno may be 0, because not all
// drivers set it.
func null(what string, err error) error {
	if err == nil {
		err = syscall.EIO
	}
	return fmt.Errorf("verbs: no %s: %w", what, err)
}

// card is the opened context of a device.
type card struct {
	object
	c        *C.struct_ibv_context
	async    *os.File // its asynchronous events, in the netpoller
	forsaken bool     // guarded by mapping
}

func openCard(name string) (*card, error) {
	var n C.int
	list, err := C.ibv_get_device_list(&n)
	if list == nil {
		return nil, null("list of devices", err)
	}
	defer C.ibv_free_device_list(list)
	for _, d := range unsafe.Slice(list, int(n)) {
		if C.GoString(C.ibv_get_device_name(d)) != name {
			continue
		}
		c, err := C.ibv_open_device(d)
		if c == nil {
			return nil, null("context of "+name, err)
		}
		k := &card{object: newObject("context of " + name), c: c}
		if k.async, err = pollable(c.async_fd, "events of "+name); err != nil {
			C.ibv_close_device(c)
			return nil, err
		}
		return k, nil
	}
	return nil, fmt.Errorf("verbs: there is no device %s; libibverbs knows %d, whose drivers it found", name, n)
}

func (k *card) close() error { return k.destroy(k.abandon) }

// abandon closes the context even if other objects depend on it. libibverbs leaks the memory of
// these objects. The kernel destroys them once nothing of the context is mapped (forsake).
func (k *card) abandon() error {
	_ = k.async.Close()
	return failed(C.ibv_close_device(k.c))
}

// pollable puts a duplicate of a descriptor into the netpoller, because libibverbs closes the
// descriptor itself. The two descriptors become non-blocking.
func pollable(fd C.int, name string) (*os.File, error) {
	own, err := syscall.Dup(int(fd))
	if err != nil {
		return nil, err
	}
	syscall.CloseOnExec(own)
	if err := syscall.SetNonblock(own, true); err != nil {
		_ = syscall.Close(own)
		return nil, err
	}
	file := os.NewFile(uintptr(own), name)
	if err := file.SetReadDeadline(time.Time{}); err != nil {
		return nil, errors.Join(fmt.Errorf("verbs: %s are not for the netpoller: %w", name, err), file.Close())
	}
	return file, nil
}

// domain is a protection domain. A domain's queue pairs can use only its own regions.
type domain struct {
	object
	c *C.struct_ibv_pd
}

func (k *card) domain() (*domain, error) {
	c, err := C.ibv_alloc_pd(k.c)
	if c == nil {
		return nil, null("protection domain", err)
	}
	return &domain{newObject("protection domain", &k.object), c}, nil
}

func (d *domain) close() error {
	return d.destroy(func() error { return failed(C.ibv_dealloc_pd(d.c)) })
}

// region is registered memory.
type region struct {
	object
	c   *C.struct_ibv_mr
	mem []byte // not Go's memory
}

func (d *domain) region(mem []byte, remoteRead bool) (*region, error) {
	var remote C.int
	if remoteRead {
		remote = 1
	}
	c, err := C.verbs_reg_mr(d.c, C.uint64_t(address(mem)), C.size_t(len(mem)), remote)
	if c == nil {
		err = null("region", err)
		if errors.Is(err, syscall.ENOMEM) {
			err = memlock(err, len(mem))
		}
		return nil, err
	}
	return &region{newObject("region", &d.object), c, mem}, nil
}

func (r *region) close() error {
	return r.destroy(func() error { return failed(C.ibv_dereg_mr(r.c)) })
}

func address(mem []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem)))) }

// opening is a memory window of type 2, bound or not.
type opening struct {
	object
	c    *C.struct_ibv_mw
	rkey C.uint32_t // key of the last bind
}

func (d *domain) opening() (*opening, error) {
	c, err := C.ibv_alloc_mw(d.c, C.IBV_MW_TYPE_2)
	if c == nil {
		return nil, null("memory window", err)
	}
	return &opening{newObject("memory window", &d.object), c, c.rkey}, nil
}

func (o *opening) close() error {
	return o.destroy(func() error { return failed(C.ibv_dealloc_mw(o.c)) })
}
