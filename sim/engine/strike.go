package engine

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"
)

// SetFault sets the engine's own fault, or clears it with nil. SetFault cuts requests that hang or
// stall because of the old fault.
func (e *Engine) SetFault(f *Fault) { e.faults.replace(f) }

// strike finds the request's fault and applies its part before the answer.
func (c *call) strike(runsModel bool) error {
	var asked *Fault
	if header := c.r.Header.Get("X-Sim-Fault"); header != "" && runsModel {
		f, err := ParseFault(header)
		if err != nil {
			return badRequest(err.Error(), "x-sim-fault")
		}
		asked = &f
	}
	c.fault, c.clear = c.faults.strike(c.r.URL.Path, runsModel, asked, c.leg)
	f := c.fault
	if f.Slow > 0 {
		if err := c.wait(time.Duration(f.Slow)); err != nil {
			return err
		}
	}
	switch {
	case f.Hang:
		return c.park()
	case f.Reset:
		return c.cut()
	case f.Garbage:
		return c.garbage()
	case f.HangBody:
		c.head("text/event-stream; charset=utf-8")
		return c.park()
	case f.Status != 0:
		return c.status(f)
	}
	return c.rejectOptions()
}

// rejectOptions answers like an engine without stream_options.
func (c *call) rejectOptions() error {
	if !c.fault.NoStreamOptions && !c.cfg.RejectStreamOptions {
		return nil
	}
	var body struct {
		StreamOptions json.RawMessage `json:"stream_options"`
	}
	if json.Unmarshal(c.body, &body) != nil || len(body.StreamOptions) == 0 {
		return nil
	}
	return badRequest("[{'type': 'extra_forbidden', 'loc': ('body', 'stream_options'), "+
		"'msg': 'Extra inputs are not permitted'}]", "stream_options")
}

func (c *call) status(f Fault) error {
	if f.RetryAfter > 0 {
		c.w.Header().Set("Retry-After", strconv.Itoa(f.RetryAfter))
	}
	kind := "BadRequestError"
	switch {
	case f.Status == http.StatusTooManyRequests:
		kind = "RateLimitError"
	case f.Status == http.StatusServiceUnavailable:
		kind = "ServiceUnavailableError"
	case f.Status >= 500:
		kind = "InternalServerError"
	}
	return &apiError{f.Status, kind, "fault on demand", ""}
}

// park holds the request until the client leaves, the fault ends or the engine closes.
func (c *call) park() error {
	select {
	case <-c.r.Context().Done():
		return errGone
	case <-c.clear:
		return c.cut()
	case <-c.quit:
		return errCut
	}
}

// cut ends the connection with a reset, or with FIN if close is fin.
func (c *call) cut() error {
	if c.fault.Close != "fin" {
		resetOnClose(c.connection())
	}
	return errCut
}

// garbage answers with bytes that are not HTTP.
func (c *call) garbage() error {
	_, _ = c.connection().Write([]byte("\x16\x03\x01garbage in place of an answer\r\n\r\n"))
	return errCut
}
