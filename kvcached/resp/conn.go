package resp

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/store"
)

// conn is a client's connection. Its goroutine alone uses it.
type conn struct {
	server *Server
	stream *bufferedConn
	id     uint64
	limits bounds

	proto     int // 2 or 3
	user      *account
	db        int
	namespace string // canonical text of db and the user's tenant
	model     block.ModelID
	closing   bool // the connection ends once the replies are written
	broken    bool // the client sent bytes that are not RESP
	queue     transaction

	args    [][]byte
	values  []value // arguments that lie in drafts; their elements of args are nil
	command command // the command that runs now
	kept    keeper  // memory of args that the stream's buffer does not hold
	keys    []key
	addrs   []block.Addr
	infos   []store.Info

	name string // name that the client gave itself
}

// value is an argument that was read into a draft.
type value struct {
	arg   int
	draft *store.Draft
}

// space returns the space of a database, a part of its namespace.
func space(db int) string { return "resp." + strconv.Itoa(db) }

func newConn(s *Server, nc net.Conn) *conn {
	c := &conn{server: s, stream: newBufferedConn(s, s.wrap(nc)), id: s.nextID.Add(1), proto: 2}
	c.kept.server = s
	c.selectDB(0)
	return c
}

// authed tells whether the client may run commands other than AUTH and HELLO.
func (c *conn) authed() bool { return c.user != nil || len(c.server.accounts) == 0 }

// selectDB selects a database of the user's tenant.
func (c *conn) selectDB(db int) {
	c.db, c.namespace = db, c.namespaceOf(db)
	c.model = block.IDOf(c.namespace)
	c.limits = bounds{args: c.server.o.maxArgs, bulk: MaxValue, authed: c.authed()}
}

// serve executes commands until the connection ends.
func (c *conn) serve() {
	defer c.end()
	if t, ok := c.stream.conn.(*tls.Conn); ok {
		_ = t.SetDeadline(time.Now().Add(c.server.o.Stall))
		if err := t.HandshakeContext(c.server.ctx); err != nil {
			c.server.counters.protocolErrors.Add(1)
			return
		}
		_ = t.SetDeadline(time.Time{})
	}
	for !c.closing && c.stream.fails == nil {
		if err := c.next(); err != nil {
			c.failed(err)
			break
		}
	}
	c.stream.flush()
	if c.broken {
		c.linger()
	}
	if errors.Is(c.stream.fails, errStalled) {
		c.server.counters.stalled.Add(1)
	}
}

// failed counts the reason for the connection's end. It also tells a client that it broke the
// protocol.
func (c *conn) failed(err error) {
	var protocol protocolError
	switch {
	case errors.As(err, &protocol):
		c.server.counters.protocolErrors.Add(1)
		c.broken = true
		c.fail("ERR " + protocol.Error())
	case errors.Is(err, errStalled):
		c.server.counters.stalled.Add(1)
	}
}

func (c *conn) end() {
	c.finish()
	c.queue.drop(c.server)
	c.stream.release()
	_ = c.stream.conn.Close()
}

// next reads one command and executes it. It writes the replies before it waits for more bytes.
func (c *conn) next() error {
	s := c.stream
	for {
		b := s.buffered()
		args, consumed, err := c.limits.command(b, c.args[:0])
		c.args = args
		switch {
		case err != nil:
			return err
		case consumed > 0:
			s.began(false)
			s.r += consumed
			c.execute()
			return nil
		case len(b) > 0 && b[0] == '*' && c.isLarge(b):
			s.began(true)
			err := c.readLarge()
			s.began(false)
			return err
		}
		if len(b) > 0 && !s.midCommand {
			s.began(true)
		}
		s.flush()
		if s.fails != nil {
			return nil
		}
		if err := s.fill(); err != nil {
			return err
		}
	}
}

// execute runs the command in args.
func (c *conn) execute() {
	if len(c.args) == 0 {
		return
	}
	c.server.counters.commands.Add(1)
	switch refused := c.admit(c.args[0], len(c.args)); {
	case refused == unknownCommand && isHTTP(c.args[0]):
		c.cross()
	case refused == unknownCommand:
		c.refuse(unknownText(c.args))
	case refused != "":
		c.refuse(refused)
	case c.queue.open && c.command.flags&immediate == 0:
		c.enqueue()
	default:
		c.command.run(c)
	}
	c.finish()
}

// refuse replies with an error instead of running the command. An open transaction is spoiled.
func (c *conn) refuse(text string) {
	c.queue.spoiled = c.queue.open
	c.fail(text)
}

// finish frees the drafts and the memory of a command.
func (c *conn) finish() {
	for _, v := range c.values {
		v.draft.Abort()
	}
	clear(c.values)
	c.values = c.values[:0]
	if cap(c.args) > 1024 {
		c.args = nil
	}
	if cap(c.addrs) > 1024 {
		c.keys, c.addrs, c.infos = nil, nil, nil
	}
	c.kept.drop()
}

const unknownCommand = "unknown"

// admit finds the command called name. refused says why this client may not run it with n
// arguments, the name included.
func (c *conn) admit(name []byte, n int) (refused string) {
	var lower [24]byte
	if len(name) > len(lower) {
		return unknownCommand
	}
	for i, b := range name {
		if b >= 'A' && b <= 'Z' {
			b |= 0x20
		}
		lower[i] = b
	}
	found, ok := commands[string(lower[:len(name)])]
	switch {
	case !ok:
		return unknownCommand
	case found.arity >= 0 && n != found.arity, n < -found.arity:
		return "ERR wrong number of arguments for '" + found.name + "' command"
	case !c.authed() && found.flags&noAuth == 0:
		c.refuses(reasonNone, errNoAuth, "")
		return errNoAuth
	case c.user != nil && c.user.ReadOnly && found.flags&write != 0:
		return c.notPermitted(found)
	}
	c.command = found
	return ""
}

// unknownText returns redis' error for an unknown command.
func unknownText(args [][]byte) string {
	text := fmt.Sprintf("ERR unknown command '%.128s', with args beginning with: ", args[0])
	begin := len(text)
	for _, a := range args[1:] {
		if room := 128 - (len(text) - begin); room > 0 {
			text += "'" + string(a[:min(len(a), room)]) + "' "
		}
	}
	return text
}
