package bpf

import (
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
	if m.Type() != spec.Type || m.MaxEntries() != spec.MaxEntries || spec.Compatible(m) != nil {
		return false
	}
	want, err := wanted(spec)
	if err != nil {
		return false
	}
	have, err := found(m, spec)
	return err == nil && want.equal(have)
}
