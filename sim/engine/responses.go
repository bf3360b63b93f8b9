package engine

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"
)

type responsesRequest struct {
	named
	Input        json.RawMessage `json:"input"`
	Instructions *string         `json:"instructions"`
	MaxOutput    *int            `json:"max_output_tokens"`
	Stream       bool            `json:"stream"`
	Store        *bool           `json:"store"`
	Previous     *string         `json:"previous_response_id"`
	Tools        json.RawMessage `json:"tools"`
	ToolChoice   json.RawMessage `json:"tool_choice"`
	Metadata     json.RawMessage `json:"metadata"`
	CacheSalt    string          `json:"cache_salt"`
}

// responses keeps answers for GET and for previous_response_id.
type responses struct {
	mu    sync.Mutex
	limit int
	order []string // oldest first
	byID  map[string]stored
}

type stored struct {
	doc      response
	messages []message // the conversation, the answer included
}

func newResponses(limit int) *responses {
	return &responses{limit: limit, byID: make(map[string]stored)}
}

func (s *responses) put(r stored) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.order) == s.limit {
		delete(s.byID, s.order[0])
		s.order = slices.Delete(s.order, 0, 1)
	}
	s.order = append(s.order, r.doc.ID)
	s.byID[r.doc.ID] = r
}

func (s *responses) get(id string) (stored, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.byID[id]
	if !ok {
		return stored{}, notFound(fmt.Sprintf("Response with id '%s' not found.", id), "response_id")
	}
	return r, nil
}

func (s *responses) remove(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byID, id)
	s.order = slices.DeleteFunc(s.order, func(o string) bool { return o == id })
}

func getResponse(c *call) error {
	r, err := c.core.stored.get(c.r.PathValue("id"))
	if err != nil {
		return err
	}
	return c.answer(r.doc)
}

func deleteResponse(c *call) error {
	id := c.r.PathValue("id")
	if _, err := c.core.stored.get(id); err != nil {
		return err
	}
	c.core.stored.remove(id)
	return c.answer(map[string]any{"id": id, "object": "response", "deleted": true})
}

func createResponse(c *call, q *responsesRequest) error {
	d, err := c.responsesDialogue(q)
	if err != nil {
		return err
	}
	a := &responsesAnswer{call: c, q: q, d: d}
	if a.g, a.tool, err = c.begin(d); err != nil {
		return err
	}
	a.doc = c.newResponse(q, d.Model)
	if q.Stream {
		return a.stream()
	}
	if err := c.follow(a.g, quiet); err != nil {
		return err
	}
	a.finish()
	return c.answer(a.doc)
}

func (c *call) responsesDialogue(q *responsesRequest) (*dialogue, error) {
	d := &dialogue{tools: q.Tools}
	d.Model, d.MaxTokens, d.Stream, d.CacheSalt = q.Model, q.MaxOutput, q.Stream, q.CacheSalt
	if q.Instructions != nil {
		d.system = &message{Role: "system", Content: content(*q.Instructions)}
	}
	if q.Previous != nil {
		before, err := c.core.stored.get(*q.Previous)
		if err != nil {
			return nil, err
		}
		d.messages = append(d.messages, before.messages...)
	}
	items, err := inputItems(q.Input)
	if err != nil {
		return nil, err
	}
	d.messages = append(d.messages, items...)
	if d.specs, err = flatTools(q.Tools); err != nil {
		return nil, err
	}
	var named flatTool
	if json.Unmarshal(q.ToolChoice, &d.choice) != nil && json.Unmarshal(q.ToolChoice, &named) == nil {
		d.choice = named.Name
	}
	return d, nil
}

// inputItems reads the input: a string, or a list of messages, tool calls and
// their outputs.
func inputItems(doc json.RawMessage) ([]message, error) {
	var text string
	if json.Unmarshal(doc, &text) == nil && len(doc) > 0 {
		return []message{{Role: "user", Content: content(text)}}, nil
	}
	var items []struct {
		message
		Type      string  `json:"type"`
		Arguments string  `json:"arguments"`
		Output    content `json:"output"`
	}
	if json.Unmarshal(doc, &items) != nil || len(items) == 0 {
		return nil, badRequest("[{'type': 'missing', 'loc': ('body', 'input'), 'msg': 'Field required'}]", "input")
	}
	messages := make([]message, 0, len(items))
	for _, i := range items {
		m := i.message
		switch i.Type {
		case "function_call":
			m = message{Role: "assistant", Content: content(i.Arguments)}
		case "function_call_output":
			m = message{Role: "tool", Content: i.Output}
		}
		messages = append(messages, m)
	}
	return messages, nil
}

// response is the Responses API's answer.
type response struct {
	ID           string            `json:"id"`
	Object       string            `json:"object"`
	CreatedAt    int64             `json:"created_at"`
	Status       string            `json:"status"`
	Background   bool              `json:"background"`
	Error        *struct{}         `json:"error"`
	Incomplete   map[string]string `json:"incomplete_details"`
	Instructions *string           `json:"instructions"`
	MaxOutput    *int              `json:"max_output_tokens"`
	Model        string            `json:"model"`
	Output       []any             `json:"output"`
	Parallel     bool              `json:"parallel_tool_calls"`
	Previous     *string           `json:"previous_response_id"`
	Metadata     json.RawMessage   `json:"metadata"`
	Temperature  float64           `json:"temperature"`
	TopP         float64           `json:"top_p"`
	ToolChoice   json.RawMessage   `json:"tool_choice"`
	Tools        json.RawMessage   `json:"tools"`
	Truncation   string            `json:"truncation"`
	Usage        *responsesUsage   `json:"usage"`
}

