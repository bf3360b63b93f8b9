package process

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxCall is above every system call number. The last slot of the table counts calls that returned
// EAGAIN.
const (
	maxCall   = 512
	againSlot = maxCall - 1
)

// bpfCounter counts system calls with BPF programs on the raw tracepoints sys_enter and sys_exit.
// The BPF programs add a few ten nanoseconds to each call, and do not change the process's
// behaviour.
type bpfCounter struct {
	table int
	open  []int // descriptors of programs and links
}

// insn is one BPF instruction.
type insn struct {
	op       uint8
	dst, src uint8
	off      int16
	imm      int32
}

// Helper functions of the kernel.
const (
	mapLookup        = 1
	probeReadKernel  = 113
	nsCurrentPidTgid = 120
)

// Offsets on the program's stack.
const (
	pidAt, tgidAt = -8, -4
	keyAt         = -16
	idAt          = -24
)

const sysEnter, sysExit = "sys_enter", "sys_exit"

// toExit as a jump's offset means the offset of the program's end.
const toExit = math.MaxInt16

// callNumberAt is the offset of the system call's number in struct pt_regs.
var callNumberAt = map[string]int32{"amd64": 15 * 8, "arm64": 35 * 8}[runtime.GOARCH]

// program returns the program for one process, identified in this process's pid namespace. At
// sys_enter it does
//
//	if tgid == pid and id < againSlot { atomically table[id]++ }
//
// and at sys_exit it does
//
//	if tgid == pid and result == -EAGAIN and id != futex { atomically table[againSlot]++ }
//
// EAGAIN of a futex does not count, because it means that another thread was faster, not that there
// was nothing to do.
func program(at string, pid, table int, dev, ino uint64) []insn {
	wide := func(dst uint8, src uint8, v uint64) []insn { // a 64-bit constant takes two slots
		return []insn{{0x18, dst, src, 0, int32(uint32(v))}, {0, 0, 0, 0, int32(uint32(v >> 32))}}
	}
	p := []insn{{0xbf, 6, 1, 0, 0}} // r6 = context
	if at == sysExit {
		p = append(p,
			insn{0x79, 1, 6, 8, 0},                        // r1 = result
			insn{0x55, 1, 0, toExit, -int32(unix.EAGAIN)}, // another result: exit
		)
	}
	p = append(p, wide(1, 0, dev)...)
	p = append(p, wide(2, 0, ino)...)
	p = append(p,
		insn{0xbf, 3, 10, 0, 0}, insn{0x07, 3, 0, 0, pidAt}, // r3 = &{pid, tgid}
		insn{0xb7, 4, 0, 0, 8},
		insn{0x85, 0, 0, 0, nsCurrentPidTgid},
		insn{0x55, 0, 0, toExit, 0},          // failed: exit
		insn{0x61, 1, 10, tgidAt, 0},         // r1 = tgid
		insn{0x55, 1, 0, toExit, int32(pid)}, // another process: exit
	)
	if at == sysExit {
		p = append(p,
			insn{0xbf, 1, 10, 0, 0}, insn{0x07, 1, 0, 0, idAt}, // r1 = &id
			insn{0xb7, 2, 0, 0, 8},
			insn{0x79, 3, 6, 0, 0}, insn{0x07, 3, 0, 0, callNumberAt}, // r3 = &regs.number
			insn{0x85, 0, 0, 0, probeReadKernel},
			insn{0x61, 1, 10, idAt, 0},               // r1 = id
			insn{0x15, 1, 0, toExit, unix.SYS_FUTEX}, // exit
			insn{0x62, 10, 0, keyAt, againSlot},      // key = againSlot
		)
	} else {
		p = append(p,
			insn{0x79, 1, 6, 8, 0},              // r1 = id
			insn{0x35, 1, 0, toExit, againSlot}, // too large: exit
			insn{0x63, 10, 1, keyAt, 0},         // key = id
		)
	}
	p = append(p, insn{0xbf, 2, 10, 0, 0}, insn{0x07, 2, 0, 0, keyAt}) // r2 = &key
	p = append(p, wide(1, unix.BPF_PSEUDO_MAP_FD, uint64(table))...)
	p = append(p,
		insn{0x85, 0, 0, 0, mapLookup},
		insn{0x15, 0, 0, toExit, 0}, // not found: exit
		insn{0xb7, 1, 0, 0, 1},
		insn{0xdb, 0, 1, 0, 0}, // atomic add
		insn{0xb7, 0, 0, 0, 0}, // exit: return 0
		insn{0x95, 0, 0, 0, 0},
	)
	for i := range p {
		if p[i].off == toExit {
			p[i].off = int16(len(p) - 2 - i - 1)
		}
	}
	return p
}

