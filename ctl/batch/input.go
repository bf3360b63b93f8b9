package batch

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/rights"
)

// Bounds of a file. A request takes some 40 bytes of memory while the file is sent.
const (
	mostRequests = 1 << 20
	mostID       = 1 << 10        // bytes of a custom_id
	mostLine     = 64<<20 + 4<<10 // bytes of a line: the router's largest body by default, and the rest
)

// job is a request of a file.
type job struct {
	line int
	id   string // custom_id
	path string
	body json.RawMessage
}

// digest stands for a custom_id.
type digest [16]byte

func digestOf(id string) (d digest) {
	sum := sha256.Sum256([]byte(id))
	copy(d[:], sum[:])
	return d
}

// input is a file of requests. It is read once to check it, and once to send it.
type input struct {
	f        *os.File
	answered map[digest]bool // by custom_id, whether a former run has the answer
	before   int             // how many are answered
}

// openInput opens and checks a file. The caller closes it.
func openInput(ctx context.Context, name string) (*input, error) {
	f, err := rights.Open(name)
	if err != nil {
		return nil, err
	}
	in := &input{f: f, answered: map[digest]bool{}}
	if err := in.check(ctx); err != nil {
		in.close()
		return nil, err
	}
	return in, nil
}

func (in *input) close() { _ = in.f.Close() }

func (in *input) check(ctx context.Context) error {
	name := in.f.Name()
	info, err := in.f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file; it is read twice, so it cannot be a pipe", name)
	}
	err = in.each(func(j *job) error {
		d := digestOf(j.id)
		if _, twice := in.answered[d]; twice {
			return fmt.Errorf("custom_id %.80q is in a line above too; give each request its own", j.id)
		}
		if len(in.answered) == mostRequests {
			return fmt.Errorf("there are more than %d requests; split the file", mostRequests)
		}
		in.answered[d] = false
		return ctx.Err()
	})
	if err == nil && len(in.answered) == 0 {
		err = fmt.Errorf("%s has no request", name)
	}
	if err != nil && ctx.Err() == nil {
		err = cli.WithHint(err, "nothing was sent; a line is like "+
			`{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"model": "m", ...}}`)
	}
	return err
}

// each reads the file from its beginning and calls fn for each request, until fn returns an error.
// Empty lines are left out. The job's body is valid until fn returns.
func (in *input) each(fn func(*job) error) error {
	if _, err := in.f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	lines := bufio.NewScanner(in.f)
	lines.Buffer(nil, mostLine)
	n := 1
	for ; lines.Scan(); n++ {
		line := lines.Bytes()
		if n == 1 {
			line = bytes.TrimPrefix(line, []byte("\ufeff")) // as some editors begin a file
		}
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		j, err := parseLine(line)
		if err == nil {
			j.line = n
			err = fn(j)
		}
		if err != nil {
			return fmt.Errorf("%s:%d: %w", in.f.Name(), n, err)
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return fmt.Errorf("%s:%d: the line has more than %d bytes", in.f.Name(), n, mostLine)
	}
	return lines.Err()
}

// parseLine reads a request. Members that it does not know are ignored.
func parseLine(line []byte) (*job, error) {
	var l struct {
		CustomID json.RawMessage `json:"custom_id"`
		Method   json.RawMessage `json:"method"`
		URL      json.RawMessage `json:"url"`
		Body     json.RawMessage `json:"body"`
	}
	if err := json.Unmarshal(line, &l); err != nil {
		if _, wrong := errors.AsType[*json.UnmarshalTypeError](err); wrong {
			return nil, errors.New("is no JSON object")
		}
		return nil, fmt.Errorf("is no JSON object: %w", err)
	}
	j := &job{body: l.Body}
	method := ""
	for _, m := range []struct {
		name string
		from json.RawMessage
		into *string
		good func(string) bool
		must string
	}{
		{"custom_id", l.CustomID, &j.id, func(s string) bool { return s != "" && len(s) <= mostID },
			fmt.Sprintf("a text of 1 to %d bytes", mostID)},
		{"method", l.Method, &method, func(s string) bool { return s == "POST" }, `"POST"`},
		{"url", l.URL, &j.path, goodPath, `a path such as "/v1/chat/completions"`},
	} {
		if m.from == nil {
			return nil, fmt.Errorf("%s is missing; it must be %s", m.name, m.must)
		}
		if err := json.Unmarshal(m.from, m.into); err != nil || !m.good(*m.into) {
			return nil, fmt.Errorf("%s is %.80s; it must be %s", m.name, m.from, m.must)
		}
	}
	return j, checkBody(l.Body)
}

// goodPath tells whether a url is a path of the API, without a query or a step upwards.
func goodPath(path string) bool {
	rest, ok := strings.CutPrefix(path, "/v1/")
	return ok && rest != "" && len(path) <= 256 && !strings.Contains(path, "..") &&
		!strings.ContainsFunc(path, func(r rune) bool {
			return r <= ' ' || r > '~' || strings.ContainsRune(`?#%\`, r)
		})
}

// checkBody refuses bodies whose answer is not one JSON object.
func checkBody(body json.RawMessage) error {
	if body == nil {
		return errors.New("body is missing; it must be the request's JSON object")
	}
	var b struct {
		Stream json.RawMessage `json:"stream"`
	}
	if err := json.Unmarshal(body, &b); err != nil || body[0] != '{' {
		return errors.New("body is no JSON object")
	}
	if s := string(b.Stream); s != "" && s != "false" && s != "null" {
		return fmt.Errorf("body.stream is %.20s; leave it out, because an answer is one line", s)
	}
	return nil
}
