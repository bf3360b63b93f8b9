package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/cognitora/dataplane/internal/await"
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

// ChangeAdapter asks the engine to load a LoRA adapter of this name from path, or to unload it. It
// returns the engine's answer, or one in the engine's form if the engine gives none. It then looks
// at the engine's models.
func (e *Engine) ChangeAdapter(unload bool, name, path string) (status int, contentType string, answer []byte) {
	at, ok := AdapterPath(e.config.Kind, unload)
	if !ok {
		return refusal(http.StatusNotImplemented, fmt.Sprintf(
			"an engine of kind %s cannot load adapters while it runs; vllm and sglang can", e.config.Kind))
	}
	change := map[string]string{"lora_name": name}
	if !unload {
		change["lora_path"] = path
	}
	body, _ := json.Marshal(change) // strings always encode
	req, err := http.NewRequest(http.MethodPost, e.prober.base+at, bytes.NewReader(body))
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
	answer, err = io.ReadAll(io.LimitReader(resp.Body, maxAdapterAnswer))
	if err != nil {
		return refusal(http.StatusBadGateway, "the engine's answer breaks off: "+err.Error())
	}
	if resp.StatusCode == http.StatusNotFound && e.config.Kind == VLLM && bytes.Contains(answer, []byte(`"detail"`)) {
		return refusal(http.StatusNotImplemented, "this vLLM does not load adapters while it runs; start it with "+
			"--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1")
	}
	e.log.Info("change of an adapter asked for", "adapter", name, "path", path, "unload", unload,
		"status", resp.StatusCode)
	await.Wake(e.relist)
	return resp.StatusCode, resp.Header.Get("Content-Type"), answer
}

// refusal returns an answer of the agent in the form of vLLM's errors.
func refusal(status int, message string) (int, string, []byte) {
	body, _ := json.Marshal(map[string]any{"error": map[string]any{ // strings always encode
		"message": message, "type": "api_error", "param": nil, "code": status,
	}})
	return status, "application/json", body
}
