package resp

import "fmt"

// Bounds of one transaction. A command beyond them is refused, and EXEC then runs nothing.
const (
	maxQueued = 4096 // commands
	// bytes of arguments; Options.maxBuffered bounds the arguments of all connections
	maxQueuedBytes = 16 << 20
)

// transaction holds the commands after MULTI. EXEC runs them in order. Commands of other clients
// may run between them.
type transaction struct {
	open    bool
	spoiled bool // a command was refused: EXEC runs nothing
	queued  []queued
	bytes   int // counted in Server.buffered
}

// queued is a command that waits for EXEC. It has copies of its arguments.
type queued struct {
	command command
	args    [][]byte
}

// drop forgets the transaction.
func (t *transaction) drop(s *Server) {
	if t.bytes > 0 {
		s.buffered.Add(-int64(t.bytes))
	}
	*t = transaction{}
}

func (c *conn) multi() {
	if c.queue.open {
		c.fail("ERR MULTI calls can not be nested")
		return
	}
	c.queue.open = true
	c.ok()
}

func (c *conn) discard() {
	if !c.queue.open {
		c.fail("ERR DISCARD without MULTI")
		return
	}
	c.queue.drop(c.server)
	c.ok()
}

// enqueue keeps the command for EXEC. It copies values out of their drafts, so that transactions do
// not hold the arena.
func (c *conn) enqueue() {
	if len(c.queue.queued) >= maxQueued {
		c.refuse(fmt.Sprintf("ERR a transaction has at most %d commands", maxQueued))
		return
	}
	size := len(c.args) * argSize
	for _, a := range c.args {
		size += len(a)
	}
	for _, v := range c.values {
		size += len(v.draft.Bytes())
	}
	if c.queue.bytes+size > maxQueuedBytes {
		c.refuse(fmt.Sprintf("ERR a transaction has at most %d bytes; send long values outside of MULTI",
			maxQueuedBytes))
		return
	}
	if c.server.buffered.Add(int64(size)) > c.server.o.maxBuffered {
		c.server.buffered.Add(-int64(size))
		c.refuse(string(c.server.o.tooBusy()))
		return
	}
	c.queue.bytes += size
	q := queued{command: c.command, args: make([][]byte, len(c.args))}
	for i, a := range c.args {
		q.args[i] = append([]byte(nil), a...)
	}
	for _, v := range c.values {
		q.args[v.arg] = append([]byte(nil), v.draft.Bytes()...)
	}
	c.queue.queued = append(c.queue.queued, q)
	c.simple("QUEUED")
}

// exec runs the queued commands. Its reply is the array of their replies.
func (c *conn) exec() {
	t := c.queue
	c.queue = transaction{}
	defer t.drop(c.server)
	switch {
	case !t.open:
		c.fail("ERR EXEC without MULTI")
		return
	case t.spoiled:
		c.fail("EXECABORT Transaction discarded because of previous errors.")
		return
	}
	c.finish()
	c.array(len(t.queued))
	for _, q := range t.queued {
		if c.stream.fails != nil {
			return
		}
		c.server.counters.commands.Add(1)
		c.args, c.command = append(c.args[:0], q.args...), q.command
		if c.user != nil && c.user.ReadOnly && q.command.flags&write != 0 { // AUTH came between
			c.fail(c.notPermitted(q.command))
		} else {
			c.command.run(c)
		}
		c.finish()
	}
}
