package process

import (
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"syscall"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/rlimit"
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
	table *ebpf.Map
	links []io.Closer
}

// Offsets on the program's stack.
const (
	pidAt, tgidAt = -8, -4
	keyAt         = -16
	idAt          = -24
)

const sysEnter, sysExit = "sys_enter", "sys_exit"

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
func program(at string, pid, table int, dev, ino uint64) asm.Instructions {
	ours := asm.Instructions{
		asm.LoadImm(asm.R1, int64(dev), asm.DWord),
		asm.LoadImm(asm.R2, int64(ino), asm.DWord),
		asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, pidAt), // r3 = &{pid, tgid}
		asm.Mov.Imm(asm.R4, 8),
		asm.FnGetNsCurrentPidTgid.Call(),
		asm.JNE.Imm(asm.R0, 0, "exit"),
		asm.LoadMem(asm.R1, asm.RFP, tgidAt, asm.Word),
		asm.JNE.Imm(asm.R1, int32(pid), "exit"),
	}
	context := asm.Instructions{asm.Mov.Reg(asm.R6, asm.R1)}
	key := asm.Instructions{
		asm.LoadMem(asm.R1, asm.R6, 8, asm.DWord), // r1 = id
		asm.JGE.Imm(asm.R1, againSlot, "exit"),
		asm.StoreMem(asm.RFP, keyAt, asm.R1, asm.Word),
	}
	if at == sysExit {
		context = append(context,
			asm.LoadMem(asm.R1, asm.R6, 8, asm.DWord), // r1 = result
			asm.JNE.Imm(asm.R1, -int32(unix.EAGAIN), "exit"),
		)
		key = asm.Instructions{
			asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, idAt), // r1 = &id
			asm.Mov.Imm(asm.R2, 8),
			asm.LoadMem(asm.R3, asm.R6, 0, asm.DWord), asm.Add.Imm(asm.R3, callNumberAt), // r3 = &regs.number
			asm.FnProbeReadKernel.Call(),
			asm.LoadMem(asm.R1, asm.RFP, idAt, asm.Word), // r1 = id
			asm.JEq.Imm(asm.R1, unix.SYS_FUTEX, "exit"),
			asm.StoreImm(asm.RFP, keyAt, againSlot, asm.Word),
		}
	}
	return slices.Concat(context, ours, key, asm.Instructions{
		asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, keyAt), // r2 = &key
		asm.LoadMapPtr(asm.R1, table),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "exit"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, 0).WithSymbol("exit"),
		asm.Return(),
	})
}

func traceCalls(pid int) (Counting, error) {
	var ns syscall.Stat_t
	if err := errors.Join(syscall.Stat("/proc/self/ns/pid", &ns), rlimit.RemoveMemlock()); err != nil {
		return nil, err
	}
	dev := uint64(unix.Major(ns.Dev))<<20 | uint64(unix.Minor(ns.Dev)) // in the kernel's own encoding
	table, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: maxCall})
	if err != nil {
		return nil, fmt.Errorf("BPF map: %w", err)
	}
	c := &bpfCounter{table: table}
	for _, at := range []string{sysExit, sysEnter} {
		if err := c.attach(at, program(at, pid, table.FD(), dev, ns.Ino)); err != nil {
			c.close()
			_ = table.Close()
			return nil, err
		}
	}
	return c, nil
}

// attach loads a program and attaches it to a raw tracepoint. The kernel allows probe_read_kernel
// only in programs under the GPL, so these programs declare it as one of their licences.
func (c *bpfCounter) attach(at string, p asm.Instructions) error {
	spec := ebpf.ProgramSpec{Type: ebpf.RawTracepoint, License: "Dual BSD/GPL", Instructions: p}
	loaded, err := ebpf.NewProgram(&spec)
	if err != nil {
		return fmt.Errorf("BPF program: %w", err)
	}
	defer loaded.Close() // the link keeps the program
	l, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: at, Program: loaded})
	if err != nil {
		return fmt.Errorf("raw tracepoint %s: %w", at, err)
	}
	c.links = append(c.links, l)
	return nil
}

func (c *bpfCounter) close() {
	for _, l := range c.links {
		_ = l.Close()
	}
}

// Stop ends the counting and returns the counts.
func (c *bpfCounter) Stop() (Calls, error) {
	c.close() // first, so that the numbers do not change during the read
	defer c.table.Close()
	calls, id, n := Calls{}, uint32(0), int64(0)
	all := c.table.Iterate()
	for all.Next(&id, &n) {
		switch {
		case id == againSlot:
			calls[Again] = n
		case n > 0:
			calls[callName(int(id))] += n
		}
	}
	return calls, all.Err()
}
