package leg

import (
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/scan"
)

// apart edits the body so that the engine shares no cached prompt with other clients. Only bodies
// of clients with a salt are edited, and a request for a stored response has none.
func (l *Leg) apart(n *fleet.Node) {
	asked, e := l.Request, &l.out.edits
	if asked.Salts == nil || asked.Who == nil || asked.Scan.CacheSalt == nil || asked.Scan.Form() {
		return
	}
	if asked.Scan.Transfers() {
		for _, name := range scan.TransferMembers { // only the router says whose blocks an engine takes
			e.Remove(name)
		}
	}
	switch keeps := n.KeepsApart(); {
	case keeps == fleet.WithoutCache:
		e.Set("cache_prompt", falseValue)
	case takesSalt(asked.API, keeps):
		e.Salt(asked.Scan.CacheSalt)
	}
}

var falseValue = []byte("false")

// takesSalt says whether a request of an API gets a cache_salt. Requests that compute no prompt do
// not. TensorRT-LLM refuses members that it does not know.
func takesSalt(api scan.API, keeps fleet.Apart) bool {
	switch api {
	case scan.CountTokens, scan.Tokenize, scan.Detokenize:
		return false
	case scan.Chat, scan.Completions:
		return true
	}
	return keeps != fleet.BySaltOfChats
}
