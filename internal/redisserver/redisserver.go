// Package redisserver runs a redis-server for tests, which can stop and start again.
package redisserver

import (
	"bufio"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/freeport"
)

// Server is a redis-server process that ends with its test.
type Server struct {
	At   string // host:port
	t    testing.TB
	args []string
	cmd  *exec.Cmd
}

// Installed says whether there is a redis-server.
func Installed() bool {
	_, err := exec.LookPath("redis-server")
	return err == nil
}

// Start starts a server without persistence, with further options. The test is skipped if no
// redis-server is installed.
func Start(t testing.TB, options ...string) *Server {
	t.Helper()
	at := freeport.Address(t)
	host, port, _ := net.SplitHostPort(at)
	return StartAt(t, at, append([]string{"--bind", host, "--port", port, "--save", "", "--appendonly", "no",
		"--dir", t.TempDir()}, options...)...)
}

// StartAt starts redis-server with exactly these arguments, which make it answer at an address.
func StartAt(t testing.TB, at string, args ...string) *Server {
	t.Helper()
	if !Installed() {
		t.Skip("needs redis-server")
	}
	s := &Server{At: at, t: t, args: args}
	s.Start()
	t.Cleanup(s.Kill)
	return s
}

// Start starts the process again, and waits until it answers.
func (s *Server) Start() {
	s.t.Helper()
	s.cmd = exec.Command("redis-server", s.args...)
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	for deadline := time.Now().Add(time.Minute); !s.answers(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatal("redis-server does not answer at ", s.At)
		}
	}
}

// answers says whether the server answers, be it that it wants a password.
func (s *Server) answers() bool {
	c, err := net.Dial("tcp", s.At)
	if err != nil {
		return false
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Second))
	_, _ = c.Write([]byte("PING\r\n"))
	line, _ := bufio.NewReader(c).ReadString('\n')
	return strings.HasPrefix(line, "+PONG") || strings.HasPrefix(line, "-NOAUTH")
}

// Kill ends the process without a goodbye.
func (s *Server) Kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// Pause stops the process, which keeps its connections.
func (s *Server) Pause() { s.signal(syscall.SIGSTOP) }

// Proceed lets the process go on.
func (s *Server) Proceed() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(is syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(is); err != nil {
		s.t.Fatal(err)
	}
}

// PID returns the id of the process.
func (s *Server) PID() int { return s.cmd.Process.Pid }
