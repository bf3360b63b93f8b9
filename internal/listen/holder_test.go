package listen

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
)

const holdEnv = "LISTEN_TEST_HOLD"

// hold listens at addr in a process of its own. hold returns the process id and the actual address.
func hold(t *testing.T, addr string) (pid int, at string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestHoldsForAnother$")
	cmd.Env = append(os.Environ(), holdEnv+"="+addr)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	at, ok := strings.CutPrefix(strings.TrimSpace(line), "at ")
	if err != nil || !ok {
		t.Skipf("%s cannot be listened on: %q, %v", addr, line, err)
	}
	return cmd.Process.Pid, at
}

// TestHoldsForAnother is the process of hold. The process listens until its input ends.
func TestHoldsForAnother(t *testing.T) {
	addr := os.Getenv(holdEnv)
	if addr == "" {
		t.Skip("started by other tests")
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("at", l.Addr())
	_, _ = os.Stdin.Read(make([]byte, 1))
	_ = l.Close()
}

// TestByHolder: among several processes on one port, the process with the address is named, or else
// one with a wildcard, or else none.
func TestByHolder(t *testing.T) {
	if _, err := os.Stat("/proc/net/tcp"); err != nil {
		t.Skip(err)
	}
	first, at := hold(t, "127.0.0.1:0")
	_, port, err := net.SplitHostPort(at)
	if err != nil {
		t.Fatal(err)
	}
	second, _ := hold(t, "127.0.0.2:"+port)
	all, wide := hold(t, "0.0.0.0:0")
	_, widePort, err := net.SplitHostPort(wide)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		addr string
		pids []int
	}{
		{at, []int{first}}, {"127.0.0.2:" + port, []int{second}}, {"localhost:" + port, []int{first}},
		{"127.0.0.3:" + port, nil}, {"[::1]:" + port, nil}, {"192.0.2.1:" + port, nil}, {"elsewhere:" + port, nil}, {"nonsense", nil},
		{":" + port, []int{first, second}}, {"0.0.0.0:" + port, []int{first, second}}, {"[::]:" + port, []int{first, second}},
		// Go listens on both families for a wildcard
		{wide, []int{all}}, {"127.0.0.9:" + widePort, []int{all}}, {"[::1]:" + widePort, []int{all}},
	} {
		got, ok := ByHolder(c.addr), len(c.pids) == 0
		for _, pid := range c.pids {
			ok = ok || strings.HasSuffix(got, fmt.Sprintf(" (process %d)", pid))
		}
		if !ok || len(c.pids) == 0 && got != "" {
			t.Errorf("%s: %q, want one of %d", c.addr, got, c.pids)
		}
	}
	six, at6 := hold(t, "[::1]:0")
	if got := ByHolder(at6); !strings.HasSuffix(got, fmt.Sprintf(" (process %d)", six)) {
		t.Errorf("%s: %q, want %d", at6, got, six)
	}
}
