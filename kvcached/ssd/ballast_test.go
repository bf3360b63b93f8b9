package ssd

import (
	"errors"
	"os"
	"syscall"
	"testing"
)

// tight is a filesystem with free room only from removed segments.
type tight struct {
	osFS
	each int64
	free *int64
}

func (f tight) Free(string) (int64, error) { return *f.free, nil }

func (f tight) Remove(name string) error {
	*f.free += f.each
	return f.osFS.Remove(name)
}

// TestRowRoom: on a full filesystem the oldest segments make room for the rows, no more than
// needed.
func TestRowRoom(t *testing.T) {
	dir := t.TempDir()
	for id := range uint32(4) {
		if err := os.WriteFile(segmentName(dir, id), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var free int64
	o := Options{Dir: dir, Logger: quiet, fs: tight{each: rowRoom/2 + 1, free: &free}}
	if err := makeRowRoom(&o); err != nil {
		t.Fatal(err)
	}
	names, err := o.fs.List(dir)
	if err != nil || len(names) != 2 || segmentName(dir, 2) != dir+"/"+names[0] {
		t.Errorf("%v %v", names, err)
	}
	free, o.fs = 0, tight{free: &free}
	if err := makeRowRoom(&o); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("%v", err)
	}
}
