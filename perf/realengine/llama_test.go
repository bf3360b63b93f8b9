package realengine

import (
	"fmt"
	"testing"
)

// llamaFlags returns flags for four slots of 8192 tokens, and no other memory for prompts.
func llamaFlags(model string) []string {
	return []string{"--model", model, "--alias", "tiny", "--parallel", "4", "--ctx-size", "32768", "--cache-ram", "0",
		"--metrics", "--embeddings"}
}

func TestLlama(t *testing.T) {
	s := prepared(t, "llama")
	var engines []*engine
	for i := range 2 {
		engines = append(engines, s.engine(t, fmt.Sprint("llama-", i+1), llamaFlags(s.model)...))
	}
	for _, e := range engines {
		e.awaitReady(t)
	}
	w := s.site(t, engines...)
	t.Run("Models", w.models)
	t.Run("Chats", w.chats)
	t.Run("Completions", w.completions)
	t.Run("Embeddings", w.embeddings)
	t.Run("Responses", w.responses)
	t.Run("Messages", w.messages)
	t.Run("Refusals", w.refusals)
	t.Run("Spreads", w.spreads)
	t.Run("Conversations", w.conversations)
	t.Run("Learns", func(t *testing.T) { w.learns(t, 48) })
	t.Run("Relearns", w.relearns)
	t.Run("ClientLeaves", func(t *testing.T) { w.leaves(t, "llamacpp:requests_processing") })
	t.Run("Killed", w.killed)
	t.Run("Bursts", w.bursts)
	t.Run("Idles", w.idles)
}
