package compare

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/etcdserver"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/perf/instant"
	"github.com/cognitora/dataplane/perf/process"
)

// Site is the environment of all contestants: the engines, usually instant engines in this process,
// and other services that some of them need.
type Site struct {
	Dir   string // files of contestants
	Bin   string // the project's programs
	Cache string // Python environments of peers

	files   uint64 // limit of open files of each process
	model   string // the model that the engines serve
	behind  []string
	engines []*instant.Engine // those of this process
	etcd    *etcdserver.Server
	pki     string
	keys    Keys
	left    chan time.Time // times at which an engine saw a client leave
}

// engineCount is the number of engines behind each contestant.
const engineCount = 4

// NewSite starts the engines. root is the root of the repository.
func NewSite(root string) (*Site, error) {
	s, err := NewSiteBefore(root, instant.Model, nil)
	if err != nil {
		return nil, err
	}
	for range engineCount {
		e, err := instant.Start(instant.Config{Left: s.onLeft})
		if err != nil {
			s.Close()
			return nil, err
		}
		s.engines, s.behind = append(s.engines, e), append(s.behind, e.Addr())
	}
	return s, nil
}

// NewSiteBefore returns a Site whose contestants stand before these engines, host:port each, which
// serve model. The engines run elsewhere, and Close leaves them running.
func NewSiteBefore(root, model string, engines []string) (*Site, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	if err := os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin"); err != nil { // Debian's folder for servers
		return nil, err
	}
	files, err := process.RaiseFiles()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "cgn-perf-")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o755); err != nil { // nginx's workers run as another user
		return nil, err
	}
	return &Site{files: files, Dir: dir, Bin: filepath.Join(root, "bin"), Cache: filepath.Join(root, ".cache", "peers"),
		model: model, behind: engines, left: make(chan time.Time, 1<<15)}, nil
}

// room returns how many clients the limit of open files allows. Each client has a connection to the
// router. The router has a connection to an engine for the client unless the client is idle.
// Engines and clients share one process. A router may have more connections while streams are
// opened quickly.
func (s *Site) room(idle bool) int {
	const others, most = 1000, 20000
	n := int(s.files) - others
	if !idle {
		n /= 2
	}
	return min(n, most)
}

// onLeft records that a client has left, unless the channel is full.
func (s *Site) onLeft(at time.Time) {
	select {
	case s.left <- at:
	default:
	}
}

// Close stops all processes and removes the files.
func (s *Site) Close() {
	if s.etcd != nil {
		s.etcd.Close()
	}
	for _, e := range s.engines {
		e.Close()
	}
	_ = os.RemoveAll(s.Dir)
}

// Engines returns the host:port of each engine.
func (s *Site) Engines() []string { return s.behind }

// Step releases the next token of the stream that asked for steps, on any engine.
func (s *Site) Step() {
	for _, e := range s.engines {
		e.Step()
	}
}

// needs starts the services that a contestant needs, once.
func (s *Site) needs(c *Contestant) error {
	if c.NeedsEtcd && s.etcd == nil {
		var err error
		if s.etcd, err = etcdserver.Start(filepath.Join(s.Dir, "etcd"), "127.0.0.1:0"); err != nil {
			return err
		}
	}
	if c.NeedsPKI && s.pki == "" {
		dir := filepath.Join(s.Dir, "pki")
		if err := pki.Bootstrap(dir, pki.Options{}); err != nil {
			return err
		}
		for _, role := range []pki.Role{pki.Router, pki.Agent} { // haproxy needs both in one file
			f := pki.FilesIn(dir, role)
			cert, err1 := os.ReadFile(f.Cert)
			key, err2 := os.ReadFile(f.Key)
			if err := errors.Join(err1, err2, os.WriteFile(strings.TrimSuffix(f.Cert, ".crt")+".pem",
				bytes.Join([][]byte{cert, key}, nil), 0o600)); err != nil {
				return err
			}
		}
		s.pki = dir
	}
	if c.NeedsKeys && s.keys.File == "" {
		var err error
		s.keys, err = newKeys(filepath.Join(s.Dir, "keys.json"))
		return err
	}
	return nil
}

// freePorts returns different ports that are free now.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("no free port: %w", err)
		}
		defer ln.Close() // held until all ports are found
		ports = append(ports, ln.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
