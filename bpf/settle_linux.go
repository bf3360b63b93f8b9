package bpf

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// settled are the maps that count the beginning and the end of a connection at different times. A
// map that loses one of the two events would stay wrong.
var settled = []string{"cgn_ports", "cgn_peers"}

// latest are fields of these maps that hold a last value and not a count.
var latest = []string{"value.delivery_rate"}

// settle adds to the new maps of connections the counts that programs made in the old maps after
// the copy. If the state of sockets was lost with cgn_socks, open sockets count as closed. Call
// settle when no program uses the old maps any more.
func (l *loader) settle() error {
	// The call returns when all program runs that began before have ended. On kernels without it
	// (nohz_full), counts that another CPU makes at this moment are lost.
	const global = 1 // MEMBARRIER_CMD_GLOBAL
	_, _, _ = unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0)
	for _, name := range settled {
		if copied := l.copied[name]; copied != nil {
			if err := l.settleMap(name, copied); err != nil {
				return fmt.Errorf("%s: %w", short(name), err)
			}
		}
	}
	return nil
}

func (l *loader) settleMap(name string, copied map[string][]byte) error {
	old, m, spec := l.old[name], l.maps[name], l.spec.Maps[name]
	want, err := wanted(spec)
	if err != nil {
		return err
	}
	have, err := found(old, spec)
	if err != nil {
		return err
	}
	add, err := newAdder(m)
	if err != nil {
		return err
	}
	defer add.program.Close()
	counts := both(want.value, have.value)
	zero := make([]byte, m.ValueSize())
	return each(old, func(key, value []byte) error {
		was, ok := copied[string(key)]
		if !ok {
			was = make([]byte, len(value))
			_ = m.Update(key, zero, ebpf.UpdateNoExist) // fails if the key exists or the map is full; add then decides
		}
		for _, c := range counts {
			more := c.at(value) - c.at(was)
			if c.path == "value.closed" && l.old["cgn_socks"] != nil {
				more += open(counts, value)
			}
			if err := add.add(key, c.to, more); err != nil {
				return err
			}
		}
		return nil
	})
}

// open returns how many connections are in opened and not in closed.
func open(counts []count, value []byte) uint64 {
	var opened, closed uint64
	for _, c := range counts {
		switch c.path {
		case "value.opened":
			opened = c.at(value)
		case "value.closed":
			closed = c.at(value)
		}
	}
	return max(opened, closed) - closed
}

// count is a number that the programs add to, with its places in the old and the new value.
type count struct {
	path     string
	from, to uint32
}

func (c count) at(value []byte) uint64 { return binary.NativeEndian.Uint64(value[c.from:]) }

func both(want, have []field) (all []count) {
	for _, w := range want {
		for _, h := range have {
			if h.path == w.path && h.size == 8 && w.size == 8 && h.count == 1 && w.count == 1 &&
				!slices.Contains(latest, w.path) {
				all = append(all, count{w.path, h.offset, w.offset})
			}
		}
	}
	return all
}

// adder adds to a number in a map atomically, while programs also add to it. An update of the value
// would lose their additions.
type adder struct{ program *ebpf.Program }

// addition is the argument of an adder's program.
type addition struct {
	Key   [24]byte // the key, padded with zeroes
	Place uint64   // place of the number in the value, a multiple of 8
	More  uint64
}

func newAdder(m *ebpf.Map) (*adder, error) {
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "cgn_add", Type: ebpf.Syscall, Flags: unix.BPF_F_SLEEPABLE, License: "Dual BSD/GPL",
		Instructions: asm.Instructions{
			asm.Mov.Reg(asm.R6, asm.R1),
			asm.LoadMem(asm.R1, asm.R6, 0, asm.DWord),
			asm.StoreMem(asm.R10, -24, asm.R1, asm.DWord),
			asm.LoadMem(asm.R1, asm.R6, 8, asm.DWord),
			asm.StoreMem(asm.R10, -16, asm.R1, asm.DWord),
			asm.LoadMem(asm.R1, asm.R6, 16, asm.DWord),
			asm.StoreMem(asm.R10, -8, asm.R1, asm.DWord),
			asm.LoadMapPtr(asm.R1, m.FD()),
			asm.Mov.Reg(asm.R2, asm.R10),
			asm.Add.Imm(asm.R2, -24),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "end"),
			asm.LoadMem(asm.R1, asm.R6, 24, asm.DWord),
			asm.And.Imm(asm.R1, -8),
			asm.JGT.Imm(asm.R1, int32(m.ValueSize()-8), "end"),
			asm.Add.Reg(asm.R0, asm.R1),
			asm.LoadMem(asm.R2, asm.R6, 32, asm.DWord),
			asm.StoreXAdd(asm.R0, asm.R2, asm.DWord),
			asm.Mov.Imm(asm.R0, 0).WithSymbol("end"),
			asm.Return(),
		},
	})
	if err != nil {
		return nil, explain(err)
	}
	return &adder{p}, nil
}

// add does nothing if the key does not exist.
func (a *adder) add(key []byte, place uint32, more uint64) error {
	if more == 0 {
		return nil
	}
	x := addition{Place: uint64(place), More: more}
	copy(x.Key[:], key)
	_, err := a.program.Run(&ebpf.RunOptions{Context: &x})
	return err
}
