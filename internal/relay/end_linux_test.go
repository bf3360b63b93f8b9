package relay

import (
	"bufio"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/internal/sse"
)

// TestTotalPassesWhileTheClientDoesNotRead: with the total time of the answer over, the client
// still has only ReplyOptions.SlowReader to take what is left of it.
func TestTotalPassesWhileTheClientDoesNotRead(t *testing.T) {
	o := newObserved()
	f := newFront(t, rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
		if _, _, err := readRequest(r); err != nil {
			return
		}
		io.WriteString(c, sseHead)
		for {
			if _, err := io.WriteString(c, chunk("data: "+strings.Repeat("x", 4000)+"\n\n")); err != nil {
				return
			}
		}
	}), func(f *front) { f.observer, f.total, f.slow = o, 200*time.Millisecond, 2*time.Second })
	client := dial(t, f.addr)
	client.Conn.(*net.TCPConn).SetReadBuffer(4096)
	io.WriteString(client.Conn, request)
	o.wait(t, TotalTimeout)
}

// panicking panics at the first event.
type panicking struct{ *observed }

func (panicking) Event(sse.Event, time.Time) bool { panic("observer") }

// TestObserverPanicsAtTheHandOver: the first events may have come with the head.
func TestObserverPanicsAtTheHandOver(t *testing.T) {
	o := newObserved()
	f := newFront(t, rawServer(t, "tcp", func(c net.Conn, r *bufio.Reader) {
		if _, _, err := readRequest(r); err != nil {
			return
		}
		io.WriteString(c, sseHead+chunk("data: a\n\n"))
		r.ReadByte() // until the router hangs up
	}), func(f *front) { f.observer, f.await = panicking{o}, true })
	told := make(chan any, 1)
	f.lending.Loops.options.Panicked = func(p any) { told <- p }
	client := dial(t, f.addr)
	io.WriteString(client.Conn, request)
	o.wait(t, UpstreamFailed)
	if p := <-told; p != "observer" {
		t.Errorf("told of %v", p)
	}
	client.SetReadDeadline(time.Now().Add(soon))
	if _, err := io.ReadAll(client.Conn); isTimeout(err) {
		t.Error("the client waits")
	}
}

// TestLoanWithoutDescriptors: what cannot be made a connection again is closed, once.
func TestLoanWithoutDescriptors(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	var lent loan
	if err := lent.reserve(c); err != nil {
		t.Fatal(err)
	}
	lent.take(c)
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max})
	_, err = lent.back()
	unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	if err == nil {
		t.Fatal("there was a descriptor")
	}
	if _, err := unix.FcntlInt(uintptr(lent.fd), unix.F_GETFD, 0); err != unix.EBADF {
		t.Errorf("the descriptor is still there: %v", err)
	}
	if lent.end() {
		t.Error("it would be closed again")
	}
}
