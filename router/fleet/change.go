package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/cognitora/dataplane/internal/relay"
)

// AdapterChange asks an engine to load a LoRA adapter, or to unload it.
type AdapterChange struct {
	Unload bool
	Name   string
	Path   string // directory on the engine's host, or a name that the engine can find; not for Unload
}

// Changed is the outcome of an AdapterChange on one node.
type Changed string

// These are the outcomes. An engine that has an adapter from the same path already needs no change,
// nor does one that should unload an adapter that it does not have.
const (
	ChangeLoaded   Changed = "loaded"
	ChangeUnloaded Changed = "unloaded"
	ChangeNone     Changed = "unchanged"
	ChangeFailed   Changed = "failed"
)

// AdapterAsk is the body of POST /adapters/load and /adapters/unload on the router's admin port.
type AdapterAsk struct {
	Model   string   `json:"model"`           // name or alias of the base model
	Adapter string   `json:"adapter"`         // name of the adapter
	Path    string   `json:"path,omitempty"`  // where engines find the adapter; not to unload
	Nodes   []string `json:"nodes,omitempty"` // empty: all nodes of the model
	Seconds float64  `json:"seconds"`         // time for all engines together; 0: five minutes
}

// AdapterAnswer is the answer to an AdapterAsk: what each node did.
type AdapterAnswer struct {
	Model   string          `json:"model"`
	Adapter string          `json:"adapter"`
	Nodes   []AdapterResult `json:"nodes"`
}

// AdapterResult says what an engine did.
type AdapterResult struct {
	Node   string  `json:"node"`
	State  Changed `json:"state"`
	Status int     `json:"status,omitempty"` // HTTP status of the engine's or agent's answer; absent: there was none
	Detail string  `json:"detail,omitempty"`
}

// maxChangeAnswer bounds an answer about adapters, in bytes.
const maxChangeAnswer = 64 << 10

// ChangeAdapter asks the node's engine, or its agent, for a change, and waits for it until ctx
// ends. The node's models are then asked for again.
func (n *Node) ChangeAdapter(ctx context.Context, c AdapterChange) AdapterResult {
	r := AdapterResult{Node: n.ID, State: ChangeLoaded}
	if c.Unload {
		r.State = ChangeUnloaded
	}
	path, err := n.adapterPath(c.Unload)
	if err == nil {
		var answer []byte
		r.Status, answer, err = n.exchange(ctx, http.MethodPost, path, c.body())
		if err == nil && r.Status != http.StatusOK {
			err = fmt.Errorf("%s", saidBy(r.Status, answer))
		}
	}
	if err != nil {
		r.State, r.Detail = ChangeFailed, err.Error()
		if r.Status >= 400 && r.Status < 500 && r.Status != http.StatusConflict { // 409: another change runs
			n.comparePresent(ctx, c, &r)
		}
		return r
	}
	n.relist()
	return r
}

// adapterPath returns the path of the change. Agents have the same path for every engine.
func (n *Node) adapterPath(unload bool) (string, error) {
	path := "/load_lora_adapter"
	if unload {
		path = "/unload_lora_adapter"
	}
	switch kind := n.Info().Engine; {
	case n.Source == Etcd, kind == "sglang":
		return path, nil
	case kind == "vllm":
		return "/v1" + path, nil
	case kind == "":
		return "", fmt.Errorf("the engine's kind is unknown; vllm and sglang load adapters while they run")
	default:
		return "", fmt.Errorf("an engine of kind %s cannot load adapters while it runs; vllm and sglang can", kind)
	}
}

func (c *AdapterChange) body() []byte {
	doc := map[string]string{"lora_name": c.Name}
	if !c.Unload {
		doc["lora_path"] = c.Path
	}
	body, _ := json.Marshal(doc) // strings always encode
	return body
}

