package bpf

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"github.com/cilium/ebpf"
	"github.com/prometheus/procfs"
)

// WatchPort starts counting connections to a local listening port. Open connections are found with
// their next packet.
func (s *Set) WatchPort(port uint16) error {
	if port == 0 {
		return errors.New("bpf: port 0 cannot be watched: name the port that the engine listens on")
	}
	key := socketsPortKey{Port: port}
	// The histograms come first, because a socket that counts needs both.
	for _, put := range []func() error{
		func() error { return s.maps["cgn_tokens"].Update(&key, new(socketsTokens), ebpf.UpdateNoExist) },
		func() error { return s.maps["cgn_ports"].Update(&key, new(socketsSockets), ebpf.UpdateNoExist) },
	} {
		if err := put(); err != nil && !errors.Is(err, ebpf.ErrKeyExist) {
			return fmt.Errorf("bpf: watch port %d (at most %d can be): %w", port, s.maps["cgn_ports"].MaxEntries(), err)
		}
	}
	return nil
}

// UnwatchPort forgets a port and its counts.
func (s *Set) UnwatchPort(port uint16) error {
	key := socketsPortKey{Port: port}
	return errors.Join(forget(s.maps["cgn_ports"], &key), forget(s.maps["cgn_tokens"], &key))
}

// forget deletes a key, if it exists.
func forget(m *ebpf.Map, key any) error {
	if err := m.Delete(key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("bpf: %w", err)
	}
	return nil
}

func peerKey(addr netip.AddrPort) socketsPeerKey {
	return socketsPeerKey{Addr: addr.Addr().As16(), Port: addr.Port()}
}

func (k socketsPeerKey) addr() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(k.Addr).Unmap(), k.Port)
}

// WatchProcesses starts counting a process and all its descendants as one group.
func (s *Set) WatchProcesses(root int) error {
	s.watches.Lock()
	defer s.watches.Unlock()
	if _, err := os.Stat(filepath.Join("/proc", strconv.Itoa(root))); err != nil || root <= 0 {
		return fmt.Errorf("bpf: there is no process %d to watch", root)
	}
	group, err := s.groupFor(uint64(root))
	if err != nil {
		return err
	}
	if s.places == nil {
		s.places = map[int]uint32{}
	}
	s.places[root] = group
	// A child that an entered process starts from now on is followed by the programs. Children that
	// it started before are found by listing again.
	for range 16 {
		entered, err := s.enter(root, group)
		if err != nil {
			return err
		}
		if entered == 0 {
			return nil
		}
		if err := s.announce(); err != nil {
			return err
		}
	}
	return nil // the group starts processes faster than they are listed; entered ones are followed
}

// groupFor returns the group of a root, or a free group if the root has none.
func (s *Set) groupFor(root uint64) (uint32, error) {
	free := uint32(0)
	var per []schedGroup
	for i := uint32(1); i < s.maps["cgn_groups"].MaxEntries(); i++ {
		if err := s.maps["cgn_groups"].Lookup(i, &per); err != nil {
			return 0, fmt.Errorf("bpf: %w", err)
		}
		if per[0].Root == root {
			return i, nil
		}
		if per[0].Root == 0 && free == 0 {
			free = i
		}
	}
	if free == 0 {
		return 0, fmt.Errorf("bpf: watch process %d: all %d groups are in use", root,
			s.maps["cgn_groups"].MaxEntries()-1)
	}
	return free, s.setGroup(free, root)
}

// setGroup resets the counts of a group and gives it a root; 0 frees the group.
func (s *Set) setGroup(group uint32, root uint64) error {
	per := make([]schedGroup, ebpf.MustPossibleCPU())
	for i := range per {
		per[i].Root = root
	}
	if err := s.maps["cgn_groups"].Put(group, per); err != nil {
		return fmt.Errorf("bpf: %w", err)
	}
	return nil
}

// enter puts root and its descendants into the group, and returns how many were not in it before.
func (s *Set) enter(root int, group uint32) (entered int, err error) {
	for _, pid := range append([]int{root}, descendants(root)...) {
		var have uint32
		if s.maps["cgn_processes"].Lookup(uint32(pid), &have) == nil && have == group {
			continue
		}
		if err := s.maps["cgn_processes"].Put(uint32(pid), group); err != nil {
			return entered, fmt.Errorf("bpf: watch process %d (at most %d can be): %w", pid,
				s.maps["cgn_processes"].MaxEntries(), err)
		}
		entered++
	}
	return entered, nil
}

// announce makes all threads look up their group again.
func (s *Set) announce() error {
	var v schedSettings
	if err := s.maps["cgn_settings"].Lookup(uint32(0), &v); err != nil {
		return fmt.Errorf("bpf: %w", err)
	}
	v.Generation++
	if err := s.maps["cgn_settings"].Put(uint32(0), &v); err != nil {
		return fmt.Errorf("bpf: %w", err)
	}
	return nil
}

// UnwatchProcesses forgets a group and its counts.
func (s *Set) UnwatchProcesses(root int) error {
	s.watches.Lock()
	defer s.watches.Unlock()
	delete(s.places, root)
	var per []schedGroup
	for group := uint32(1); group < s.maps["cgn_groups"].MaxEntries(); group++ {
		if err := s.maps["cgn_groups"].Lookup(group, &per); err != nil {
			return fmt.Errorf("bpf: %w", err)
		}
		if per[0].Root != uint64(root) {
			continue
		}
		return errors.Join(s.disband(group), s.announce(), s.setGroup(group, 0))
	}
	return nil
}

// disband removes all processes from a group.
func (s *Set) disband(group uint32) error {
	var pid, of uint32
	var members []uint32
	all := s.maps["cgn_processes"].Iterate()
	for all.Next(&pid, &of) {
		if of == group {
			members = append(members, pid)
		}
	}
	errs := []error{all.Err()}
	for _, pid := range members {
		errs = append(errs, forget(s.maps["cgn_processes"], pid))
	}
	return errors.Join(errs...)
}

// descendants lists the present processes below root in /proc.
func descendants(root int) []int {
	children := map[int][]int{}
	processes, _ := procfs.AllProcs()
	for _, p := range processes {
		if s, err := p.Stat(); err == nil { // fails if the process has ended
			children[s.PPID] = append(children[s.PPID], p.PID)
		}
	}
	all := children[root]
	for i := 0; i < len(all) && len(all) < 1<<16; i++ {
		all = append(all, children[all[i]]...)
	}
	return all
}
