package realengine

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestVLLMLearned: the router cannot follow the tokenizer of the model, and learns from the engine
// which tokens the chats begin with that repeat. Its knowledge then equals the engine's cache.
func TestVLLMLearned(t *testing.T) {
	for _, kind := range []string{"unigram", "byte-fallback"} {
		t.Run(kind, func(t *testing.T) { learnsTokens(t, kind) })
	}
}

func learnsTokens(t *testing.T, kind string) {
	s := prepared(t, "vllm")
	own := filepath.Join(s.run, kind)
	maker := filepath.Join(filepath.Dir(os.Getenv("REALENGINE_SERVE")), "make_tiny_model.py")
	make := exec.Command(os.Getenv("REALENGINE_PYTHON"), maker, own, "--tokenizer", kind)
	if out, err := make.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	events, replay := "ipc://"+filepath.Join(s.run, "l-"+kind[:3]), "ipc://"+filepath.Join(s.run, "r-"+kind[:3])
	config, err := json.Marshal(object{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": events,
		"replay_endpoint": replay, "topic": "kv", "buffer_steps": 10000})
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{
		setup: s, id: "vllm-" + kind, address: free(t), flags: vllmFlags(own, "--enable-prompt-tokens-details",
			"--kv-events-config", string(config),
			"--num-gpu-blocks-override", "1024", "--kv-cache-memory-bytes", "64M"),
		options:   ",kv-events=" + events + ",kv-replay=" + replay,
		tokenizer: own,
	}
	e.start(t)
	e.awaitReady(t)
	x := &learnedTokens{exact: &exact{site: s.site(t, e), engine: e}}
	within(t, soon, "the events are followed", x.following)
	const chats, turns, systems = 100, 3, 5
	for i := range chats {
		system := prose(fmt.Sprint("system ", i%systems), 700)
		said := []object{{"role": "system", "content": system}}
		for turn := range turns {
			said = append(said, object{"role": "user", "content": prose(fmt.Sprint("chat ", i, " turn ", turn), 160)})
			a := x.ask(t, fmt.Sprint("chat ", i, " turn ", turn), said, i+i/10+turn)
			said = append(said, object{"role": "assistant", "content": a.text()})
		}
		if i%10 == 0 { // the same chat again
			x.ask(t, fmt.Sprint("chat ", i, " again"), said[:len(said)-1], i/10)
			x.ask(t, fmt.Sprint("chat ", i, " once more"), said[:len(said)-1], i/10+1)
		}
	}
	chatsAsked := *x
	x.texts(t)
	page := x.read("/metrics")
	of := func(what string, x, before *learnedTokens) {
		t.Logf("%s, %s: %d prompts, %d with a cached beginning; for %d of these the router's blocks were the engine's, "+
			"for %d fewer, for %d more", kind, what, x.asked-before.asked, x.repeated-before.repeated,
			x.equal-before.equal, x.fewer-before.fewer, x.more-before.more)
	}
	of("chats", &chatsAsked, &learnedTokens{})
	of("completions", x, &chatsAsked)
	t.Logf("%s: %d prompts, %d with a cached beginning; for %d of these the router's blocks were the engine's, "+
		"for %d fewer, for %d more; %v beginnings taught, %v wrong",
		kind, x.asked, x.repeated, x.equal, x.fewer, x.more,
		sum(t, page, "cgn_router_learned_taught_total"), sum(t, page, "cgn_router_learned_wrong_total"))
	if chatsAsked.repeated < chats*turns/2 || chatsAsked.equal*100 < chatsAsked.repeated*95 || x.more > 0 {
		t.Errorf("too few are equal, or some are more")
	}
	if repeated := x.repeated - chatsAsked.repeated; repeated < 60 || (x.equal-chatsAsked.equal)*100 < repeated*80 {
		t.Errorf("too few are equal of the completions")
	}
}

// texts asks for completions: of questions behind the same examples, of texts that go on after
// their answers, and of some again.
func (x *learnedTokens) texts(t *testing.T) {
	const kinds, questions, turns = 3, 15, 3
	for i := range kinds * questions {
		var text string
		for line := range 12 {
			text += prose(fmt.Sprint("example ", i%kinds, " ", line), 90) + "\n"
		}
		for turn := range turns {
			name := fmt.Sprint("text ", i, " turn ", turn)
			text += prose(name, 120) + "\n" + "A:"
			body := func() object { return object{"model": model, "prompt": text, "temperature": 0} }
			a := x.askFor(t, name, "completions", body(), i+turn)
			if i%9 == 0 {
				x.askFor(t, name+" again", "completions", body(), i+turn+1)
			}
			text += a.text() + "\n"
		}
	}
}

type learnedTokens struct {
	*exact
	asked, repeated, equal, fewer, more int
}

// ask sends a chat, compares the router's knowledge with the engine's count, and waits until the
// engine has taught the router.
func (x *learnedTokens) ask(t *testing.T, what string, said []object, odd int) *answer {
	t.Helper()
	return x.askFor(t, what, "chat", chatBody(said, nil), odd)
}

// askFor is ask for a body of an API. If odd is odd, the answer is a stream.
func (x *learnedTokens) askFor(t *testing.T, what, api string, body object, odd int) *answer {
	t.Helper()
	body["max_tokens"] = 40
	if odd%2 == 1 {
		body["stream"], body["stream_options"] = true, object{"include_usage": true}
	}
	known := x.knows(t, api, body)
	a := x.must(t, map[string]string{"chat": "/v1/chat/completions", "completions": "/v1/completions"}[api], body)
	c, ok := a.counts()
	want := vllmBlock * min(known*ourBlock/vllmBlock, (c.prompt-1)/vllmBlock)
	found := max(c.cached, 0)
	switch x.asked++; {
	case !ok:
		t.Fatalf("%s: no count of cached tokens: %v", what, a)
	case found == 0 && want == 0:
	case found == want:
		x.repeated, x.equal = x.repeated+1, x.equal+1
	case found > want:
		x.repeated, x.fewer = x.repeated+1, x.fewer+1
		t.Logf("%s: %d of %d tokens were cached, %d were known", what, found, c.prompt, want)
	default:
		x.repeated, x.more = x.repeated+1, x.more+1
		t.Logf("%s: %d of %d tokens were cached, but %d were believed", what, found, c.prompt, want)
	}
	within(t, soon, "the lesson is over", func() bool {
		return x.metric(t, "cgn_router_learned_lessons_total") == float64(x.asked)
	})
	return a
}
