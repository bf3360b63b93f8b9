package router_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router"
)

// chatOf is the body of a chat of messages, which alternate between system, user and assistant.
func chatOf(stream bool, contents ...string) string {
	roles := []string{"system", "user", "assistant"}
	messages := make([]map[string]string, len(contents))
	for i, content := range contents {
		role := roles[0]
		if i > 0 {
			role = roles[2-i%2]
		}
		messages[i] = map[string]string{"role": role, "content": content}
	}
	page, _ := json.Marshal(map[string]any{"model": "sim", "messages": messages, "max_tokens": 40, "stream": stream})
	return string(page)
}

// streamed returns the text of a stream.
func streamed(body string) (text string) {
	for _, event := range strings.Split(body, "\n\n") {
		doc, is := strings.CutPrefix(event, "data: ")
		var delta struct {
			Choices []struct{ Delta struct{ Content string } }
		}
		if is && json.Unmarshal([]byte(doc), &delta) == nil && len(delta.Choices) > 0 {
			text += delta.Choices[0].Delta.Content
		}
	}
	return text
}

// TestLearnedTokens checks that an engine teaches the router the tokens of chats, so that its KV
// events tell what it has cached of them.
func TestLearnedTokens(t *testing.T) {
	t.Parallel()
	engines := simulate(t, 1, publishing)
	pub, replay := engines[0].KVEndpoints()
	s := serve(t, nil, func(c *router.Config) {
		c.Router.Backends = []string{engines[0].URL() + ",id=sim-0,kv-events=" + pub + ",kv-replay=" + replay}
		c.Models = []router.ModelConfig{{Name: "sim", Tokenizer: "learn"}}
	})
	eventually(t, "the node is eligible", func() bool { return s.eligible() == 1 })
	eventually(t, "the events are followed", func() bool { return s.metrics().sum("cgn_router_caches_engines") == 1 })
	answers := 0
	// knows asks, waits for the lesson, and checks that the router knew what the engine had cached.
	knows := func(what string, stream bool, contents ...string) string {
		t.Helper()
		body := chatOf(stream, contents...)
		var cached struct {
			Usage struct {
				Details struct {
					Cached int `json:"cached_tokens"`
				} `json:"prompt_tokens_details"`
			}
			Choices []struct{ Message struct{ Content string } }
		}
		matched := -1
		eventually(t, what+": the belief rests", func() bool {
			was := matched
			matched = s.explainAs("chat", body).Candidates[0].Matched
			return matched == was
		})
		reply := s.chat(body)
		if reply.status != 200 {
			t.Fatal(what, reply.status)
		}
		text := streamed(string(reply.body))
		if !stream {
			if err := json.Unmarshal(reply.body, &cached); err != nil {
				t.Fatal(err)
			}
			text = cached.Choices[0].Message.Content
			if got := cached.Usage.Details.Cached; matched*16 < got || matched*16 >= got+32 {
				t.Errorf("%s: %d tokens were believed, %d were cached", what, matched*16, got)
			}
		}
		answers++
		eventually(t, what+": the lesson is over", func() bool {
			return s.metrics().sum("cgn_router_learned_lessons_total", `result="taught"`) == float64(answers)
		})
		return text
	}
	system := strings.Repeat("The router and the cache. ", 60)
	said := []string{system, "What is it?"}
	for turn := range 4 {
		answer := knows(fmt.Sprint("turn ", turn), turn%2 == 1, said...)
		said = append(said, answer, fmt.Sprint("and more of it, please: ", turn))
	}
	knows("another chat", false, system, "Who is it?")
	knows("a chat again", false, said[:4]...)
	knows("a chat once more", false, said[:4]...)
	m := s.metrics()
	if m.sum("cgn_router_learned_wrong_total") > 0 || m.sum("cgn_router_learned_entries") == 0 ||
		m.sum("cgn_router_learned_prompts_total", `result="known"`) == 0 {
		t.Error("the lessons taught something else")
	}
}

// TestUnfollowedTokenizer checks that a tokenizer that the router cannot follow does not keep it
// from starting.
func TestUnfollowedTokenizer(t *testing.T) {
	t.Parallel()
	dir := modelFiles(t, "{% include 'x' %}")
	s := serve(t, simulate(t, 1), func(c *router.Config) {
		c.Models = []router.ModelConfig{{Name: "sim", Tokenizer: dir}}
	})
	if r := s.chat(chatOf(false, "s", "u")); r.status != 200 {
		t.Error(r.status)
	}
	if s.metrics().sum("cgn_router_learned_entries") != 0 {
		t.Error("something is learned although nobody reports blocks")
	}
}
