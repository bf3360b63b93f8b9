package takeover

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute // a test fails when an event takes longer

// old is a process that offers a TCP and a Unix socket.
type old struct {
	t       *testing.T
	path    string
	tcp, ux net.Listener
	stop    context.CancelFunc
	result  chan int
	mu      sync.Mutex
	counts  map[string]int
}

func offering(t *testing.T) *old {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	o := &old{t: t, path: filepath.Join(dir, "takeover"), result: make(chan int, 1), counts: map[string]int{}}
	var err error
	if o.tcp, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	if o.ux, err = net.Listen("unix", filepath.Join(dir, "serving")); err != nil {
		t.Fatal(err)
	}
	at, err := Open(o.path)
	if err != nil {
		t.Fatal(err)
	}
	offer := New(at, Options{
		Sockets: []Socket{{"tcp", "a", o.tcp}, {"unix", "b", o.ux}, {"self", "c", at}},
		Auth:    "keys",
		Logger:  slog.New(slog.NewTextHandler(t.Output(), nil)), Count: o.count,
	})
	ctx, stop := context.WithCancel(context.Background())
	o.stop = stop
	served := make(chan struct{})
	go func() {
		defer close(served)
		pid, taken := offer.Serve(ctx)
		if taken != (pid != 0) {
			t.Errorf("taken %v by process %d", taken, pid)
		}
		o.result <- pid
	}()
	t.Cleanup(func() {
		stop()
		<-served
		o.tcp.Close()
		o.ux.Close()
	})
	return o
}

func (o *old) count(outcome string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.counts[outcome]++
}

func (o *old) counted(outcome string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.counts[outcome]
}

func (o *old) ask() *Claim {
	o.t.Helper()
	c, err := Ask(o.t.Context(), o.path)
	if err != nil {
		o.t.Fatal(err)
	}
	if c.Auth != "keys" {
		o.t.Errorf("it asks for %q", c.Auth)
	}
	o.t.Cleanup(c.Close)
	return c
}

