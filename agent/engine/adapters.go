package engine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

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
// change, because the engine would not notice. Its next request then waits for the change.
type changes struct {
	life context.Context // ends with Run
	stop context.CancelFunc
	turn chan struct{} // holds a value while a change runs
}

func newChanges() changes {
	life, stop := context.WithCancel(context.Background())
	return changes{life, stop, make(chan struct{}, 1)}
}

// begin waits for the end of the change before, until ctx ends.
func (c *changes) begin(ctx context.Context) error {
	select {
	case c.turn <- struct{}{}:
		err := ctx.Err()
		if err != nil { // both were ready
			c.done()
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *changes) done() { <-c.turn }

// end breaks off the running change, refuses later ones, and waits until none runs.
func (c *changes) end() {
	c.stop()
	c.turn <- struct{}{}
	c.done()
}

// ChangeAdapter asks the engine to load a LoRA adapter of this name from path, or to unload it,
// once the change before has ended. It returns the engine's answer, or one in the engine's form if
// the engine gives none. It then looks at the engine's models. Run ends a change with itself.
func (e *Engine) ChangeAdapter(unload bool, name, path string) (status int, contentType string, answer []byte) {
	at, ok := AdapterPath(e.config.Kind, unload)
	if !ok {
		return refusal(http.StatusNotImplemented, fmt.Sprintf(
			"an engine of kind %s cannot load adapters while it runs; vllm and sglang can", e.config.Kind))
	}
	ctx, cancel := context.WithTimeout(e.changes.life, lora.ChangeTime)
	defer cancel()
	if err := e.changes.begin(ctx); err != nil {
		if e.changes.life.Err() == nil {
			return refusal(http.StatusServiceUnavailable, "the engine still loads or unloads another adapter; try again later")
		}
		return refusal(http.StatusServiceUnavailable, "the agent is stopping")
	}
	defer e.changes.done()
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
		return refusal(http.StatusBadGateway, "the engine does not answer: "+err.Error())
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAdapterAnswer))
	if err != nil {
		return refusal(http.StatusBadGateway, "the engine's answer breaks off: "+err.Error())
	}
	if resp.StatusCode == http.StatusNotFound && e.config.Kind == VLLM && bytes.Contains(answer, []byte(`"detail"`)) {
		return refusal(http.StatusNotImplemented, "this vLLM does not load adapters while it runs; start it with "+
			"--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1")
	}
	return resp.StatusCode, resp.Header.Get("Content-Type"), answer
}

// refusal returns an answer of the agent in the form of vLLM's errors.
func refusal(status int, message string) (int, string, []byte) {
	body, _ := json.Marshal(map[string]any{"error": map[string]any{ // strings always encode
		"message": message, "type": "api_error", "param": nil, "code": status,
	}})
	return status, "application/json", body
}
