package engine

import (
	"errors"
	"fmt"
	"slices"
)

// Role is an engine's part in prefill and decode on different engines.
type Role string

// These are the roles. An engine with RoleBoth also answers requests of one leg.
const (
	RoleBoth    Role = ""
	RolePrefill Role = "prefill"
	RoleDecode  Role = "decode"
)

// Connector is the way in which KV blocks move between engines.
type Connector string

// These are the connectors. See the package documentation for their fields in requests.
const (
	ConnectorNone     Connector = ""
	ConnectorNIXL     Connector = "nixl"     // vLLM's NixlConnector
	ConnectorMooncake Connector = "mooncake" // vLLM's MooncakeConnector
	ConnectorKVCached Connector = "kvcached" // KVCachedConnector of deploy/vllm; needs a Shelf
	ConnectorSGLang   Connector = "sglang"   // SGLang with its bootstrap server; needs a role
	ConnectorTRTLLM   Connector = "trtllm"   // TensorRT-LLM
)

// LoadFailure says what becomes of a request whose blocks another engine does not have any more.
type LoadFailure string

// These are the policies. With LoadFail a stream has no head before its blocks are there, so a
// failure is its status. Real engines send the head of a stream first, a chat's role, and then the
// error, as LoadFailInStream does. LoadStale is what vLLM does with blocks whose lease has ended.
const (
	LoadFail         LoadFailure = "fail"           // answer with status 500
	LoadFailInStream LoadFailure = "fail-in-stream" // with status 500, or 200 and an error in a stream
	LoadRecompute    LoadFailure = "recompute"      // compute the prompt here
	LoadStale        LoadFailure = "stale"          // read the blocks of another prompt; fail if nobody listens
)

// validateTransfer checks the fields about blocks of other engines.
func (c *Config) validateTransfer() error {
	for _, f := range []struct {
		name, value string
		known       []string
	}{
		{"Role", string(c.Role), []string{string(RoleBoth), string(RolePrefill), string(RoleDecode)}},
		{"Connector", string(c.Connector), []string{string(ConnectorNone), string(ConnectorNIXL),
			string(ConnectorMooncake), string(ConnectorKVCached), string(ConnectorSGLang), string(ConnectorTRTLLM)}},
		{"LoadFailure", string(c.LoadFailure),
			[]string{string(LoadFail), string(LoadFailInStream), string(LoadRecompute), string(LoadStale)}},
	} {
		if !slices.Contains(f.known, f.value) {
			return fmt.Errorf("engine: %s %q must be one of %q", f.name, f.value, f.known)
		}
	}
	if c.Connector == ConnectorKVCached && c.Shelf == nil {
		return errors.New("engine: Connector kvcached needs a Shelf")
	}
	return nil
}

// owner returns what an engine with the connector has as owned_by in its list of models.
func (c Connector) owner() string {
	switch c {
	case ConnectorSGLang:
		return "sglang"
	case ConnectorTRTLLM:
		return "tensorrt_llm"
	}
	return "vllm"
}
