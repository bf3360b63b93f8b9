//go:build linux

package lease

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/frame"
	"github.com/cognitora/dataplane/kvcached/ram"
	"github.com/cognitora/dataplane/kvcached/store"
)

// handle carries out one frame and gathers the answer. An error ends the connection.
func (c *conn) handle(h frame.Header, body []byte) error {
	c.server.count.requests.Add(1)
	if h.Op == frame.OpHello {
		return c.greet(h, body)
	}
	if !c.greeted {
		return &frame.Error{Status: frame.StatusNoGreeting, Text: fmt.Sprintf("op %d before hello", h.Op)}
	}
	switch h.Op {
	case frame.OpGet:
		return c.get(h, body)
	case frame.OpRelease:
		for i := range int(h.Count) {
			c.release(frame.Lease(body, i))
		}
		return nil
	case frame.OpRenew:
		return c.renewAll(h, body)
	case frame.OpTouch:
		return c.touch(h, body)
	case frame.OpStat:
		return c.stat(h, body, c.server.store.StatAll)
	case frame.OpFind:
		return c.stat(h, body, c.server.o.Find)
	case frame.OpStage:
		return c.stage(h, binary.LittleEndian.Uint64(body))
	case frame.OpUnstage:
		return c.writer.drop(c.server, binary.LittleEndian.Uint32(body))
	case frame.OpCommit:
		return c.commit(h, body)
	case frame.OpDelete, frame.OpUnpin:
		return c.each(h, body)
	case frame.OpPin:
		return c.pin(h, body)
	case frame.OpKnow:
		return c.know(h, body)
	case frame.OpRead:
		return c.note(h, body)
	}
	return c.answer(h, 0, nil) // Ping
}

// greet answers Hello.
func (c *conn) greet(h frame.Header, body []byte) error {
	hello, err := frame.ParseHello(body)
	if err != nil {
		return err
	}
	if c.greeted {
		return &frame.Error{Status: frame.StatusBadFrame, Text: "a second hello"}
	}
	s, o := c.server, &c.server.o
	c.greeted = true
	_ = c.net.SetReadDeadline(time.Time{})
	c.owner = fmt.Sprintf("lease:%d:%s", c.peer.UID, strings.TrimRight(string(hello.Name[:]), "\x00"))
	w := frame.Welcome{
		Version: frame.Version, Attached: hello.Have != s.instance, MaxLeases: uint32(o.MaxLeases),
		Instance:  s.instance,
		ArenaSize: uint64(s.arena), LeaseNS: int64(o.Lease), NowNS: frame.Monotonic(), MaxLeased: uint64(o.MaxLeased),
		MaxStaging: uint64(o.MaxStaging), MaxValue: block.MaxPayload, MaxSegments: maxSegments,
	}
	b := frame.Append(nil, frame.Header{Op: frame.OpHello, Seq: h.Seq})
	b = frame.End(frame.AppendWelcome(b, &w), 0)
	if w.Attached {
		return c.attach(b, s.arenaFD)
	}
	if err := c.reserve(len(b)); err != nil {
		return err
	}
	c.out = append(c.out, b...)
	return nil
}

// answer gathers an answer without entries.
func (c *conn) answer(h frame.Header, status frame.Status, body []byte) error {
	if err := c.reserve(frame.HeaderSize + len(body)); err != nil {
		return err
	}
	start := len(c.out)
	c.out = frame.Append(c.out, frame.Header{Op: h.Op, Status: status, Seq: h.Seq})
	c.out = frame.End(append(c.out, body...), start)
	return nil
}

// begin gathers the header of an answer that has one entry for each entry of the request. each is
// the size of an entry.
func (c *conn) begin(h frame.Header, each int) error {
	size := frame.HeaderSize + each*int(h.Count)
	if err := c.reserve(size); err != nil {
		return err
	}
	c.out = frame.Append(c.out, frame.Header{Size: uint32(size), Op: h.Op, Count: h.Count, Seq: h.Seq})
	return nil
}

func (c *conn) get(h frame.Header, body []byte) error {
	if err := c.begin(h, frame.GrantSize); err != nil {
		return err
	}
	for i := range int(h.Count) {
		var g frame.Grant
		b, err := c.server.store.Get(c.server.ctx, frame.Addr(body, i))
		if err == nil {
			c.grant(b, &g)
		} else {
			g.Status = c.server.status(err)
		}
		switch g.Status {
		case frame.StatusOK:
			c.server.count.hits.Add(1)
			c.server.count.hitBytes.Add(uint64(g.Length))
		case frame.StatusMiss:
			c.server.count.misses.Add(1)
		}
		c.out = frame.AppendGrant(c.out, &g)
	}
	return nil
}

func (c *conn) renewAll(h frame.Header, body []byte) error {
	if err := c.begin(h, 8); err != nil {
		return err
	}
	for i := range int(h.Count) {
		c.out = binary.LittleEndian.AppendUint64(c.out, uint64(c.renew(frame.Lease(body, i))))
	}
	return nil
}

