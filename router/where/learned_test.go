package where

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router/holdings"
	"github.com/cognitora/dataplane/router/learned"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
)

// halves are the ids of an engine with a token for each two bytes of a chat.
func halves(body []byte) (ids []uint32, err error) {
	list, err := scan.Find(body, "messages")
	for i := 0; i+1 < len(list); i += 2 {
		ids = append(ids, uint32(list[i])|uint32(list[i+1])<<8)
	}
	return ids, err
}

// taught returns a finder that knows the system prompt of a chat, and the chat as the finder has
// recalled it.
func taught(t *testing.T, system string) (*Finder, *Prompt) {
	t.Helper()
	f := &Finder{
		Index: prefix.NewIndex(prefix.Options{}), Learned: learned.NewMap(1 << 20), Metrics: metrics.New(),
	}
	f.Learned.Learn(map[string]struct{}{"m": {}})
	p := new(Prompt)
	f.Find(p, read(t, f, scan.Chat, turns(system, "xyz")), "m", prefix.Seed("m", "", ""), nil)
	if f.recall(p, "m") {
		t.Fatal("an untaught chat is known")
	}
	if err := p.Lesson("m").Run(halves); err != nil {
		t.Fatal(err)
	}
	if !f.recall(p, "m") {
		t.Fatal("a taught chat is unknown")
	}
	return f, p
}

// TestKnownBeginning checks what an engine's report about a known beginning makes of the
// prediction.
func TestKnownBeginning(t *testing.T) {
	_, p := taught(t, strings.Repeat("the cache ", 64))
	known := int32(p.known.Blocks())
	if known < 18 || p.Blocks < int(known) || p.Tokens() < int64(p.known.Tokens()) {
		t.Fatalf("%d of %d blocks, %d tokens", known, p.Blocks, p.Tokens())
	}
	text := int32(p.chain.Blocks())
	for _, c := range []struct {
		what             string
		reported         int32
		predicted        int32 // blocks of text
		matched, promise int32
	}{
		{"nothing is reported", holdings.Unknown, 4, p.inTokens(4), holdings.Unknown},
		{"a part of it", 3, text, 3, 3},
		{"all of it", known, 2, known, known},
		{"all of it, and the text goes on a little", known, int32(float64(known+2) / p.ratio), known, known},
		{"nothing", 0, text, 0, 0},
	} {
		p.matched, p.coming, p.reach = []int32{c.predicted}, []int32{c.predicted}, nil
		p.query.Reach = []holdings.Reach{{Device: c.reported, Host: 1}}
		p.join()
		if r := p.Reach(0); r.Device != c.matched || r.Host < r.Device || p.Promised(0) != int(c.promise) {
			t.Errorf("%s: %+v, %d promised; want %d and %d", c.what, r, p.Promised(0), c.matched, c.promise)
		}
		if p.Predicted(0) != int(c.predicted) {
			t.Errorf("%s: the index is held to %d, not %d", c.what, p.Predicted(0), c.predicted)
		}
		if p.Coming(0) < p.Reach(0).Device {
			t.Errorf("%s: fewer blocks are coming than are there", c.what)
		}
	}
	p.Blocks = 100
	p.matched, p.coming, p.reach = []int32{200}, []int32{200}, nil
	p.query.Reach = []holdings.Reach{{Device: known}}
	if p.join(); p.Reach(0).Device != 99 {
		t.Errorf("a prediction far behind the beginning: %+v", p.Reach(0))
	}
}

// TestConfirm checks which counts of cached tokens contradict a beginning.
func TestConfirm(t *testing.T) {
	for _, c := range []struct {
		what           string
		promised       int // less than all of the beginning's blocks
		prompt, cached int64
		block          int
		wrong          bool
	}{
		{"as promised", 6, 500, 96, 16, false},
		{"blocks of 64 tokens", 6, 500, 64, 64, false},
		{"the last token is always computed", 6, 96, 80, 16, false},
		{"a block less", 6, 500, 80, 16, true},
		{"more, from the answer", 6, 500, 128, 16, false},
		{"much more, but unreported", 6, 500, 320, 16, true},
		{"nothing was promised", 0, 500, 0, 16, false},
		{"the engine reports nothing", holdings.Unknown, 500, 320, 16, false},
	} {
		f, p := taught(t, strings.Repeat("the cache ", 64))
		p.Confirm(c.promised, c.prompt, c.cached, c.block)
		if wrong := f.Learned.Stats().Wrong; (wrong > 0) != c.wrong {
			t.Errorf("%s: %d wrong", c.what, wrong)
		}
	}
}