// comparePresent finds out whether the engine has refused a change because nothing needs to change.
func (n *Node) comparePresent(ctx context.Context, c AdapterChange, r *AdapterResult) {
	status, page, err := n.exchange(ctx, http.MethodGet, "/v1/models", nil)
	if err != nil || status != http.StatusOK {
		return
	}
	var list struct {
		Data []struct {
			ID     string `json:"id"`
			Root   string `json:"root"`
			Parent string `json:"parent"`
		} `json:"data"`
	}
	if json.Unmarshal(page, &list) != nil {
		return
	}
	for _, m := range list.Data {
		switch {
		case m.ID != c.Name:
			continue
		case c.Unload:
			return
		case m.Parent == "":
			r.Detail = "it is a model of the engine and no adapter; give the adapter another name"
		case m.Root != "" && m.Root != c.Path:
			r.Detail = "it is loaded from " + m.Root + "; unload it first"
		default:
			r.State, r.Detail = ChangeNone, "it was loaded already"
		}
		return
	}
	if c.Unload {
		r.State, r.Detail = ChangeNone, "it was not loaded"
	}
}

// exchange sends a request to the node until ctx ends, and returns the answer.
func (n *Node) exchange(ctx context.Context, method, path string, body []byte) (int, []byte, error) {
	var abort relay.Abort
	defer context.AfterFunc(ctx, abort.Cancel)()
	until, _ := ctx.Deadline()
	q := relay.Request{Method: method, Path: path, Abort: &abort}
	limit := maxModelList
	if body != nil {
		q.Header, q.Body, limit = []byte("Content-Type: application/json\r\n"), [][]byte{body}, maxChangeAnswer
	}
	ex, err := n.Pool.Send(&q, until)
	if err != nil {
		return 0, nil, unanswered(ctx, err)
	}
	defer ex.Close()
	if err := ex.ReadHead(until); err != nil {
		return 0, nil, unanswered(ctx, err)
	}
	ex.SetReadDeadline(until)
	status := ex.Status()
	answer, err := relay.Capture(nil, ex, relay.CaptureOptions{Limit: limit})
	if err != nil {
		return status, nil, unanswered(ctx, err)
	}
	return status, answer, nil
}

// maxModelList bounds a list of models, in bytes.
const maxModelList = 4 << 20

func unanswered(ctx context.Context, err error) error {
	if late, ok := errors.AsType[*relay.Error](err); ctx.Err() != nil || ok && late.Kind == relay.KindTimeout {
		return fmt.Errorf("no answer in time: %w", err)
	}
	return err
}

// saidMost bounds the text of an answer in a result, in bytes.
const saidMost = 500

// saidBy returns an error answer's own text.
func saidBy(status int, answer []byte) string {
	var doc struct {
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
		Message string `json:"error_message"` // of SGLang
		Detail  string `json:"detail"`
	}
	_ = json.Unmarshal(answer, &doc) // any other answer is quoted as it is
	text := doc.Error.Message
	for _, other := range []string{doc.Message, doc.Detail, string(answer)} {
		if text == "" {
			text = other
		}
	}
	text = strings.Join(strings.Fields(strings.ToValidUTF8(text, "")), " ")
	if text == "Not Found" && status == http.StatusNotFound {
		return "the engine does not load adapters while it runs (vLLM: --enable-lora and " +
			"VLLM_ALLOW_RUNTIME_LORA_UPDATING=1)"
	}
	if len(text) > saidMost {
		text = strings.ToValidUTF8(text[:saidMost], "") + "…"
	}
	if text == "" {
		return fmt.Sprintf("HTTP %d", status)
	}
	return text
}

// relist makes the next check of a static node ask for its models, and come soon. An agent looks by
// itself.
func (n *Node) relist() {
	if n.Source == Static {
		n.asker.relist.Store(true)
		n.Health.CheckSoon()
	}
}

// listsModel says whether the node is known to serve a model of this name.
func (n *Node) listsModel(name string) bool {
	return slices.Contains(n.Info().Models, name)
}

// AwaitListed waits until the node is known to serve a model of this name, or not to, as listed
// says. AwaitListed returns false if ctx ends before, or the node leaves the fleet.
func (f *Fleet) AwaitListed(ctx context.Context, n *Node, name string, listed bool) bool {
	for {
		s := f.Load() // before the look, so that a later change replaces it
		switch {
		case n.listsModel(name) == listed:
			return true
		case s.Node(n.ID) != n:
			return false
		}
		select {
		case <-s.replaced:
		case <-ctx.Done():
			return false
		}
	}
}

// Serves says whether the node serves the model of this name in the snapshot.
func (s *Snapshot) Serves(n *Node, name string) bool {
	m := s.names[name]
	return m != nil && (slices.Contains(m.Nodes, n) || slices.Contains(m.Prefill, n))
}