// addrs reads all addresses of a body into the long buffers.
func (c *conn) addrs(h frame.Header, body []byte) error {
	if err := c.lengthen(); err != nil {
		return err
	}
	for i := range int(h.Count) {
		c.long.addrs[i] = frame.Addr(body, i)
	}
	return nil
}

func (c *conn) touch(h frame.Header, body []byte) error {
	if err := c.addrs(h, body); err != nil {
		return err
	}
	c.server.store.Touch(c.long.addrs[:h.Count])
	return nil
}

// stat answers Stat and Find with what describe says of the addresses.
func (c *conn) stat(h frame.Header, body []byte, describe Describe) error {
	if err := c.addrs(h, body); err != nil {
		return err
	}
	infos := c.long.infos[:h.Count]
	if err := describe(c.server.ctx, c.long.addrs[:h.Count], infos); err != nil {
		return c.wholeBatch(h, frame.InfoSize, c.server.status(err))
	}
	if err := c.begin(h, frame.InfoSize); err != nil {
		return err
	}
	for i := range infos {
		c.out = frame.AppendInfo(c.out, infoOf(&infos[i]))
	}
	return nil
}

// wholeBatch answers a batch that failed as a whole. The frame has the status. The entries are
// zero.
func (c *conn) wholeBatch(h frame.Header, each int, status frame.Status) error {
	if err := c.begin(h, each); err != nil {
		return err
	}
	frame.SetStatus(c.out[len(c.out)-frame.HeaderSize:], status)
	c.out = append(c.out, make([]byte, each*int(h.Count))...)
	return nil
}

func infoOf(i *store.Info) *frame.Info {
	f := frame.Info{Length: uint32(i.Length), CRC: i.CRC, Uses: i.Uses, Tiers: uint8(i.Tiers)}
	if i.Tiers == 0 {
		f = frame.Info{Status: frame.StatusMiss}
	}
	return &f
}

// each deletes or unpins the addresses of a frame.
func (c *conn) each(h frame.Header, body []byte) error {
	if err := c.begin(h, 1); err != nil {
		return err
	}
	for i := range int(h.Count) {
		a, status := frame.Addr(body, i), frame.StatusOK
		if h.Op == frame.OpUnpin {
			c.server.store.Unpin(a, c.owner)
		} else if was, err := c.server.store.Delete(c.server.ctx, a); err != nil {
			status = c.server.status(err)
		} else if !was {
			status = frame.StatusMiss
		}
		c.out = append(c.out, byte(status))
	}
	return nil
}

// know tells the store the text of a namespace before the client asks for its blocks.
func (c *conn) know(h frame.Header, text []byte) error {
	n, err := block.ParseNamespace(string(text))
	if err != nil || n.Space != "" {
		return c.answer(h, frame.StatusNamespace, nil)
	}
	c.known(string(text))
	return c.answer(h, frame.StatusOK, nil)
}

func (c *conn) known(namespace string) {
	if c.server.names != nil {
		c.server.names.Know(namespace)
	}
}

func (c *conn) pin(h frame.Header, body []byte) error {
	if err := c.begin(h, 1); err != nil {
		return err
	}
	until := int64(binary.LittleEndian.Uint64(body))
	if until > time.Now().Add(ram.MaxPin).UnixMilli() {
		for range int(h.Count) {
			c.out = append(c.out, byte(frame.StatusPin))
		}
		return nil
	}
	for i := range int(h.Count) {
		err := c.server.store.Pin(c.server.ctx, frame.Addr(body[8:], i), c.owner, until)
		c.out = append(c.out, byte(c.server.status(err)))
	}
	return nil
}

// status turns an error of the store into a status. Errors without a status of their own go to the
// log.
func (s *Server) status(err error) frame.Status {
	status := statusOf(err)
	if status != frame.StatusInternal {
		return status
	}
	s.count.failed.Add(1)
	if s.mayLog() {
		s.o.Logger.Error("lease socket: the store failed", "error", err)
	}
	return status
}

// mayLog bounds the log lines that clients cause to one a second.
func (s *Server) mayLog() bool {
	now, last := frame.Monotonic(), s.logged.Load()
	return now-last > int64(time.Second) && s.logged.CompareAndSwap(last, now)
}

// statusOf turns an error of the store into a status.
func statusOf(err error) frame.Status {
	switch {
	case err == nil:
		return frame.StatusOK
	case errors.Is(err, store.ErrMiss):
		return frame.StatusMiss
	case errors.Is(err, store.ErrFull):
		return frame.StatusFull
	case errors.Is(err, store.ErrTooLarge):
		return frame.StatusTooLarge
	case errors.Is(err, store.ErrQuota):
		return frame.StatusQuota
	case errors.Is(err, store.ErrCorrupt):
		return frame.StatusCorrupt
	case errors.Is(err, store.ErrExists):
		return frame.StatusExists
	case errors.Is(err, store.ErrNotDurable):
		return frame.StatusNotDurable
	case errors.Is(err, store.ErrClosed), errors.Is(err, context.Canceled):
		return frame.StatusClosed
	}
	return frame.StatusInternal
}