// TestKnownBehindPassedText checks that a beginning is known too if the scan passes over most of
// it.
func TestKnownBehindPassedText(t *testing.T) {
	f := &Finder{
		Memo: NewMemo(4 << 20), Index: prefix.NewIndex(prefix.Options{}), Learned: learned.NewMap(1 << 20),
		Metrics: metrics.New(),
	}
	f.Learned.Learn(map[string]struct{}{"sim": {}})
	texts := []string{}
	passed := 0
	for turn := range 12 {
		texts = append(texts, strings.Repeat("tell me more of it. ", 200))
		r, p := read(t, f, scan.Chat, turns("be brief", texts...)), new(Prompt)
		f.Find(p, r, "sim", prefix.Seed("sim", "", ""), nil)
		if known := f.recall(p, "sim"); known != (turn > 0) {
			t.Fatalf("turn %d: known is %v", turn, known)
		}
		if turn > 0 && p.known.Tokens() < len(turns("be brief", texts[:turn*2]...))/2-40 {
			t.Errorf("turn %d: only %d tokens are known", turn, p.known.Tokens())
		}
		passed += r.Scan.Skipped
		answer := strings.Repeat("gladly. ", 200)
		l := p.Lesson("sim")
		l.Answer.Read(fmt.Appendf(nil, `{"choices":[{"message":{"content":%q}}]}`, answer))
		if err := l.Run(halves); err != nil {
			t.Fatal(err)
		}
		texts = append(texts, answer)
		f.remember(p)
		if p.Reset(); p.known != nil || p.Found() {
			t.Fatal("the prompt keeps its beginning")
		}
	}
	if passed < 100_000 {
		t.Errorf("only %d bytes were passed over", passed)
	}
}

// TestKnownText checks that the lines with which the texts of completions begin are known, also if
// the scan passes over most of them, and that several prompts, or one that is cut, are not.
func TestKnownText(t *testing.T) {
	f := &Finder{
		Memo: NewMemo(4 << 20), Index: prefix.NewIndex(prefix.Options{}), Learned: learned.NewMap(1 << 20),
		Metrics: metrics.New(),
	}
	f.Learned.Learn(map[string]struct{}{"sim": {}})
	bytewise := func(body []byte) (ids []uint32, err error) {
		text, err := scan.Find(body, "prompt")
		for _, b := range text[1 : len(text)-1] {
			ids = append(ids, uint32(b))
		}
		return ids, err
	}
	text, passed := strings.Repeat("an example of what is asked, and of the answer\n", 100), 0
	for turn := range 10 {
		text += strings.Repeat("tell me more of it. ", 200) + "\nA:"
		ask := func(form string) (*request.Request, *Prompt, bool) {
			r, p := read(t, f, scan.Completions, fmt.Appendf(nil, form, text)), new(Prompt)
			f.Find(p, r, "sim", prefix.Seed("sim", "", ""), nil)
			return r, p, f.recall(p, "sim")
		}
		if _, _, known := ask(`{"model":"sim","prompt":[%q,"b"]}`); known {
			t.Error("two prompts are known")
		}
		if _, _, known := ask(`{"model":"sim","truncate_prompt_tokens":9,"prompt":%q}`); known {
			t.Error("a prompt is known that the engine cuts")
		}
		r, p, known := ask(`{"model":"sim","prompt":%q}`)
		if known != (turn > 0) {
			t.Fatalf("turn %d: known is %v", turn, known)
		}
		if turn > 0 && p.known.Tokens() < strings.LastIndex(text[:len(text)-3], "\n") {
			t.Errorf("turn %d: only %d tokens are known of %d", turn, p.known.Tokens(), len(text))
		}
		passed += r.Scan.Skipped
		l := p.Lesson("sim")
		l.Answer.Read([]byte(`{"choices":[{"index":0,"text":" gladly"}]}`))
		if err := l.Run(bytewise); err != nil {
			t.Fatal(err)
		}
		text += " gladly\n"
		f.remember(p)
	}
	if passed < 100_000 {
		t.Errorf("only %d bytes were passed over", passed)
	}
}
