package instant

import (
	"bufio"
	"bytes"
	"errors"
)

// edge is how much of a body's beginning and end is parsed.
const edge = 1 << 10

// defaultTokens is the length of an answer without max_tokens.
const defaultTokens = 16

// request holds the parts of a request that the engine uses.
type request struct {
	chat       bool   // asks for a chat completion
	path       string // of another request
	stream     bool
	usage      bool // include_usage
	ids        bool // return_token_ids
	hang, step int  // 1: yes
	tokens     int
	pace       int // µs
	prompt     int
	cached     int
	close      bool
	bytes      int // of the body

	head, tail [edge]byte // the body's beginning and end
}

var errRequest = errors.New("instant: not a request")

// read reads the next request from r. buf is for the pieces of its body.
func (q *request) read(r *bufio.Reader, buf []byte) error {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return err
	}
	method, rest, ok := bytes.Cut(line, []byte(" "))
	path, proto, ok2 := bytes.Cut(rest, []byte(" "))
	if !ok || !ok2 || !bytes.HasPrefix(proto, []byte("HTTP/1.")) {
		return errRequest
	}
	*q = request{chat: string(method) == "POST" && string(path) == chatPath, tokens: defaultTokens}
	if !q.chat {
		q.path = string(path)
	}
	f := Framing{Close: bytes.HasPrefix(proto, []byte("HTTP/1.0"))}
	if err := f.ReadFields(r); err != nil {
		return err
	}
	q.close = f.Close
	w := window{q: q}
	if err := f.Each(r, buf, w.add); err != nil {
		return err
	}
	q.understand(w.total)
	q.bytes = w.total
	return nil
}

// window keeps the first and the last edge bytes of a body.
type window struct {
	q     *request
	total int
}

// add takes the next piece of the body.
func (w *window) add(b []byte) error {
	if w.total < edge {
		copy(w.q.head[w.total:], b)
	}
	last := b[max(0, len(b)-edge):]
	copy(w.q.tail[:], w.q.tail[len(last):])
	copy(w.q.tail[edge-len(last):], last)
	w.total += len(b)
	return nil
}

// understand parses the fields of a body of n bytes.
func (q *request) understand(n int) {
	q.fields(q.head[:min(n, edge)])
	if n > edge {
		q.fields(q.tail[:])
	}
}

func (q *request) fields(b []byte) {
	q.stream = q.stream || bytes.Contains(b, []byte(`"stream":true`)) || bytes.Contains(b, []byte(`"stream": true`))
	q.usage = q.usage || bytes.Contains(b, []byte(`"include_usage":true`)) ||
		bytes.Contains(b, []byte(`"include_usage": true`))
	q.ids = q.ids || bytes.Contains(b, []byte(`"return_token_ids":true`))
	for _, name := range []string{`"max_tokens":`, `"max_completion_tokens":`} {
		if n, ok := number(b, name); ok {
			q.tokens = n
		}
	}
	_, wish, ok := bytes.Cut(b, []byte("instant: "))
	if !ok {
		return
	}
	for _, field := range []struct {
		name string
		into *int
	}{{"pace=", &q.pace}, {"prompt=", &q.prompt}, {"cached=", &q.cached}, {"hang=", &q.hang}, {"step=", &q.step}} {
		if n, ok := number(wish, field.name); ok {
			*field.into = n
		}
	}
}

// number returns the decimal number after name in b.
func number(b []byte, name string) (n int, ok bool) {
	i := bytes.Index(b, []byte(name))
	if i < 0 {
		return 0, false
	}
	for _, c := range bytes.TrimLeft(b[i+len(name):], " ") {
		if c < '0' || c > '9' || n > 1<<40 {
			break
		}
		n, ok = n*10+int(c-'0'), true
	}
	return n, ok
}
