package learned

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"

	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/scan"
)

// Text is the canonical text of a prompt, as far as it is at hand.
type Text struct {
	Chain *prefix.Chain // of the whole text
	From  int           // blocks of the chain before Bytes
	Bytes []byte        // the text from there on
	Form  uint64        // see Map.Form
	// Lines says that the prompt is a text without messages, of which an earlier prompt had Shared
	// bytes; 0: none, or unknown.
	Lines  bool
	Shared int
}

// markMessage begins a message in the canonical text; see package scan.
const markMessage = 0xFF

// maxBoundaries bounds the boundaries that are looked up for a prompt, the last ones of it.
const maxBoundaries = 32

// Recall returns the longest known beginning of t among the last 32 boundaries of its messages or
// lines, and its end, as an offset in t.Bytes. Recall returns nil if none is known. Recall does not
// allocate.
func (m *Map) Recall(t *Text) (e *Entry, end int) {
	var keys [maxBoundaries]uint64
	var ends [maxBoundaries]int
	n := 0
	if t.Lines {
		n = m.lines(t, &keys, &ends)
		e, i := m.recall(t.Form, keys[:n])
		return e, ends[i]
	}
	for at := len(t.Bytes); at >= 0 && n < maxBoundaries; at = bytes.LastIndexByte(t.Bytes[:at], markMessage) {
		if key, ok := m.key(t, at, roleAt(t.Bytes, at)); ok {
			keys[n], ends[n] = key, at
			n++
		}
	}
	e, i := m.recall(t.Form, keys[:n])
	return e, ends[i]
}

// key returns the key of the beginning of t that ends at an offset of t.Bytes, where a message of
// the given role follows. An empty role stands for the end of the chat. ok is false if the
// beginning is longer than a chain.
func (m *Map) key(t *Text, at int, role []byte) (key uint64, ok bool) {
	block := t.From + at/prefix.BlockBytes
	if block > t.Chain.Blocks() {
		return 0, false
	}
	var head [24]byte
	if block > 0 {
		binary.LittleEndian.PutUint64(head[:], t.Chain.Key(block-1))
	} else {
		seed, _ := t.Chain.Digest(-1)
		copy(head[:8], seed[:])
	}
	binary.LittleEndian.PutUint64(head[8:], t.Form)
	binary.LittleEndian.PutUint64(head[16:], uint64(at%prefix.BlockBytes))
	var h maphash.Hash
	h.SetSeed(m.secret)
	h.Write(head[:])
	h.Write(t.Bytes[at-at%prefix.BlockBytes : at])
	h.Write(role)
	return h.Sum64(), true
}

// roleAt returns the role of the message that begins at an offset, or nil at the end of the text.
func roleAt(text []byte, at int) []byte {
	if at == len(text) {
		return nil
	}
	end := at + 1
	for end < len(text) && !isMark(text[end]) {
		end++
	}
	return text[at+1 : end]
}

// isMark says whether b is a mark of the canonical text, which UTF-8 never uses.
func isMark(b byte) bool { return b >= 0xF5 || b == 0xC0 || b == 0xC1 }

// harmless are the members of a chat's body that do not change its tokens, or that the seed of the
// chain or the canonical text have.
var harmless = func() map[string]struct{} {
	all := map[string]struct{}{}
	for _, name := range [...]string{
		"model", "messages", "cache_salt", "nvext", "stream", "stream_options", "max_tokens",
		"max_completion_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "n", "seed", "stop",
		"stop_token_ids", "user", "frequency_penalty", "presence_penalty", "repetition_penalty", "length_penalty",
		"logit_bias", "logprobs", "top_logprobs", "prompt_logprobs", "ignore_eos", "metadata", "store", "service_tier",
		"safety_identifier", "prompt_cache_key", "request_id", "priority", "return_token_ids", "kv_transfer_params",
		"best_of", "use_beam_search", "skip_special_tokens", "spaces_between_special_tokens",
		"include_stop_str_in_output", "return_tokens_as_token_ids", "parallel_tool_calls", "include_reasoning",
		"bad_words", "prompt", "echo", "structured_outputs", "allowed_token_ids", "logprob_token_ids", "vllm_xargs",
		"thinking_token_budget", "stream_interval", "session_id",
	} {
		all[name] = struct{}{}
	}
	return all
}()

// tokenized says whether vLLM's /tokenize makes of a member what it makes of it in a prompt. vLLM
// 0.32 ignores others there, such as reasoning_effort, documents and truncate_prompt_tokens.
// tool_choice and response_format change no prompt, except those of Kimi K3, and, for no tools, of
// an engine with --exclude-tools-when-tool-choice-none.
func tokenized(name []byte) bool {
	switch string(name) {
	case "tools", "chat_template", "chat_template_kwargs", "add_special_tokens", "add_generation_prompt",
		"continue_final_message", "media_io_kwargs", "mm_processor_kwargs", "tool_choice", "response_format":
		return true
	}
	return false
}

// alters says whether a member of a chat's body may change the tokens of its beginning. name is in
// the body's spelling. A null is as good as no member.
func alters(name, value []byte) bool {
	_, is := harmless[string(name)]
	return !is && string(value) != "null"
}

// Form returns a hash of the API, of the model, and of the members of a body that may change the
// tokens of a prompt, besides its messages or text. Templates show tools in the body's spelling, so
// the form has them too. model is the router's name of the model. r is the scan of body. ok is
// false if a name has escapes.
func (m *Map) Form(api scan.API, model string, r *scan.Request, body []byte) (form uint64, ok bool) {
	form, ok = m.member([]byte(api.String()), []byte(model)), true
	r.Members(body, func(name, value []byte) bool {
		if bytes.IndexByte(name, '\\') >= 0 {
			ok = false
			return false
		}
		if alters(name, value) {
			form += m.member(name, value) // their order does not count
		}
		return true
	})
	return form, ok
}

// member returns the hash of a member of a body.
func (m *Map) member(name, value []byte) uint64 {
	var h maphash.Hash
	h.SetSeed(m.secret)
	h.Write(name)
	h.WriteByte(0)
	h.Write(value)
	return h.Sum64()
}