type responsesUsage struct {
	Input        int            `json:"input_tokens"`
	InputDetails *cachedDetails `json:"input_tokens_details,omitempty"`
	Output       int            `json:"output_tokens"`
	OutputDetail struct {
		Reasoning int `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
	Total int `json:"total_tokens"`
}

type cachedDetails struct {
	Cached int `json:"cached_tokens"`
}

func (c *call) newResponse(q *responsesRequest, model string) response {
	return response{
		ID: c.newID("resp_"), Object: "response", CreatedAt: time.Now().Unix(), Status: "in_progress",
		Instructions: q.Instructions, MaxOutput: q.MaxOutput, Model: model, Output: []any{}, Parallel: true,
		Previous: q.Previous, Metadata: orElse(q.Metadata, "null"), Temperature: 1, TopP: 1,
		ToolChoice: orElse(q.ToolChoice, `"auto"`), Tools: orElse(q.Tools, "[]"), Truncation: "disabled",
	}
}

func orElse(doc json.RawMessage, other string) json.RawMessage {
	if len(doc) == 0 {
		return json.RawMessage(other)
	}
	return doc
}

// responsesAnswer writes one response.
type responsesAnswer struct {
	*call
	q      *responsesRequest
	d      *dialogue
	g      *generation
	tool   *toolCall
	doc    response
	itemID string
	events int // events sent so far; the next sequence number
}

// finish completes the document and stores it.
func (a *responsesAnswer) finish() {
	o := &a.g.seqs[0].output
	a.doc.Status = "completed"
	if o.reason == "length" {
		a.doc.Status, a.doc.Incomplete = "incomplete", map[string]string{"reason": "max_output_tokens"}
	}
	if a.itemID == "" {
		a.itemID = a.newID(a.idPrefix())
	}
	a.doc.Output = []any{a.item(a.doc.Status, o.whole())}
	u := a.usage(a.g)
	a.doc.Usage = &responsesUsage{Input: u.Prompt, Output: u.Completion, Total: u.Total}
	if u.Details != nil {
		a.doc.Usage.InputDetails = &cachedDetails{u.Details.Cached}
	}
	if a.q.Store == nil || *a.q.Store {
		said := message{Role: "assistant", Content: content(o.whole())}
		a.core.stored.put(stored{a.doc, append(slices.Clip(a.d.messages), said)})
	}
}

func (a *responsesAnswer) idPrefix() string {
	if a.tool != nil {
		return "fc_"
	}
	return "msg_"
}

type fields = map[string]any

// item returns the answer's only output item: a message or a function call.
func (a *responsesAnswer) item(status, text string) fields {
	if a.tool != nil {
		return fields{"type": "function_call", "id": a.itemID, "call_id": "call_" + a.itemID[3:], "name": a.tool.name,
			"arguments": text, "status": status}
	}
	parts := []any{}
	if status != "in_progress" {
		parts = append(parts, a.part(text))
	}
	return fields{"type": "message", "id": a.itemID, "role": "assistant", "status": status, "content": parts}
}

func (a *responsesAnswer) part(text string) fields {
	return fields{"type": "output_text", "text": text, "annotations": []any{}, "logprobs": []any{}}
}

// stream sends the typed events of the Responses API, which has no [DONE].
func (a *responsesAnswer) stream() error {
	a.itemID = a.newID(a.idPrefix())
	a.call.stream()
	a.send("response.created", fields{"response": a.doc})
	a.send("response.in_progress", fields{"response": a.doc})
	if err := a.push(); err != nil {
		return err
	}
	if err := a.follow(a.g, a.deltas); err != nil {
		return err
	}
	a.close()
	return a.push()
}

// send appends an event with its type and sequence number.
func (a *responsesAnswer) send(kind string, f fields) {
	f["type"], f["sequence_number"] = kind, a.events
	a.events++
	a.event(kind, f)
}

func (a *responsesAnswer) deltas(_, from, to int, _ bool) {
	o := &a.g.seqs[0].output
	if from == 0 {
		a.send("response.output_item.added", fields{"output_index": 0, "item": a.item("in_progress", "")})
		if a.tool == nil {
			a.send("response.content_part.added", a.inPart(fields{"part": a.part("")}))
		}
	}
	kind, middle := "response.output_text.delta", `"content_index":0,"logprobs":[],`
	if a.tool != nil {
		kind, middle = "response.function_call_arguments.delta", ""
	}
	for n := from; n < to; n++ {
		a.out = append(a.out, "event: "+kind+"\ndata: {"+middle+`"delta":`...)
		a.out = appendQuoted(a.out, o.text(n))
		a.out = append(a.out, `,"item_id":"`+a.itemID+`","output_index":0,"sequence_number":`...)
		a.out = strconv.AppendInt(a.out, int64(a.events), 10)
		a.out = append(a.out, `,"type":"`+kind+"\"}\n\n"...)
		a.events++
	}
}

// inPart adds an event's place in the output.
func (a *responsesAnswer) inPart(f fields) fields {
	f["content_index"], f["item_id"], f["output_index"] = 0, a.itemID, 0
	return f
}

// close sends the events that end item and response.
func (a *responsesAnswer) close() {
	a.finish()
	text := a.g.seqs[0].output.whole()
	if a.tool != nil {
		a.send("response.function_call_arguments.done",
			fields{"item_id": a.itemID, "output_index": 0, "name": a.tool.name, "arguments": text})
	} else {
		a.send("response.output_text.done", a.inPart(fields{"text": text, "logprobs": []any{}}))
		a.send("response.content_part.done", a.inPart(fields{"part": a.part(text)}))
	}
	a.send("response.output_item.done", fields{"output_index": 0, "item": a.doc.Output[0]})
	a.send("response.completed", fields{"response": a.doc})
}