// all takes all sockets.
func (o *old) all(c *Claim) (tcp, ux, self net.Listener) {
	o.t.Helper()
	tcp, ux, self = c.Take("tcp", "a"), c.Take("unix", "b"), c.Take("self", "c")
	for _, l := range []net.Listener{tcp, ux, self} {
		if l == nil {
			o.t.Fatal("not everything is offered")
		}
		o.t.Cleanup(func() { l.Close() })
	}
	return tcp, ux, self
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(patience); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

// accepts checks that l accepts a connection to at's address.
func accepts(t *testing.T, l, at net.Listener) {
	t.Helper()
	c, err := net.Dial(at.Addr().Network(), at.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	got.Close()
}

func exists(l net.Listener) bool {
	_, err := os.Stat(l.Addr().String())
	return err == nil
}

func TestTakeOver(t *testing.T) {
	o := offering(t)
	c := o.ask()
	if c.Take("tcp", "elsewhere") != nil || c.Take("other", "a") != nil {
		t.Error("a socket at another address is taken")
	}
	tcp, ux, self := o.all(c)
	if c.PID != os.Getpid() {
		t.Errorf("from process %d", c.PID)
	}
	accepts(t, o.tcp, tcp)
	accepts(t, tcp, o.tcp)
	accepts(t, ux, o.ux)
	queued, err := net.Dial("unix", ux.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer queued.Close()
	c.Serving()
	if pid := <-o.result; pid != os.Getpid() {
		t.Errorf("taken by process %d", pid)
	}
	o.tcp.Close()
	o.ux.Close()
	for _, l := range []net.Listener{ux, self} {
		if !exists(l) {
			t.Errorf("the old process has removed %s", l.Addr())
		}
	}
	if got, err := ux.Accept(); err != nil {
		t.Error(err)
	} else {
		got.Close()
	}
	accepts(t, tcp, tcp)
	for _, l := range []net.Listener{ux, self} {
		l.Close()
		if exists(l) {
			t.Errorf("the new process has left %s", l.Addr())
		}
	}
}

// TestWhatIsNotTaken: sockets that were not taken end with the old process.
func TestWhatIsNotTaken(t *testing.T) {
	o := offering(t)
	c := o.ask()
	tcp := c.Take("tcp", "a")
	defer tcp.Close()
	c.Serving()
	<-o.result
	o.ux.Close()
	if exists(o.ux) {
		t.Error("the Unix socket that nobody took is left behind")
	}
}

// TestTheNewOneEnds: if the new process ends, the old one goes on, and can be taken over again.
func TestTheNewOneEnds(t *testing.T) {
	o := offering(t)
	for i := range 3 {
		c := o.ask()
		tcp, ux, self := o.all(c)
		if _, err := Ask(t.Context(), o.path); err == nil || !strings.Contains(err.Error(), "is taking over already") {
			t.Errorf("a second process at the same time: %v", err)
		}
		for _, l := range []net.Listener{tcp, ux, self} {
			l.Close()
		}
		c.Close()
		eventually(t, "the old one is told", func() bool { return o.counted(Abandoned) == i+1 })
		accepts(t, o.tcp, o.tcp)
		accepts(t, o.ux, o.ux)
	}
	if o.counted(Refused) != 3 {
		t.Errorf("%d refused", o.counted(Refused))
	}
	o.stop()
	if <-o.result != 0 {
		t.Error("taken")
	}
	o.ux.Close()
	if exists(o.ux) {
		t.Error("it does not remove its socket any more")
	}
	if _, err := Ask(t.Context(), o.path); !errors.Is(err, ErrNobody) {
		t.Errorf("after its end: %v", err)
	}
}

// TestTheOldOneEnds: if the old process ends while another has its sockets, the other is told, and
// keeps all sockets.
func TestTheOldOneEnds(t *testing.T) {
	o := offering(t)
	c := o.ask()
	tcp, ux, self := o.all(c)
	o.stop()
	if <-o.result != 0 {
		t.Error("taken")
	}
	o.tcp.Close()
	o.ux.Close()
	select {
	case <-c.Gone():
	case <-time.After(patience):
		t.Fatal("the new one is not told")
	}
	accepts(t, tcp, tcp)
	accepts(t, ux, ux)
	c.Serving()
	self.Close()
	if exists(self) {
		t.Error("the socket has no owner")
	}
}

// TestAnotherUser: another user gets no sockets, whatever the file's mode.
func TestAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be another user")
	}
	o := offering(t)
	if err := os.Chmod(o.path, 0o777); err != nil {
		t.Fatal(err)
	}
	for dir := filepath.Dir(o.path); dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o711); err != nil {
			t.Fatal(err)
		}
	}
	answer := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked, so the thread ends with its rights
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, 65534, 65534, 65534); errno != 0 {
			answer <- errno
			return
		}
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
		if err == nil {
			defer unix.Close(fd)
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: o.path})
		}
		if err == nil {
			_, _ = unix.Write(fd, []byte(`{"kind":"hello","protocol":1}`+"\n")) // it may have been refused already
		}
		buf, control := make([]byte, 4096), make([]byte, 256)
		n, rights, _, _, readErr := unix.Recvmsg(fd, buf, control, 0)
		if !strings.Contains(string(buf[:max(n, 0)]), "it has the user id 65534") || rights != 0 {
			err = errors.Join(err, readErr, errors.New("the answer is "+string(buf[:max(n, 0)])))
		}
		answer <- err
	}()
	if err := <-answer; err != nil {
		t.Error(err)
	}
	eventually(t, "it is counted", func() bool { return o.counted(Refused) == 1 })
	o.ask()
}

// TestWhatIsNoConversation: invalid messages are refused with a reason, and others can then ask.
func TestWhatIsNoConversation(t *testing.T) {
	o := offering(t)
	for said, want := range map[string]string{
		`{"kind":"hello","protocol":2,"version":"v9"}` +
			"\n": `version \"v9\" hands over by protocol 2, this one by 1; restart it instead`,
		"GET / HTTP/1.1\n":                       "not a message",
		`{"kind":"serving","protocol":1}` + "\n": "it begins with serving",
		strings.Repeat("a", maxMessage+1):        "more than 4096 bytes",
	} {
		c, err := net.Dial("unix", o.path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(c, said); err != nil {
			t.Fatal(err)
		}
		c.SetReadDeadline(time.Now().Add(patience))
		answer, err := io.ReadAll(c)
		if !strings.Contains(string(answer), want) {
			t.Errorf("%.40q: %q %v, want %q", said, answer, err, want)
		}
		c.Close()
	}
	o.ask()
}

// TestAnOfferOfAnotherProtocol: an offer of another protocol leads to a clear error.
func TestAnOfferOfAnotherProtocol(t *testing.T) {
	for said, want := range map[string]string{
		`{"kind":"offer","protocol":2,"version":"v9"}`:                              `version "v9" hands over by protocol 2`,
		`{"kind":"refused","protocol":7,"reason":"not to you"}`:                     "it refuses: not to you",
		`{"kind":"offer","protocol":1,"sockets":[{"setting":"tcp","address":"a"}]}`: "0 descriptors for 1 sockets",
	} {
		l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			if _, err := c.Read(make([]byte, maxMessage)); err == nil {
				_, _ = io.WriteString(c, said+"\n")
			}
		}()
		if _, err := Ask(t.Context(), l.Addr().String()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		l.Close()
		<-done
	}
}
