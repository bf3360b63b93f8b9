package bpf

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

var (
	errRemoved  = errors.New("it was removed, as cgn-ctl bpf clean does")
	errReplaced = errors.New("another one has taken its place")
)

// pinned is a pin that a set's figures depend on.
type pinned struct {
	path  string
	inode uint64 // 0: any inode
}

// pinned returns the pins of all maps, and those of the attached hooks. Another loader may replace
// a link with one on another cgroup; the new link counts as the same pin.
func (l *loader) pinned() (all []pinned) {
	for _, h := range hooks {
		if path := l.path(linksDir, h.program); inode(path) != 0 {
			all = append(all, pinned{path: path})
		}
	}
	for name := range l.maps {
		path := l.path(mapsDir, name)
		all = append(all, pinned{path, inode(path)})
	}
	return all
}

// inode returns the inode of the pin at path, which is unique in the file system; 0: there is no
// pin.
func inode(path string) uint64 {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0
	}
	return st.Ino
}

// Removed returns an error if the set's pins were removed since Load, as Clean does, or replaced,
// as another version of the programs does. After a removal some or all of the set's counts no
// longer change. Nil: the pins are intact. Removed costs a system call for each map and hook. Load
// makes the set count anew.
func (s *Set) Removed() error {
	for _, p := range s.pinned {
		switch is := inode(p.path); {
		case is == 0:
			return fmt.Errorf("bpf: %s: %w", p.path, errRemoved)
		case p.inode != 0 && p.inode != is:
			return fmt.Errorf("bpf: %s: %w", p.path, errReplaced)
		}
	}
	return nil
}
