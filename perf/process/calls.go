package process

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// Calls holds the kernel's counts of system calls by name. Again counts those of them, except
// futex, that returned EAGAIN.
type Calls map[string]int64

// Again is the name in Calls for all calls that found nothing to do.
const Again = "EAGAIN"

// Useful returns the number of all calls except those named, without the calls that found nothing
// to do. Whether a read comes too early depends on the moment.
func (c Calls) Useful(but ...string) (n int64) {
	for name, count := range c {
		if name != Again && !slices.Contains(but, name) {
			n += count
		}
	}
	return n - c[Again]
}

// PerUnit lists the calls divided by n, the most frequent first.
func (c Calls) PerUnit(n int64) string {
	names := slices.SortedFunc(maps.Keys(c), func(a, b string) int { return int(c[b] - c[a]) })
	var b strings.Builder
	for _, name := range names {
		if per := float64(c[name]) / float64(n); per >= 0.005 {
			fmt.Fprintf(&b, " %s %.2f", name, per)
		}
	}
	return strings.TrimSpace(b.String())
}

// Counting counts one process's calls from its creation on.
type Counting interface {
	// Stop ends the counting and returns the counts.
	Stop() (Calls, error)
}

// CountCalls starts counting the system calls of all threads of a process. CountCalls uses a BPF
// program at the kernel's system call entry, which needs root, or else strace, if that is
// installed.
func CountCalls(pid int) (Counting, error) {
	c, err := traceCalls(pid)
	if err == nil {
		return c, nil
	}
	s, err2 := startStrace(pid)
	if err2 != nil {
		return nil, fmt.Errorf("system calls cannot be counted: as root a BPF program would: %w; without it strace would "+
			"(apt-get install strace): %w", err, err2)
	}
	return s, nil
}

// strace is a running `strace -c -f -p PID`.
type strace struct {
	cmd  *exec.Cmd
	out  bytes.Buffer
	read chan struct{} // closed when out is complete
}

func startStrace(pid int) (*strace, error) {
	s := &strace{cmd: exec.Command("strace", "-c", "-f", "-U", "calls,errors,name", "-p", strconv.Itoa(pid)),
		read: make(chan struct{})}
	messages, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(io.TeeReader(messages, &s.out)).ReadString('\n')
	if err != nil || !strings.Contains(line, "attached") {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		return nil, fmt.Errorf("strace: %s", strings.TrimSpace(line))
	}
	go func() {
		_, _ = io.Copy(&s.out, messages)
		close(s.read)
	}()
	return s, nil
}

func (s *strace) Stop() (Calls, error) {
	if err := s.cmd.Process.Signal(syscall.SIGINT); err != nil {
		return nil, err
	}
	<-s.read
	_ = s.cmd.Wait() // it ends by the signal
	return parseStrace(s.out.String())
}

// canBeEmpty are the calls that return EAGAIN if there is nothing to do. Other calls fail because
// of a signal.
var canBeEmpty = []string{"read", "readv", "recvfrom", "recvmsg", "write", "writev", "sendto", "sendmsg", "splice",
	"accept4"}

// parseStrace parses the table at the end of `strace -c -U calls,errors,name`.
func parseStrace(text string) (Calls, error) {
	_, table, ok := strings.Cut(text, "----\n")
	if !ok && !strings.Contains(text, "detached") {
		return nil, errors.New("process: strace ended without having let the process go")
	}
	calls := Calls{} // there is no table without calls
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 2 || strings.HasPrefix(f[0], "-") {
			break
		}
		n, err := strconv.ParseInt(f[0], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("process: strace's table: %w", err)
		}
		calls[f[len(f)-1]] += n
		// the table does not name the error; the usual error is EAGAIN
		if len(f) == 3 && slices.Contains(canBeEmpty, f[2]) {
			failed, _ := strconv.ParseInt(f[1], 10, 64)
			calls[Again] += failed
		}
	}
	return calls, nil
}
