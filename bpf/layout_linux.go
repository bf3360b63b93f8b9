package bpf

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
)

// field is an integer of a structure, or an array of integers.
type field struct {
	path         string
	offset, size uint32 // in bytes; for an array, the size of an element
	count        uint32 // 1, or the number of elements of an array
}

// fields lists the integers of t in order. fields fails for a type with other contents, whose
// layout cannot be compared or copied.
func fields(t btf.Type, path string, offset uint32) ([]field, error) {
	switch t := btf.UnderlyingType(t).(type) {
	case *btf.Int:
		return []field{{path, offset, t.Size, 1}}, nil
	case *btf.Enum:
		return []field{{path, offset, t.Size, 1}}, nil
	case *btf.Array:
		element, ok := btf.UnderlyingType(t.Type).(*btf.Int)
		if !ok {
			return nil, fmt.Errorf("array %s of %v", path, t.Type)
		}
		return []field{{path, offset, element.Size, t.Nelems}}, nil
	case *btf.Struct:
		var all []field
		for _, m := range t.Members {
			if m.BitfieldSize != 0 {
				return nil, fmt.Errorf("bit field %s.%s", path, m.Name)
			}
			inner, err := fields(m.Type, path+"."+m.Name, offset+m.Offset.Bytes())
			if err != nil {
				return nil, err
			}
			all = append(all, inner...)
		}
		return all, nil
	default:
		return nil, fmt.Errorf("%s is %v", path, t)
	}
}

// layout holds the properties of a map that must stay the same for the map to be reused.
type layout struct {
	key, value []field
}

func (l layout) equal(o layout) bool {
	return slices.Equal(l.key, o.key) && slices.Equal(l.value, o.value)
}

// wanted returns the layout of a map that the programs are built for; empty for a map without
// values of its own.
func wanted(spec *ebpf.MapSpec) (l layout, err error) {
	if spec.Type == ebpf.ProgramArray || spec.Type == ebpf.RingBuf {
		return l, nil
	}
	if l.key, err = fields(spec.Key, "key", 0); err == nil {
		l.value, err = fields(spec.Value, "value", 0)
	}
	return l, err
}

// found returns the layout of a map in the kernel. found finds the map's types by their names in
// spec.
func found(m *ebpf.Map, spec *ebpf.MapSpec) (l layout, err error) {
	if spec.Type == ebpf.ProgramArray || spec.Type == ebpf.RingBuf {
		return l, nil
	}
	handle, err := m.Handle()
	if err != nil {
		return l, err
	}
	defer handle.Close()
	types, err := handle.Spec(nil)
	if err != nil {
		return l, err
	}
	if l.key, err = foundFields(types, spec.Key, "key"); err == nil {
		l.value, err = foundFields(types, spec.Value, "value")
	}
	return l, err
}

func foundFields(types *btf.Spec, want btf.Type, path string) ([]field, error) {
	t, err := types.AnyTypeByName(want.TypeName())
	if err != nil {
		return nil, err
	}
	return fields(t, path, 0)
}

// reusable tells whether the programs can use m unchanged.
func reusable(m *ebpf.Map, spec *ebpf.MapSpec) bool {
	if m.Type() != spec.Type || m.MaxEntries() != entries(spec) || spec.Compatible(m) != nil {
		return false
	}
	want, err := wanted(spec)
	if err != nil {
		return false
	}
	have, err := found(m, spec)
	return err == nil && want.equal(have)
}

// entries returns MaxEntries as the kernel reports it.
func entries(spec *ebpf.MapSpec) uint32 { return spec.MaxEntries }

var errNotCarried = errors.New("its keys have changed: its counts begin anew")

// carry copies the counts in from into to, by fields of the same name and size and by the same kind
// of key. carry calls seen with each old value.
func carry(from, to *ebpf.Map, spec *ebpf.MapSpec, seen func(key, value []byte)) error {
	switch spec.Type {
	case ebpf.Hash, ebpf.LRUHash, ebpf.Array, ebpf.PerCPUArray:
	default:
		return nil // data of threads and sockets is made anew; events are not kept
	}
	want, err := wanted(spec)
	if err != nil {
		return err
	}
	have, err := found(from, spec)
	if err != nil {
		return err
	}
	if !slices.Equal(want.key, have.key) || from.Type() != to.Type() {
		return errNotCarried
	}
	cpus := 1
	if spec.Type == ebpf.PerCPUArray {
		if cpus, err = ebpf.PossibleCPU(); err != nil {
			return err
		}
	}
	return each(from, func(key, value []byte) error {
		seen(key, value)
		return carryEntry(to, key, value, cpus, want.value, have.value)
	})
}

// each calls do for each entry of a map. If the map has a value for each CPU, value holds all of
// them.
func each(m *ebpf.Map, do func(key, value []byte) error) error {
	var key []byte
	for range m.MaxEntries() + 1 { // bounded, in case entries are inserted meanwhile
		next, err := m.NextKeyBytes(keyOrNil(key))
		if err != nil || next == nil {
			return err
		}
		key = next
		value, err := m.LookupBytes(key)
		if err == nil && value != nil { // nil: the entry has been removed meanwhile
			err = do(key, value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func keyOrNil(key []byte) any {
	if key == nil {
		return nil
	}
	return key
}

func carryEntry(to *ebpf.Map, key, old []byte, cpus int, want, have []field) error {
	stride := len(old) / cpus
	values := make([][]byte, cpus)
	for cpu := range values {
		values[cpu] = make([]byte, to.ValueSize())
		copyFields(values[cpu], old[cpu*stride:(cpu+1)*stride], want, have)
	}
	var put any = values
	if to.Type() != ebpf.PerCPUArray {
		put = values[0]
	}
	err := to.Put(key, put)
	if errors.Is(err, ebpf.ErrKeyExist) {
		return nil
	}
	return err
}

func copyFields(to, from []byte, want, have []field) {
	for _, w := range want {
		for _, h := range have {
			if h.path != w.path || h.size != w.size {
				continue
			}
			n := min(h.count, w.count) * w.size
			copy(to[w.offset:w.offset+n], from[h.offset:h.offset+n])
		}
	}
}
