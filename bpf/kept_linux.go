package bpf

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"syscall"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// kept reads a value of a map repeatedly into the same memory, and allocates nothing. kept uses one
// system call that bypasses Go's scheduler. The call does not block, and a scheduler that knows of
// a call wakes its monitor, which costs more than the read.
type kept[K, V any] struct {
	attr lookup
	key  K
	// value has one element, or one for each possible CPU. V has no pointers. V's size is the
	// kernel's: a multiple of 8 bytes.
	value []V
}

// lookup is the argument of bpf(BPF_MAP_LOOKUP_ELEM).
type lookup struct {
	fd    uint32
	_     uint32
	key   uint64
	value uint64
	flags uint64
}

func newKept[K, V any](m *ebpf.Map, values int) (*kept[K, V], error) {
	k := &kept[K, V]{value: make([]V, values)}
	if have, want := m.ValueSize(), uint32(unsafe.Sizeof(k.value[0])); have != want || want%8 != 0 ||
		m.KeySize() != uint32(unsafe.Sizeof(k.key)) {
		return nil, fmt.Errorf("bpf: values of %s have %d bytes, not %d", m, have, want)
	}
	// Heap memory does not move.
	k.attr = lookup{fd: uint32(m.FD()), key: uint64(uintptr(unsafe.Pointer(&k.key))),
		value: uint64(uintptr(unsafe.Pointer(&k.value[0])))}
	return k, nil
}

// read fills value with the map's value under key. read returns ENOENT if there is none.
func (k *kept[K, V]) read() error {
	_, _, errno := unix.RawSyscall(unix.SYS_BPF, unix.BPF_MAP_LOOKUP_ELEM, uintptr(unsafe.Pointer(&k.attr)),
		unsafe.Sizeof(k.attr))
	runtime.KeepAlive(k)
	switch errno {
	case 0:
		return nil
	case syscall.ENOENT:
		return syscall.ENOENT
	}
	return fmt.Errorf("bpf: read a map: %w", os.NewSyscallError("bpf", errno))
}

// looks holds the values that an agent reads at each look.
type looks struct {
	mu     sync.Mutex // held while the values are in use
	cpus   *kept[uint32, schedCpu]
	delay  *kept[uint32, schedHistogram]
	group  *kept[uint32, schedGroup]
	port   *kept[socketsPortKey, socketsSockets]
	closed bool
}

// take locks mu and returns with the values ready; the first call makes them. The caller unlocks
// mu, unless there is an error.
func (l *looks) take(s *Set) (err error) {
	l.mu.Lock()
	defer func() {
		if err != nil {
			l.mu.Unlock()
		}
	}()
	switch {
	case l.closed: // the descriptors' numbers may belong to other files by now
		return fmt.Errorf("bpf: %w", os.ErrClosed)
	case l.port != nil:
		return nil
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("bpf: %w", err)
	}
	if l.cpus, err = newKept[uint32, schedCpu](s.maps["cgn_cpus"], cpus); err != nil {
		return err
	}
	if l.delay, err = newKept[uint32, schedHistogram](s.maps["cgn_run_delay"], cpus); err != nil {
		return err
	}
	if l.group, err = newKept[uint32, schedGroup](s.maps["cgn_groups"], cpus); err != nil {
		return err
	}
	l.port, err = newKept[socketsPortKey, socketsSockets](s.maps["cgn_ports"], 1)
	return err
}

func (l *looks) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}
