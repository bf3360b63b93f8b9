package events

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"net"
	"os"
	"time"
)

// Time limits of connections.
const (
	dialWithin   = 5 * time.Second  // to connect and exchange the greetings
	answerWithin = 10 * time.Second // for the next reply of a replay
	replayWithin = 5 * time.Minute  // for the whole replay
)

// endOfReplay is the sequence number that ends a replay.
const endOfReplay = ^uint64(0)

// batchOf finds the number and the payload of a message, which are its last two frames. In a reply,
// an empty frame, and maybe a topic, come before them.
func batchOf(parts [][]byte) (seq uint64, payload []byte, err error) {
	n := len(parts)
	if n < 2 || n > 4 || len(parts[n-2]) != 8 {
		return 0, nil, fmt.Errorf("%w: %d frames are no batch", errMalformed, n)
	}
	return binary.BigEndian.Uint64(parts[n-2]), parts[n-1], nil
}

// resume reads the batches since the last applied one. If the publisher lacks that one, the
// publisher is new, or batches are lost. Then resume forgets everything and reads the whole replay.
func (f *Follower) resume(ctx context.Context) error {
	if f.o.Replay == (Endpoint{}) {
		if f.next > 0 && f.live == 0 {
			f.renew("the connection was broken, and there is no replay to say what was missed")
		}
		return nil
	}
	if f.next > 0 {
		same, err := f.replay(ctx, f.next-1)
		if err != nil {
			return f.unreplayed(ctx, err)
		}
		if same {
			return nil
		}
		f.renew("the publisher does not have the last batch that was applied")
	}
	if _, err := f.replay(ctx, 0); err != nil {
		return f.unreplayed(ctx, err)
	}
	return nil
}

// unreplayed continues without the batches of a failed replay.
func (f *Follower) unreplayed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	f.log.Warn("the engine's replay of KV events failed", "endpoint", f.o.Replay.String(), "error", err)
	if f.next > 0 {
		f.counts.lost.Add(1)
		f.renew("the replay failed")
	}
	return nil
}

// replay applies the batches from number start on. If batches were applied before, start is the
// last of them, and the first reply must be that batch again. same tells whether it is.
func (f *Follower) replay(ctx context.Context, start uint64) (same bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, replayWithin)
	defer cancel()
	conn, err := dial(ctx, f.o.Replay)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	s, err := open(conn, "DEALER", "ROUTER", "DEALER", "REP")
	if err != nil {
		return false, err
	}
	request := appendFrame(nil, flagMore, nil)
	if err := s.write(appendFrame(request, 0, binary.BigEndian.AppendUint64(nil, start))); err != nil {
		return false, err
	}
	same = f.next == 0
	for check := !same; ; {
		_ = conn.SetReadDeadline(time.Now().Add(answerWithin))
		parts, err := f.read(ctx, s)
		if err != nil {
			return false, err
		}
		seq, payload, err := batchOf(parts)
		switch {
		case err != nil:
			return false, err
		case seq == endOfReplay:
			return same, nil
		case check:
			if seq != start || maphash.Bytes(f.seed, payload) != f.last {
				return false, nil
			}
			same, check = true, false
			continue
		case seq < f.next:
			continue
		case seq > f.next && f.next > 0:
			f.counts.lost.Add(1)
			f.renew("batches are missing in the replay")
		}
		f.counts.replayed.Add(1)
		if err := f.take(ctx, seq, payload); err != nil {
			return false, err
		}
	}
}

// dial connects to an engine's listening address. Reads and writes must finish by the deadline,
// until the caller removes it.
func dial(ctx context.Context, e Endpoint) (net.Conn, error) {
	d := net.Dialer{Timeout: dialWithin}
	conn, err := d.DialContext(ctx, e.Network, e.Addr)
	if err == nil {
		_ = conn.SetDeadline(time.Now().Add(dialWithin))
	}
	return conn, err
}

// door makes connections to the publisher: it dials, or accepts.
type door struct {
	at     Endpoint
	listen net.Listener
}

func newDoor(e Endpoint) *door { return &door{at: e} }

func (d *door) close() {
	if d.listen != nil {
		_ = d.listen.Close()
	}
}

// enter returns the next connection.
func (d *door) enter(ctx context.Context) (net.Conn, error) {
	if !d.at.Listen {
		return dial(ctx, d.at)
	}
	if d.listen == nil {
		if d.at.Network == "unix" {
			if info, err := os.Lstat(d.at.Addr); err == nil && info.Mode()&os.ModeSocket != 0 {
				_ = os.Remove(d.at.Addr) // left by a killed process
			}
		}
		l, err := new(net.ListenConfig).Listen(ctx, d.at.Network, d.at.Addr)
		if err != nil {
			return nil, err
		}
		d.listen = l
	}
	ended := context.AfterFunc(ctx, d.close)
	conn, err := d.listen.Accept()
	if !ended() && err == nil { // ctx has ended
		_ = conn.Close()
		err = ctx.Err()
	}
	if err != nil {
		if errors.Is(err, net.ErrClosed) {
			d.listen = nil
		}
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(dialWithin))
	return conn, nil
}
