package peerevents

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair returns the two ends of a connection.
func pair(t testing.TB) (a, b *Conn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if a, err = Dial(context.Background(), path); err != nil {
		t.Fatal(err)
	}
	c, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	b = NewConn(c)
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func descriptorsOpen(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// TestConn: messages of all sizes arrive one by one, and the descriptor arrives with its message.
func TestConn(t *testing.T) {
	a, b := pair(t)
	file, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	all := append(messages, Message{Type: Watch, Peers: make([]netip.AddrPort, MaxPeers)})
	sent := make(chan error, 1)
	go func() {
		var errs []error
		for range 3 {
			for i := range all {
				fd := -1
				if all[i].Type == Welcome {
					fd = int(file.Fd())
				}
				errs = append(errs, a.Send(&all[i], fd))
			}
		}
		sent <- errors.Join(append(errs, a.CloseWrite())...)
	}()
	for range 3 {
		for i := range all {
			m, fd, err := b.Receive()
			if err != nil || m.Type != all[i].Type || len(m.Peers) != len(all[i].Peers) || m.Event != all[i].Event {
				t.Fatalf("%+v, %v, want %+v", m, err, all[i])
			}
			if (fd >= 0) != (m.Type == Welcome) {
				t.Errorf("descriptor %d with %+v", fd, m)
			}
			if fd >= 0 {
				unix.Close(fd)
			}
		}
	}
	if m, _, err := b.Receive(); !errors.Is(err, io.EOF) {
		t.Errorf("%+v, %v", m, err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// TestDescriptorsDoNotPile: unexpected descriptors are closed.
func TestDescriptorsDoNotPile(t *testing.T) {
	before := descriptorsOpen(t)
	for _, n := range []int{2, 8, 20} {
		a, b := pair(t)
		frame := frameOf(t, &Message{Type: Alive})
		if _, _, err := a.WriteMsgUnix(frame, unix.UnixRights(make([]int, n)...), nil); err != nil {
			t.Fatal(err)
		}
		if m, _, err := b.Receive(); err == nil {
			t.Errorf("%d descriptors: %+v", n, m)
		}
		a.Close()
		b.Close()
	}
	if after := descriptorsOpen(t); after != before {
		t.Errorf("%d descriptors are open, %d were", after, before)
	}
}

// FuzzReceive: for any bytes, the receiver returns messages or an error, and buffers at most one
// frame.
func FuzzReceive(f *testing.F) {
	var all []byte
	for i := range messages {
		all = append(all, frameOf(f, &messages[i])...)
	}
	f.Add(all)
	f.Add([]byte{0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, stream []byte) {
		a, b := pair(t)
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			_, _ = a.Write(stream) // fails when the other end has closed
			_ = a.Close()
		}()
		for {
			if _, _, err := b.Receive(); err != nil {
				break
			}
		}
		if cap(b.got) > maxFrame {
			t.Errorf("room for %d bytes", cap(b.got))
		}
		_ = b.Close()
		<-sent
	})
}
