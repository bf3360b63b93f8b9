package front

import (
	"bytes"

	"github.com/cognitora/dataplane/internal/intake"
)

// served lists the paths outside /v1/ that reach the engine. Other endpoints of engines (cache
// resets, weight updates, sleep, profiling) are not for routers.
var served = map[string]bool{
	"/tokenize": true, "/detokenize": true, "/rerank": true, "/v2/rerank": true, "/score": true,
	"/pooling": true, "/classify": true, "/metrics": true, "/version": true, "/props": true,
	"/apply-template": true,
}

// passes tells whether a request for path goes to the engine. path is normalised: it has no dot
// segments and no doubled slashes.
func passes(path []byte) bool {
	if bytes.HasPrefix(path, []byte("/v1/")) {
		return !intake.ChangesEngine(path)
	}
	return served[string(path)]
}
