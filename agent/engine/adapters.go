package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"

	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/internal/lora"
)

// maxAdapterAnswer bounds the engine's answer to a change of adapters, in bytes.
const maxAdapterAnswer = 64 << 10

// AdapterPath returns the path at which an engine of a kind loads LoRA adapters, or unloads them.
// ok is false for an engine that cannot do so while it runs.
func AdapterPath(kind string, unload bool) (path string, ok bool) {
	path = "/load_lora_adapter"
	if unload {
		path = "/unload_lora_adapter"
	}
	switch kind {
	case VLLM:
		return "/v1" + path, true
	case SGLang:
		return path, true
	}
	return "", false
}

// changes are the changes of an engine's adapters, one at a time. A client that gives up ends no
// change, because the engine would not notice. Other changes are refused until the change ends.
type changes struct {
	life context.Context // ends with Run or EndChanges
	stop context.CancelFunc

	mu      sync.Mutex
	running string         // what the engine does, for messages; empty: no change runs
	ended   sync.WaitGroup // counts the running change; mu guards the additions
}

var errStopping = errors.New("the agent is stopping")

// init prepares c for begin.
func (c *changes) init() { c.life, c.stop = context.WithCancel(context.Background()) }

// begin begins a change, unless another one runs or the agent stops. done ends it.
func (c *changes) begin(what string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.Err() != nil {
		return errStopping
	}
	if c.running != "" {
		return fmt.Errorf("the engine now %s, and an agent asks it for one change of adapters at a time; try again "+
			"once that has ended", c.running)
	}
	c.running = what
	c.ended.Add(1)
	return nil
}

func (c *changes) done() {
	c.mu.Lock()
	c.running = ""
	c.mu.Unlock()
	c.ended.Done()
}

// end breaks off the running change, refuses later ones, and waits until none runs.
func (c *changes) end() {
	c.mu.Lock()
	c.stop()
	c.mu.Unlock()
	c.ended.Wait()
}

// EndChanges breaks off the running change of adapters, refuses later ones, and returns when none
// runs. The end of Run does the same.
func (e *Engine) EndChanges() { e.changes.end() }

// ChangeAdapter asks the engine to load a LoRA adapter of this name from path, or to unload it. It
// returns the engine's answer, or one in the engine's form if the engine gives none. While another
// change runs, the answer is a 409 that names that change. After a change the agent looks at the
// engine's models. EndChanges and the end of Run break off a change.
func (e *Engine) ChangeAdapter(unload bool, name, path string) (status int, contentType string, answer []byte) {
	at, ok := AdapterPath(e.config.Kind, unload)
	if !ok {
		return refusal(http.StatusNotImplemented, fmt.Sprintf(
			"an engine of kind %s cannot load adapters while it runs; vllm and sglang can", e.config.Kind))
	}
	what := "loads"
	if unload {
		what = "unloads"
	}
	err := e.changes.begin(fmt.Sprintf("%s the adapter %.100q", what, name))
	switch {
	case errors.Is(err, errStopping):
		return refusal(http.StatusServiceUnavailable, err.Error())
	case err != nil:
		return refusal(http.StatusConflict, err.Error())
	}
	defer e.changes.done()
	ctx, cancel := context.WithTimeout(e.changes.life, lora.ChangeTime)
	defer cancel()
	change := map[string]string{"lora_name": name}
	if !unload {
		change["lora_path"] = path
	}
	status, contentType, answer = e.askForChange(ctx, at, change)
	e.log.Info("change of an adapter asked for", "adapter", name, "path", path, "unload", unload, "status", status)
	await.Wake(e.relist)
	return status, contentType, answer
}

// askForChange sends a change to the engine.
func (e *Engine) askForChange(ctx context.Context, at string, change map[string]string) (int, string, []byte) {
	body, _ := json.Marshal(change) // strings always encode
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, e.prober.base+at, bytes.NewReader(body))
	if err != nil {
		return refusal(http.StatusInternalServerError, err.Error())
	}
	req.Header.Set("Content-Type", "application/json")
	if e.key != "" {
		req.Header.Set("Authorization", "Bearer "+e.key)
	}
	resp, err := e.prober.patient.Do(req)
	if err != nil {
		return e.unanswered("the engine does not answer: ", err)
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAdapterAnswer))
	if err != nil {
		return e.unanswered("the engine's answer breaks off: ", err)
	}
	if resp.StatusCode == http.StatusNotFound && e.config.Kind == VLLM && bytes.Contains(answer, []byte(`"detail"`)) {
		return refusal(http.StatusNotImplemented, "this vLLM does not load adapters while it runs; start it with "+
			"--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1")
	}
	return resp.StatusCode, resp.Header.Get("Content-Type"), answer
}

// unanswered returns the answer for a change without an answer of the engine.
func (e *Engine) unanswered(what string, err error) (int, string, []byte) {
	if e.changes.life.Err() != nil {
		return refusal(http.StatusServiceUnavailable, errStopping.Error()+"; the engine may still make the change")
	}
	return refusal(http.StatusBadGateway, what+err.Error())
}

// refusal returns an answer of the agent in the form of vLLM's errors.
func refusal(status int, message string) (int, string, []byte) {
	body, _ := json.Marshal(map[string]any{"error": map[string]any{ // strings always encode
		"message": message, "type": "api_error", "param": nil, "code": status,
	}})
	return status, "application/json", body
}
