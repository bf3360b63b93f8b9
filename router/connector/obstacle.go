package connector

import (
	"github.com/cognitora/dataplane/router/members"
	"github.com/cognitora/dataplane/router/scan"
)

// Obstacle says why a request must be computed by one engine; "" if there is no reason. The answer
// of a request with log probabilities of its prompt or with the prompt itself needs the prompt's
// computation on the answering engine. own says that even an engine that needs a P gets the request
// as it is: its API is not handed over, or the client does that itself. r is the scan of body.
func Obstacle(r *scan.Request, body []byte, api scan.API) (why string, own bool) {
	if api != scan.Chat && api != scan.Completions {
		return "api", true
	}
	if m := members.Barring(r, body, members.HandOver); m != nil {
		return m.Name, m.Class == members.Transfer
	}
	return "", false
}
