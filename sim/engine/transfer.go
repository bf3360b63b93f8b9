package engine

import (
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
	ConnectorNone Connector = ""
	ConnectorNIXL Connector = "nixl" // vLLM's NixlConnector
)

// LoadFailure says what becomes of a request whose blocks another engine does not have any more.
type LoadFailure string

// These are the policies. LoadFail answers a stream like any other request. vLLM has sent the head
// of a stream by then, so its answer is LoadFailInStream: status 200 and an error as the only event.
// LoadStale is what vLLM did before it had a policy.
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
		{"Connector", string(c.Connector), []string{string(ConnectorNone), string(ConnectorNIXL)}},
		{"LoadFailure", string(c.LoadFailure),
			[]string{string(LoadFail), string(LoadFailInStream), string(LoadRecompute), string(LoadStale)}},
	} {
		if !slices.Contains(f.known, f.value) {
			return fmt.Errorf("engine: %s %q must be one of %q", f.name, f.value, f.known)
		}
	}
	return nil
}
