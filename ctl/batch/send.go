package batch

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	random "math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/cognitora/dataplane/ctl/cli"
)

// lowestPriority is the least value of x-dynamo-request-priority.
const lowestPriority = "-2147483648"

// mostAnswer bounds an answer, in bytes.
const mostAnswer = 64 << 20

// Bounds of trying again.
const (
	fewTries   = 3 // of a request that may itself be the cause of its failure
	firstPause = 500 * time.Millisecond
	mostPause  = 30 * time.Second // without a Retry-After
)

// greetTime is how long the check before the first request may take.
const greetTime = 10 * time.Second

// sender sends requests to one endpoint. Any goroutine may use it.
type sender struct {
	client            *http.Client
	url, key          string
	timeout, patience time.Duration
	retrying          func(change int) // counts the requests that wait to be tried again
}

func newSender(url, key string, o *options) *sender {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConns, t.MaxIdleConnsPerHost = o.concurrency, o.concurrency
	// a redirected request would take the key elsewhere
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &sender{
		client: &http.Client{Transport: t, CheckRedirect: stay}, url: url, key: key, timeout: o.timeout,
		patience: o.patience, retrying: func(int) {},
	}
}

// attempt is the outcome of sending a request once: an answer, or err.
type attempt struct {
	status int
	header http.Header
	body   []byte
	err    error
}

var errTooLarge = fmt.Errorf("the answer has more than %d bytes", mostAnswer)

func (s *sender) ask(ctx context.Context, method, path string, body []byte) (a attempt) {
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, bytes.NewReader(body))
	if err != nil {
		return attempt{err: err}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("X-Dynamo-Request-Priority", lowestPriority)
	if s.key != "" {
		req.Header.Set("Authorization", "Bearer "+s.key)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return attempt{err: err}
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(io.LimitReader(resp.Body, mostAnswer+1))
	if err == nil && len(page) > mostAnswer {
		err = errTooLarge
	}
	return attempt{resp.StatusCode, resp.Header, page, err}
}

// greet returns an error if nothing listens at the endpoint, or if it refuses the key.
func (s *sender) greet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, greetTime)
	defer cancel()
	a := s.ask(ctx, http.MethodGet, "/v1/models", nil)
	if a.err != nil {
		return cli.WithHint(fmt.Errorf("nothing was sent: %w", a.err),
			"is something serving at "+s.url+"? Give its address with --url")
	}
	if a.status == http.StatusUnauthorized {
		return refusedKey(&a)
	}
	return nil
}

func refusedKey(a *attempt) error {
	return cli.WithHint(fmt.Errorf("the endpoint refuses the API key: %s", a.message()),
		"give a valid one with "+keyVariable+" or --api-key-file; the same command goes on then")
}

// message returns the text of an error that the endpoint answers.
func (a *attempt) message() string {
	var doc struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	if json.Unmarshal(a.body, &doc) == nil && doc.Error.Message != "" {
		return doc.Error.Message
	}
	return fmt.Sprintf("status %d: %.200q", a.status, a.body)
}

// errStopped means that a request got no answer because the run ends.
var errStopped = errors.New("stopped")

// send sends a request until it has an answer that counts. It begins no try once ending is over. An
// error is errStopped or about the whole run.
func (s *sender) send(ctx, ending context.Context, j *job) (*record, error) {
	begun := time.Now()
	for try := 1; ending.Err() == nil; try++ {
		one, cancel := context.WithTimeout(ctx, s.timeout)
		a := s.ask(one, http.MethodPost, j.path, j.body)
		cancel()
		if ctx.Err() != nil {
			return nil, errStopped
		}
		if a.err == nil && a.status == http.StatusUnauthorized {
			return nil, refusedKey(&a)
		}
		pause := a.pause(try)
		if !a.again(try) || a.overloaded() && time.Since(begun)+pause > s.patience {
			return a.record(j), nil
		}
		s.wait(ending, pause)
	}
	return nil, errStopped
}

func (s *sender) wait(ending context.Context, pause time.Duration) {
	s.retrying(1)
	defer s.retrying(-1)
	t := time.NewTimer(pause)
	defer t.Stop()
	select {
	case <-ending.Done():
	case <-t.C:
	}
}

// overloaded tells whether the request was not begun: there was no room, or no connection.
func (a *attempt) overloaded() bool {
	if op, ok := errors.AsType[*net.OpError](a.err); ok {
		return op.Op == "dial"
	}
	return a.err == nil && (a.status == http.StatusTooManyRequests || a.status == http.StatusServiceUnavailable)
}

// again tells whether the request may be sent again after this many tries. Time does not matter.
func (a *attempt) again(try int) bool {
	if a.err == nil && a.header.Get("x-should-retry") == "false" {
		return false
	}
	if a.overloaded() {
		return true
	}
	if a.err != nil {
		return !errors.Is(a.err, errTooLarge) && try < fewTries
	}
	switch a.status {
	case http.StatusRequestTimeout, http.StatusInternalServerError, http.StatusBadGateway, http.StatusGatewayTimeout:
		return try < fewTries
	}
	return false
}

// pause returns the time until the next try: doubled each time, by chance half of it or more, and
// never less than the endpoint asks for.
func (a *attempt) pause(try int) time.Duration {
	d := mostPause
	if try < 10 {
		d = min(d, firstPause<<(try-1))
	}
	d = d/2 + random.N(d/2)
	if a.header == nil {
		return d
	}
	return max(d, retryAfter(a.header, time.Now()))
}

// retryAfter returns how long the endpoint asks to wait; 0 if it does not ask.
func retryAfter(h http.Header, now time.Time) time.Duration {
	const most = 1e9 // seconds, so that no duration overflows
	if ms, err := strconv.ParseFloat(h.Get("retry-after-ms"), 64); err == nil && ms >= 0 && ms <= most*1e3 {
		return time.Duration(ms * float64(time.Millisecond))
	}
	text := h.Get("retry-after")
	if s, err := strconv.ParseFloat(text, 64); err == nil && s >= 0 && s <= most {
		return time.Duration(s * float64(time.Second))
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(at.Sub(now), 0)
	}
	return 0
}

// record returns the line of the output file for an answer that counts.
func (a *attempt) record(j *job) *record {
	r := &record{ID: recordID + rand.Text(), CustomID: j.id}
	switch {
	case a.err != nil:
		r.Error = &failure{"no_answer", a.err.Error()}
		return r
	case a.status/100 == 2 && !json.Valid(a.body):
		text := fmt.Sprintf("status %d, but the answer is no JSON: %.200q", a.status, a.body)
		r.Error = &failure{"invalid_answer", text}
		return r
	}
	r.Response = &response{a.status, a.header.Get("x-request-id"), a.body}
	if !json.Valid(a.body) { // such as a proxy's page
		text, _ := json.Marshal(string(a.body)) // a text can always be written
		r.Response.Body = text
	}
	return r
}
