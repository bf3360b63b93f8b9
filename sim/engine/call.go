package engine

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

// call is one request on its way through the engine.
type call struct {
	*Engine
	core  *core
	rank  *rank // computes the request; nil for an endpoint that runs no model
	w     http.ResponseWriter
	r     *http.Request
	body  []byte
	fault Fault
	clear <-chan struct{} // closed when the engine's fault changes
	id    string          // of the answer; "" until a completion API has chosen it
	out   []byte          // stream bytes not yet written
	sse   bool            // the head of a stream has been sent
}

// endpoint serves one path. An error other than *apiError cuts the connection.
type endpoint func(c *call) error

// apiError is an answer in the engine's error format.
type apiError struct {
	status  int
	kind    string
	message string
	param   string
}

func (e *apiError) Error() string { return e.message }

func badRequest(message, param string) *apiError {
	return &apiError{http.StatusBadRequest, "BadRequestError", message, param}
}

func notFound(message, param string) *apiError {
	return &apiError{http.StatusNotFound, "NotFoundError", message, param}
}

// These errors end a connection without an answer, or in the middle of one.
var (
	errGone = errors.New("engine: client left")
	errCut  = errors.New("engine: connection cut")
)

// handler wraps an endpoint with the reading of the body, faults, errors and accounting. runsModel
// says that faults without a path apply to the endpoint.
func (e *Engine) handler(f endpoint, runsModel bool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		c := &call{Engine: e, core: e.core(), w: w, r: r}
		e.traffic.enter()
		err := c.serve(f, runsModel)
		e.traffic.leave(errors.Is(err, errGone))
		c.end(err)
		if crash := time.Duration(c.fault.Crash); crash > 0 && err == nil {
			_ = c.flush() // the client may have left
			e.crashFor(crash)
		}
	}
}

func (c *call) serve(f endpoint, runsModel bool) error {
	if c.core == nil {
		return errCut
	}
	if err := c.readBody(); err != nil {
		return err
	}
	c.seen.add(c.r, c.body)
	if err := c.strike(runsModel); err != nil {
		return err
	}
	if err := c.authorize(); err != nil {
		return err
	}
	if runsModel {
		if err := c.chooseRank(); err != nil {
			return err
		}
		defer func() { c.rank.calls.Add(-1) }() // the body may choose another rank
	}
	return f(c)
}

// maxBody bounds a request body; a longer one gets 413.
const maxBody = 256 << 20

func (c *call) readBody() error {
	body, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, maxBody))
	c.body = body
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		return &apiError{http.StatusRequestEntityTooLarge, "BadRequestError", "Request body too large", ""}
	case err != nil:
		return errGone
	}
	return nil
}

func (c *call) authorize() error {
	if c.cfg.APIKey == "" || !strings.HasPrefix(c.r.URL.Path, "/v1/") ||
		c.r.Header.Get("Authorization") == "Bearer "+c.cfg.APIKey {
		return nil
	}
	return &apiError{http.StatusUnauthorized, "", "Unauthorized", ""}
}

// end answers with an error. If no answer is possible it cuts the connection.
func (c *call) end(err error) {
	var refusal *apiError
	switch {
	case err == nil:
	case errors.As(err, &refusal) && c.refuse(refusal) == nil:
	default:
		panic(http.ErrAbortHandler)
	}
}

// refuse writes an error in the format of the path's API, worded as in vLLM.
func (c *call) refuse(e *apiError) error {
	if c.sse {
		return c.refuseLate(e)
	}
	if e.status == http.StatusUnauthorized {
		return c.json(e.status, map[string]string{"error": e.message})
	}
	doc := map[string]any{"error": e.detail()}
	if c.cfg.Connector == ConnectorSGLang || c.cfg.Connector == ConnectorTRTLLM {
		doc = e.detail()
		doc["object"] = "error"
	}
	if strings.HasPrefix(c.r.URL.Path, "/v1/messages") {
		doc = map[string]any{"type": "error", "error": map[string]any{"type": anthropicErrors[e.kind],
			"message": e.message}}
	}
	return c.json(e.status, doc)
}

// refuseLate writes an error as an event of a stream whose head has been sent.
func (c *call) refuseLate(e *apiError) error {
	c.out = append(c.out, "data: "...)
	c.out = appendJSON(c.out, map[string]any{"error": e.detail()})
	c.out = append(c.out, "\n\ndata: [DONE]\n\n"...)
	return c.push()
}

// detail returns the error in the OpenAI API's form.
func (e *apiError) detail() map[string]any {
	detail := map[string]any{"message": e.message, "type": e.kind, "param": nil, "code": e.status}
	if e.param != "" {
		detail["param"] = e.param
	}
	return detail
}

var anthropicErrors = map[string]string{
	"BadRequestError": "invalid_request_error", "NotFoundError": "not_found_error", "InternalServerError": "api_error",
	"RateLimitError": "rate_limit_error", "ServiceUnavailableError": "overloaded_error",
}

// json writes a complete answer.
func (c *call) json(status int, doc any) error {
	body, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	h := c.w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	c.w.WriteHeader(status)
	if c.fault.Truncate {
		_, _ = c.w.Write(body[:len(body)/2])
		_ = c.flush()
		return errCut
	}
	if _, err = c.w.Write(body); err != nil {
		return errGone
	}
	return nil
}

func (c *call) answer(doc any) error { return c.json(http.StatusOK, doc) }

func (c *call) flush() error { return http.NewResponseController(c.w).Flush() }

// named is the field that all requests of the engine's API have in common.
type named struct {
	Model string `json:"model"`
}

func (n *named) model() *string { return &n.Model }

// embedded removes the names of embedded structs from a field's name.
var embedded = strings.NewReplacer("sampling.", "", "named.", "", "bootstrap.", "")

// parsed makes an endpoint of a function that takes the parsed body.
func parsed[Q any, P interface {
	*Q
	model() *string
}](f func(c *call, q *Q) error) endpoint {
	return func(c *call) error {
		q := new(Q)
		err := json.Unmarshal(c.body, q)
		var wrong *json.UnmarshalTypeError
		switch {
		case errors.As(err, &wrong):
			return badRequest("Input should be a valid "+wrong.Type.String(), embedded.Replace(wrong.Field))
		case err != nil:
			return &apiError{http.StatusBadRequest, "Bad Request", "JSON decode error: " + err.Error(), ""}
		}
		model := P(q).model()
		if *model, err = c.model(*model); err != nil {
			return err
		}
		return f(c, q)
	}
}

// model checks that a model is served and returns its name. An empty name means the first model.
func (c *call) model(name string) (string, error) {
	if name == "" {
		return c.cfg.Models[0], nil
	}
	if slices.Contains(c.cfg.Models, name) || c.core.loras.find(name, c.cfg.LazyAdapters) {
		return name, nil
	}
	return "", notFound("The model `"+name+"` does not exist.", "model")
}

// connection is the client's connection, for faults below HTTP.
func (c *call) connection() net.Conn {
	conn, _ := c.r.Context().Value(connKey{}).(net.Conn)
	return conn
}

// wait sleeps for d in wall time, or until the client leaves.
func (c *call) wait(d time.Duration) error {
	ctx, cancel := context.WithTimeout(c.r.Context(), d)
	defer cancel()
	<-ctx.Done()
	if c.r.Context().Err() != nil {
		return errGone
	}
	return nil
}
