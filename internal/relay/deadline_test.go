package relay

import (
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// counted counts how often a connection's deadline is set.
type counted struct {
	net.Conn
	sets int
}

func (c *counted) SetReadDeadline(t time.Time) error {
	c.sets++
	return c.Conn.SetReadDeadline(t)
}

func TestDeadlinesAreExactAndRarelySet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer near.Close()
		defer far.Close()
		inner := &counted{Conn: near}
		c := &clientConn{Conn: inner, writing: deadline{writes: true}}
		began := time.Now()
		take := func(what string, after time.Duration) {
			t.Helper()
			if _, err := c.Read(make([]byte, 1)); !isTimeout(err) || time.Since(began) != after {
				t.Errorf("%s: %v after %v, not %v", what, err, time.Since(began), after)
			}
		}
		for i := range 100 {
			c.SetReadDeadline(began.Add(10*time.Second + time.Duration(i)*time.Second))
		}
		if inner.sets != 1 {
			t.Errorf("%d deadlines in force for 100 that came later and later", inner.sets)
		}
		take("a later one", 109*time.Second)
		c.SetReadDeadline(began.Add(200 * time.Second))
		c.SetReadDeadline(began.Add(150 * time.Second))
		take("an earlier one", 150*time.Second)

		c.SetReadDeadline(began.Add(160 * time.Second))
		c.SetReadDeadline(time.Time{})
		go func() {
			time.Sleep(time.Minute)
			far.Write([]byte("x"))
		}()
		if n, err := c.Read(make([]byte, 1)); n != 1 || err != nil {
			t.Errorf("none: %v", err)
		}
		if at := time.Since(began); at != 210*time.Second {
			t.Errorf("read at %v", at)
		}
		go func() {
			time.Sleep(10 * time.Second)
			c.SetReadDeadline(time.Now())
		}()
		take("one that another goroutine sets", 220*time.Second)
	})
}

func TestEarlyWriteDeadlineGoesOnWriting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer far.Close()
		c := &clientConn{Conn: near, writing: deadline{writes: true}}
		c.SetWriteDeadline(time.Now().Add(time.Second))
		c.SetWriteDeadline(time.Now().Add(10 * time.Second))
		got := make(chan string)
		go func() {
			b := make([]byte, 6)
			n, _ := far.Read(b[:2])
			time.Sleep(5 * time.Second)
			for n < len(b) {
				m, err := far.Read(b[n:])
				if n += m; err != nil {
					break
				}
			}
			got <- string(b[:n])
		}()
		if n, err := c.Write([]byte("abcdef")); n != 6 || err != nil {
			t.Errorf("wrote %d, %v", n, err)
		}
		if s := <-got; s != "abcdef" {
			t.Errorf("got %q", s)
		}
		began := time.Now()
		if _, err := c.Write([]byte("x")); !isTimeout(err) || time.Since(began) != 5*time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}
