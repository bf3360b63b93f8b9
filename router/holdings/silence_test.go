package holdings

import (
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// TestSilentDaemon checks that a daemon that is silent is not live for long, though
// its connection stays open.
func TestSilentDaemon(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	d := startDaemon(t, filepath.Join(dir, "kv.sock"))
	defer d.stop()
	front := filepath.Join(dir, "front.sock")
	cut := forward(t, front, d.path)
	m := follow(t, static(front))
	chain, digests := prompt(10)
	d.put(digests, 0, 10)
	eventually(t, m, chain, "host:7072", Reach{Unknown, 10, 10, 10, 0})
	cut()
	for end := time.Now().Add(time.Minute); m.Stats().Live > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the daemon is live after a minute of silence")
		}
	}
}

// forward passes connections to a Unix socket on to another one, until cut: from then on no byte
// passes, and the connections stay open.
func forward(t *testing.T, from, to string) (cut func()) {
	t.Helper()
	l, err := net.Listen("unix", from)
	if err != nil {
		t.Fatal(err)
	}
	var pumps sync.WaitGroup
	silent, over := make(chan struct{}), make(chan struct{})
	pump := func(dst, src net.Conn) {
		defer dst.Close()
		for b := make([]byte, 4096); ; {
			n, err := src.Read(b)
			select {
			case <-silent:
				<-over
				return
			default:
			}
			if err != nil {
				return
			}
			if _, err := dst.Write(b[:n]); err != nil {
				return
			}
		}
	}
	pumps.Go(func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("unix", to)
			if err != nil {
				a.Close()
				continue
			}
			pumps.Go(func() { pump(a, b) })
			pumps.Go(func() { pump(b, a) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		close(over)
		pumps.Wait()
	})
	return sync.OnceFunc(func() { close(silent) })
}
