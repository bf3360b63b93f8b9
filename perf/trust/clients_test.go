package trust

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// identity is the certificate that a client shows.
type identity int

const (
	none       identity = iota
	own                 // one with a table in the configuration
	foreign             // of another CA
	outdated            // of a CA that has been replaced, with the sessions of that time
	monitoring          // of the role monitor
)

// client is who asks, and what is right to answer.
type client struct {
	kind          string // row of the report
	tenant, model string
	key           func() string // nil: none
	with          identity
	method, path  string // empty: a chat
	admin         bool   // at the admin port
	may           []int  // statuses that are right; none: all but 200 to 299, or no connection
	counted       bool   // its tokens are compared
	stream        bool
	long          bool // a stream of 8 s
	completions   bool // in place of a chat; a prompt then has no more tokens than the router estimates
}

// answer is one request, and what became of it.
type answer struct {
	client             *client
	id                 string
	router             int
	sent, ended        time.Time
	status             int // 0: err
	code               string
	err                error
	prompt, completion int64
	broken             string // error event in a stream
}

func (a *answer) String() string {
	return fmt.Sprintf("%s: %s at router %s: status %d %s %s, %v, after %v", a.id, a.client.kind,
		[]string{"a", "b"}[a.router], a.status, a.code, a.broken, a.err, a.ended.Sub(a.sent).Round(time.Millisecond))
}

var serial atomic.Int64

// connections returns an HTTP client for one client, whose TLS follows all changes.
func (s *site) connections(c *client) *http.Client {
	return &http.Client{Timeout: patience, Transport: &http.Transport{
		DisableKeepAlives: c.with == foreign || c.with == outdated, MaxIdleConnsPerHost: 4,
		DialTLSContext: func(ctx context.Context, network, at string) (net.Conn, error) {
			return (&tls.Dialer{Config: s.wires.dialing(c.with)}).DialContext(ctx, network, at)
		}}}
}

// body returns the body of a request.
func (c *client) body(id string) string {
	words, most := 3+rand.IntN(60), 1+rand.IntN(24)
	if c.long {
		most = 2000
	}
	stream := ""
	if c.stream || c.long {
		stream = `,"stream":true,"stream_options":{"include_usage":true}`
	}
	if c.completions {
		return fmt.Sprintf(`{"model":%q,"max_tokens":%d,"prompt":"%s %s"}`, c.model, most, id,
			strings.Repeat("word ", words))
	}
	return fmt.Sprintf(`{"model":%q,"max_tokens":%d%s,"messages":[{"role":"user","content":"%s %s"}]}`, c.model, most,
		stream, id, strings.Repeat("word ", words))
}

// ask sends one request. began is called with the head of an answer; may be nil.
func (s *site) ask(by *http.Client, router int, c *client, began func()) *answer {
	a := &answer{client: c, router: router, id: fmt.Sprint("soak-", serial.Add(1)), sent: time.Now()}
	at, method, path, body := s.routers[router].at, "POST", "/v1/chat/completions", ""
	if c.path != "" {
		method, path = c.method, c.path
	} else {
		body = c.body(a.id)
	}
	if c.completions {
		path = "/v1/completions"
	}
	if c.admin {
		at = s.routers[router].admin
	}
	req, err := http.NewRequest(method, "https://"+at+path, strings.NewReader(body))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Request-Id", a.id)
	req.Header.Set("X-Cgn-Tenant", "acme") // only a gateway's counts
	if c.key != nil {
		req.Header.Set("Authorization", "Bearer "+c.key())
	}
	resp, err := by.Do(req)
	if err == nil {
		a.status = resp.StatusCode
		if began != nil && a.status == 200 {
			began()
		}
		err = a.read(resp.Body)
		resp.Body.Close()
	}
	a.err, a.ended = err, time.Now()
	return a
}

// read reads the body of an answer.
func (a *answer) read(from io.Reader) error {
	var doc struct {
		Usage struct {
			Prompt     int64 `json:"prompt_tokens"`
			Completion int64 `json:"completion_tokens"`
		}
		Error struct{ Code string }
	}
	whole := false
	if streams := a.client.stream || a.client.long; !streams || a.status != 200 {
		page, err := io.ReadAll(from)
		if err != nil {
			return err
		}
		_ = json.Unmarshal(page, &doc) // not all pages are JSON
		whole = true
	} else {
		lines := bufio.NewScanner(from)
		for lines.Scan() {
			text, is := strings.CutPrefix(lines.Text(), "data: ")
			whole = whole || is && text == "[DONE]"
			if is {
				_ = json.Unmarshal([]byte(text), &doc)
			}
			if doc.Error.Code != "" {
				a.broken, whole = doc.Error.Code, true
			}
		}
		if err := lines.Err(); err != nil {
			return err
		}
	}
	a.code, a.prompt, a.completion = doc.Error.Code, doc.Usage.Prompt, doc.Usage.Completion
	if !whole {
		return fmt.Errorf("the stream is cut")
	}
	if a.client.counted && a.status == 200 && a.prompt == 0 {
		return fmt.Errorf("the answer has no usage")
	}
	return nil
}

// unavailable says whether an answer says that Redis is away, and the setting is closed. Whether it
// was is judged at the end.
func (s *site) unavailable(a *answer) bool {
	is := s.on == "closed" && a.status == 503 && a.code == "limits_unavailable"
	if is {
		s.books.unavailable(a)
	}
	return is
}

// judge records an answer, and complains of a wrong one.
func (s *site) judge(a *answer) {
	c, rule := a.client, ""
	switch {
	case c.may == nil && (a.status == 0 || a.status >= 300):
	case c.may == nil:
		rule = "let in"
	case a.err == nil && a.broken == "" && slices.Contains(c.may, a.status):
	case a.err == nil && c.key != nil && s.unavailable(a), a.err == nil && c.with == own && s.unavailable(a):
	case slices.Contains(c.may, 200):
		rule = "refused"
	default:
		rule = "let in, or refused for another reason"
	}
	s.books.enter(a)
	if rule != "" {
		s.books.broken("%s: %v; right is %v", rule, a, c.may)
	}
}

// keepAsking has a client ask until ctx ends.
func (s *site) keepAsking(ctx context.Context, router int, c *client, every time.Duration) {
	by := s.connections(c)
	defer by.CloseIdleConnections()
	for pause(ctx, every/2+rand.N(every)) {
		if rand.IntN(8) == 0 {
			by.CloseIdleConnections()
		}
		if !c.counted {
			s.judge(s.ask(by, router, c, nil))
			continue
		}
		s.gate.RLock()
		s.judge(s.ask(by, router, c, nil))
		s.gate.RUnlock()
	}
}
