package where

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/scan"
)

// turns is a conversation: the system prompt, then user and assistant in turn.
func turns(system string, texts ...string) []byte {
	all := []string{fmt.Sprintf(`{"role":"system","content":%q}`, system)}
	for i, text := range texts {
		all = append(all, fmt.Sprintf(`{"role":%q,"content":%q}`, []string{"user", "assistant"}[i%2], text))
	}
	return []byte(`{"model":"sim","messages":[` + strings.Join(all, ",") + `]}`)
}

// TestConversationsAreToldApartByTheirFirstTurn checks that later turns keep a conversation's key.
// Conversations that share only a system prompt must have different keys.
func TestConversationsAreToldApartByTheirFirstTurn(t *testing.T) {
	f := &Finder{Metrics: metrics.New()}
	key := func(body []byte, session string) uint64 {
		t.Helper()
		r, p := read(t, f, scan.Chat, body), &Prompt{}
		r.Session = []byte(session)
		begin(f, p, r)
		return p.RendezvousKey()
	}
	system, long := strings.Repeat("be brief and kind. ", 40), strings.Repeat("tell me of it. ", 40)
	first := key(turns(system, "the sea. "+long), "")
	if key(turns(system, "the sea. "+long, "gladly: "+long, "and the land? "+long), "") != first ||
		key(turns(system, "the sea. "+long, "no: "+long, "then the sky. "+long), "") != first {
		t.Error("later turns make it another conversation")
	}
	if key(turns(system, "the land. "+long), "") == first {
		t.Error("one system prompt makes all conversations one")
	}
	a, b := key(turns(system, "the sea. "+long), "a"), key(turns(system, "the land. "+long), "a")
	if a != b || a == first {
		t.Error("the session does not tell")
	}
}

// TestShortFirstTurns checks that conversations with a first turn of a few words have different
// keys in every turn, with or without a shared system prompt.
func TestShortFirstTurns(t *testing.T) {
	f := &Finder{Metrics: metrics.New()}
	key := func(api scan.API, body []byte) uint64 {
		t.Helper()
		p := &Prompt{}
		begin(f, p, read(t, f, api, body))
		return p.RendezvousKey()
	}
	for _, system := range []int{0, 1, 40, 53, 64, 100, 4000, 20_000} { // bytes
		seen := map[uint64]string{}
		for i := range 60 {
			question, instructions := fmt.Sprintf("what is %d?", i), strings.Repeat("x", system)
			k := key(scan.Chat, turns(instructions, question))
			if other, ok := seen[k]; ok || k == 0 {
				t.Fatalf("%q behind %d bytes: the same as %q", question, system, other)
			}
			seen[k] = question
			if key(scan.Chat, turns(instructions, question, strings.Repeat("a long answer. ", 20), "and then?")) != k {
				t.Errorf("%q behind %d bytes: its second turn is told from its first", question, system)
			}
			swapped := []byte(fmt.Sprintf(
				`{"messages":[{"content":%q,"role":"system"},{"content":%q,"role":"user"}],"model":"sim"}`,
				instructions, question))
			if key(scan.Chat, swapped) != k {
				t.Errorf("%q behind %d bytes: the order of keys tells", question, system)
			}
			before := fmt.Sprintf(`{"model":"sim","instructions":%q,"input":"a"}`, instructions)
			after := fmt.Sprintf(`{"model":"sim","input":"b","instructions":%q}`, instructions)
			if a, b := key(scan.Responses, []byte(before)), key(scan.Responses, []byte(after)); a == b {
				t.Errorf("responses behind %d bytes are not told apart", system)
			}
		}
	}
}
