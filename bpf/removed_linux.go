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
	inode uint64 // 0: whichever is there
}

// pinned are the pins of all maps, and of the hooks that are attached. A link may be another
// loader's by and by, with another cgroup: it counts as well.
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

// inode is the number of the pin at path, which no other pin of the file system has; 0: there is
// none.
func inode(path string) uint64 {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return 0
	}
	return st.Ino
}

// Removed says what was taken away since Load of what the set reads, as Clean does, or was
// replaced, as another version of the programs does: from then on its counts stand still, or some
// of them. Nil: nothing was. It takes a system call for each map and hook. Load has it count again,
// anew.
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
