package bpf

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// children are the jobs of the test binary when it runs as a child.
var children = map[string]func() error{
	"own":      own,
	"burn":     burn,
	"load":     loadWithFew,
	"unloaded": loadWithNone,
}

// portEnv is the port that a child watches.
const portEnv = "BPF_TEST_PORT"

// own loads the programs, reports that, and waits to be killed.
func own() error {
	s, err := Load(Options{Root: os.Getenv(rootEnv), Cgroup: os.Getenv(groupEnv)})
	if err != nil {
		return err
	}
	port, err := strconv.ParseUint(os.Getenv(portEnv), 10, 16)
	if err != nil {
		return err
	}
	if err := s.WatchPort(uint16(port)); err != nil {
		return err
	}
	fmt.Println("ready")
	// returns when the parent has ended, if the parent does not kill this process
	_, err = os.Stdin.Read(make([]byte, 1))
	return err
}

// loadWithFew loads, attaches, reads and removes programs with exactly the capabilities in the
// documentation.
func loadWithFew() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return err
	}
	var want [2]uint32
	for _, c := range needed {
		want[c.bit/32] |= 1 << (c.bit % 32)
	}
	if data[0].Effective != want[0] || data[1].Effective != want[1] {
		return fmt.Errorf("the child has other capabilities than it should: %#x", data)
	}
	s, err := Load(Options{Root: os.Getenv(rootEnv), Cgroup: os.Getenv(groupEnv)})
	if err != nil {
		return err
	}
	defer s.Close()
	if len(s.Missing()) > 0 || len(s.Report().Attached) != len(hooks) {
		return fmt.Errorf("attached %v; missing %+v", s.Report().Attached, s.Missing())
	}
	if err := s.WatchProcesses(os.Getpid()); err != nil {
		return err
	}
	if _, err := s.Groups(); err != nil {
		return err
	}
	if _, err := s.Peers(); err != nil {
		return err
	}
	_, err = Clean(os.Getenv(rootEnv))
	return err
}

// loadWithNone tries to load programs without any right.
func loadWithNone() error {
	_, err := Load(Options{Root: os.Getenv(rootEnv), Cgroup: os.Getenv(groupEnv)})
	var hint interface{ Hint() string }
	if !errors.As(err, &hint) || !errors.Is(err, unix.EPERM) {
		return fmt.Errorf("without rights: %v", err)
	}
	return nil
}
