package resp

import (
	"bytes"
	"errors"
	"fmt"
)

// streamMin is the least length of a value that goes from the socket straight into the arena. A
// value that is already in the buffer is copied from there.
const streamMin = 1 << 10

// tooMuch is the refusal of arguments that would take too much memory.
type tooMuch string

func (e tooMuch) Error() string { return string(e) }

// tooLong refuses the arguments of one command alone. tooBusy refuses them because of the arguments
// of all commands in progress.
func (o *Options) tooLong() tooMuch {
	return tooMuch(fmt.Sprintf("ERR the command's arguments, long values aside, have more than %d bytes, the most "+
		"that one command may have", o.maxQuery))
}

func (o *Options) tooBusy() tooMuch {
	return tooMuch(fmt.Sprintf("ERR the arguments of all commands in progress would have more than %d bytes; try "+
		"again when some have ended", o.maxBuffered))
}

// isLarge tells whether the incomplete command at the head of b must be read argument by argument.
// Other commands wait in the buffer until they are complete.
func (c *conn) isLarge(b []byte) bool {
	if len(b) == bufferSize {
		return true
	}
	count, at, err := c.limits.multibulk(b)
	if err != nil || at == 0 {
		return false
	}
	for range count {
		n, length, err := c.limits.bulkLine(b[at:])
		if err != nil || length == 0 {
			return false
		}
		if at += length; len(b)-at < n+len(crlf) {
			return n >= streamMin
		}
		at += n + len(crlf)
	}
	return false
}

// readLarge reads a command argument by argument and executes it. Values go to drafts, other
// arguments to memory of the connection. A refused command is still read to its end.
func (c *conn) readLarge() error {
	count, err := c.line(c.limits.multibulk)
	if err != nil {
		return err
	}
	c.args = c.args[:0]
	refused, total := "", int64(0)
	if !c.kept.claim(count * argSize) {
		refused = string(c.server.o.tooBusy())
	}
	for i := range count {
		n, err := c.line(c.limits.bulkLine)
		if err != nil {
			return err
		}
		total += int64(n)
		isValue := refused == "" && i > 0 && n >= streamMin && c.command.isValue(i, count)
		switch {
		case i == 0:
			if err = c.keepArg(n, maxName); err == nil && refused == "" {
				refused = c.admit(c.args[0], count)
			}
		case isValue && total > c.server.o.maxCommand:
			refused, err = fmt.Sprintf("ERR the command's values have more than %d bytes together, the most that one "+
				"command may have", c.server.o.maxCommand), c.skip(n)
		case isValue:
			refused, err = c.readValue(i, n)
		case refused == unknownCommand:
			err = c.keepArg(n, maxName)
		case refused != "":
			err = c.skip(n)
		default:
			err = c.keepArg(n, c.server.o.maxQuery)
		}
		var much tooMuch
		if errors.As(err, &much) {
			refused, err = string(much), nil
		}
		if err != nil {
			return err
		}
	}
	if refused == "" || refused == unknownCommand {
		c.execute()
		return nil
	}
	c.server.counters.commands.Add(1)
	c.refuse(refused)
	c.finish()
	return nil
}

// maxName is the number of bytes that are kept of a command's name, and of each argument of an
// unknown command.
const maxName = 128

// line reads a line and returns its number, which parse finds.
func (c *conn) line(parse func([]byte) (v, length int, err error)) (int, error) {
	for {
		v, length, err := parse(c.stream.buffered())
		if err != nil {
			return 0, err
		}
		if length > 0 {
			c.stream.r += length
			return v, nil
		}
		if err := c.stream.fill(); err != nil {
			return 0, err
		}
	}
}

// skip reads n bytes and CRLF, and drops them.
func (c *conn) skip(n int) error {
	for n > 0 {
		if b := c.stream.buffered(); len(b) > 0 {
			m := min(n, len(b))
			c.stream.r += m
			n -= m
		} else if err := c.stream.fill(); err != nil {
			return err
		}
	}
	return c.bulkEnd()
}

// bulkEnd reads the CRLF after an argument.
func (c *conn) bulkEnd() error {
	for {
		b := c.stream.buffered()
		if len(b) >= len(crlf) {
			if !bytes.HasPrefix(b, crlf) {
				return errBulkEnd
			}
			c.stream.r += len(crlf)
			return nil
		}
		if err := c.stream.fill(); err != nil {
			return err
		}
	}
}

// keepArg reads an argument of n bytes and appends it to args. If limit is maxName, it keeps only
// the first maxName bytes. Beyond the bounds of memory it drops the argument and returns tooMuch.
func (c *conn) keepArg(n, limit int) error {
	kept := n
	if limit == maxName {
		kept = min(n, limit)
	}
	arg, refused := c.kept.room(kept)
	if refused != "" {
		if err := c.skip(n); err != nil {
			return err
		}
		return refused
	}
	c.args = append(c.args, arg)
	if err := c.stream.readFull(arg, func(int) {}); err != nil {
		return err
	}
	return c.skip(n - kept)
}

// readValue reads argument i, a value of n bytes, into a draft for its key.
func (c *conn) readValue(i, n int) (refused string, err error) {
	k, refused := c.resolve(c.args[c.command.keyOf(i)])
	if refused != "" {
		return refused, c.skip(n)
	}
	draft, err := c.server.o.Store.Create(c.server.ctx, k.item(), n)
	if err != nil {
		return c.storeError(err), c.skip(n)
	}
	c.args = append(c.args, nil)
	c.values = append(c.values, value{i, draft})
	if err = c.stream.readFull(draft.Bytes()[:n], draft.Filled); err == nil {
		err = c.bulkEnd()
	}
	if err != nil {
		c.server.counters.aborted.Add(1) // finish gives the draft back
	}
	return "", err
}

// keeper is memory for arguments that outlive the stream's buffer.
type keeper struct {
	server *Server
	first  *[chunkSize]byte // of inputs; nil: nothing is kept
	chunk  []byte
	bytes  int // of all chunks
	taken  int // counted in server.buffered
}

const (
	chunkSize = bufferSize
	argSize   = 256 // bytes that an argument takes in args, keys, addrs and infos
)

// room returns n bytes that are valid until drop. It refuses them if this command would have more
// than maxQuery, or all commands more than maxBuffered.
func (k *keeper) room(n int) (_ []byte, refused tooMuch) {
	if n > cap(k.chunk)-len(k.chunk) {
		size := max(n, chunkSize)
		if k.bytes+size > k.server.o.maxQuery+chunkSize {
			return nil, k.server.o.tooLong()
		}
		if !k.claim(size) {
			return nil, k.server.o.tooBusy()
		}
		k.bytes += size
		if k.first == nil && size == chunkSize {
			k.first = inputs.Get().(*[chunkSize]byte)
			k.chunk = k.first[:0]
		} else {
			k.chunk = make([]byte, 0, size)
		}
	}
	at := len(k.chunk)
	k.chunk = k.chunk[:at+n]
	return k.chunk[at : at+n : at+n], ""
}

// claim counts n bytes until drop. It returns false if all commands together would have more than
// maxBuffered.
func (k *keeper) claim(n int) bool {
	if k.server.buffered.Add(int64(n)) > k.server.o.maxBuffered {
		k.server.buffered.Add(-int64(n))
		return false
	}
	k.taken += n
	return true
}

// drop frees the memory.
func (k *keeper) drop() {
	if k.first != nil {
		inputs.Put(k.first)
		k.first = nil
	}
	if k.taken > 0 {
		k.server.buffered.Add(-int64(k.taken))
		k.taken, k.bytes, k.chunk = 0, 0, nil
	}
}