func assemble(p []insn) []byte {
	b := make([]byte, 0, 8*len(p))
	for _, i := range p {
		b = append(b, i.op, i.src<<4|i.dst)
		b = binary.NativeEndian.AppendUint16(b, uint16(i.off))
		b = binary.NativeEndian.AppendUint32(b, uint32(i.imm))
	}
	return b
}

func bpf[T any](command int, attr *T) (int, error) {
	n, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(command), uintptr(unsafe.Pointer(attr)), unsafe.Sizeof(*attr))
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}

func traceCalls(pid int) (counter, error) {
	var ns syscall.Stat_t
	if err := syscall.Stat("/proc/self/ns/pid", &ns); err != nil {
		return nil, err
	}
	dev := uint64(unix.Major(ns.Dev))<<20 | uint64(unix.Minor(ns.Dev)) // in the kernel's own encoding
	c := &bpfCounter{}
	// needed before Linux 5.11
	_ = unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY})
	var err error
	array := struct{ kind, key, value, entries uint32 }{unix.BPF_MAP_TYPE_ARRAY, 4, 8, maxCall}
	if c.table, err = bpf(unix.BPF_MAP_CREATE, &array); err != nil {
		return nil, fmt.Errorf("BPF map: %w", err)
	}
	for _, at := range []string{sysExit, sysEnter} {
		if err := c.attach(at, program(at, pid, c.table, dev, ns.Ino)); err != nil {
			c.close()
			_ = unix.Close(c.table)
			return nil, err
		}
	}
	return c, nil
}

// attach loads a program and attaches it to a raw tracepoint. The kernel allows probe_read_kernel
// only in programs under the GPL, so these programs declare it as one of their licences.
func (c *bpfCounter) attach(at string, p []insn) error {
	code, license, log, name := assemble(p), []byte("Dual BSD/GPL\x00"), make([]byte, 16<<10), []byte(at+"\x00")
	load := struct {
		kind, count         uint32
		code, license       unsafe.Pointer
		logLevel, logLength uint32
		log                 unsafe.Pointer
	}{unix.BPF_PROG_TYPE_RAW_TRACEPOINT, uint32(len(code) / 8), address(code), address(license), 1, uint32(len(log)),
		address(log)}
	loaded, err := bpf(unix.BPF_PROG_LOAD, &load)
	if err != nil {
		return fmt.Errorf("BPF program: %w: %s", err, unix.ByteSliceToString(log))
	}
	c.open = append(c.open, loaded)
	open := struct {
		name unsafe.Pointer
		fd   uint32
		_    uint32
	}{address(name), uint32(loaded), 0}
	link, err := bpf(unix.BPF_RAW_TRACEPOINT_OPEN, &open)
	if err != nil {
		return fmt.Errorf("raw tracepoint %s: %w", at, err)
	}
	c.open = append(c.open, link)
	return nil
}

func address(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

func (c *bpfCounter) close() {
	for _, fd := range c.open {
		_ = unix.Close(fd)
	}
}

func (c *bpfCounter) stop() (Calls, error) {
	c.close() // first, so that the numbers do not change during the read
	defer unix.Close(c.table)
	calls := Calls{}
	for id := range uint32(maxCall) {
		var n uint64
		look := struct {
			table, _   uint32
			key, value unsafe.Pointer // pointers keep the two variables in place
			flags      uint64
		}{table: uint32(c.table), key: unsafe.Pointer(&id), value: unsafe.Pointer(&n)}
		_, err := bpf(unix.BPF_MAP_LOOKUP_ELEM, &look)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, fmt.Errorf("BPF map: %w", err)
		}
		switch {
		case id == againSlot:
			calls[Again] = int64(n)
		case n > 0:
			calls[callName(int(id))] += int64(n)
		}
	}
	return calls, nil
}
