package bpf

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/cilium/ebpf"
)

// Set is the Reader of the programs in the kernel.
type Set struct {
	root    pins
	maps    map[string]*ebpf.Map
	missing []Missing
	report  Report
	pinned  []pinned       // set by Load
	watches sync.Mutex     // held while groups and watched peers change
	places  map[int]uint32 // groups watched through this set, by root; guarded by watches
	looks   looks
}

var _ Reader = (*Set)(nil)

// Open returns a reader of the programs that another process has loaded under root (empty:
// DefaultRoot). Open changes nothing, and refuses the methods that would.
func Open(root string) (*Set, error) {
	spec, err := programs()
	if err != nil {
		return nil, err
	}
	s := &Set{root: pins(rootOf(root)), maps: map[string]*ebpf.Map{}}
	for name, m := range spec.Maps {
		if m.Type == ebpf.ProgramArray || m.Type == ebpf.RingBuf {
			continue
		}
		path := s.root.path(mapsDir, name)
		s.maps[name], err = ebpf.LoadPinnedMap(path, &ebpf.LoadPinOptions{ReadOnly: true})
		if errors.Is(err, fs.ErrNotExist) {
			err = &hinted{fmt.Errorf("bpf: nothing is loaded under %s", s.root),
				"cgn-agent loads the programs when it starts as root"}
		} else if err == nil && !reusable(s.maps[name], m) {
			err = &hinted{fmt.Errorf("bpf: %s was made by another version of Cognitora", path),
				"use that version's cgn-ctl, or restart the agent with this one"}
		} else if err != nil {
			err = opening(path, err)
		}
		if err != nil {
			delete(s.maps, name)
			return nil, errors.Join(err, s.Close())
		}
	}
	for _, h := range hooks {
		if _, err := os.Stat(s.root.path(linksDir, h.program)); err != nil {
			s.missing = append(s.missing, Missing{What: h.tells, Reason: h.program + " is not attached"})
		}
	}
	return s, nil
}

// Source returns SourceBPF.
func (s *Set) Source() Source { return SourceBPF }

// Missing lists the figures of missing hooks.
func (s *Set) Missing() []Missing { return s.missing }

// Report returns the objects that Load found, made and attached. The report is empty after Open.
func (s *Set) Report() Report { return s.report }

// Close closes the set's own descriptors. The programs stay.
func (s *Set) Close() error {
	var errs []error
	s.looks.close()
	for _, m := range s.maps {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}

// Path returns the pin of a map, for `bpftool map dump pinned PATH`. The name is that in the map's
// comment, without cgn_.
func (s *Set) Path(name string) string { return filepath.Join(string(s.root), mapsDir, name) }
