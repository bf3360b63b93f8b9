package learned

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/scan"
)

// message is a message of a chat.
type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// toy is an engine whose tokenizer merges across everything: a token is the longest of its words at
// a place, and the words reach across the marks of the template, and across white space.
type toy struct {
	words []string
	asked int
}

func newToy() *toy {
	return &toy{words: []string{
		"<|user|>\n", "<|user|>", "<|system|>\n", "<|assistant|>", "\n<|", "</s>\n<|", "|>\n", "ab", "abc", "bc a",
		"c a", "a b", " a", "\n\n", "</s>", "s>\n", "cab", "ca</", "b</s>", "user", "ant|>\nx",
	}}
}

func render(messages []message, more bool) string {
	var b strings.Builder
	for _, m := range messages {
		fmt.Fprintf(&b, "<|%s|>\n%s</s>\n", m.Role, m.Content)
	}
	if more {
		b.WriteString("<|assistant|>\n")
	}
	return b.String()
}

func (e *toy) encode(text string) (ids []uint32) {
	for text != "" {
		best, id := 1, uint32(text[0])
		for i, w := range e.words {
			if len(w) > best && strings.HasPrefix(text, w) {
				best, id = len(w), uint32(1000+i)
			}
		}
		ids, text = append(ids, id), text[best:]
	}
	return ids
}

// tokenize is the engine's /tokenize.
func (e *toy) tokenize(body []byte) ([]uint32, error) {
	e.asked++
	q := struct {
		Messages []message
		More     bool `json:"add_generation_prompt"`
	}{More: true}
	if err := json.Unmarshal(body, &q); err != nil {
		return nil, err
	}
	return e.encode(render(q.Messages, q.More)), nil
}

func bodyOf(messages []message) []byte {
	page, _ := json.Marshal(map[string]any{"model": "m", "messages": messages, "temperature": 0})
	return page
}

// asked is a chat as the router looks it up.
type asked struct {
	r     scan.Request
	body  []byte
	chain prefix.Chain
}

var seed = prefix.Seed("m", "", "")

func ask(t testing.TB, messages []message) *asked {
	t.Helper()
	a := &asked{body: bodyOf(messages)}
	if err := scan.Scan(scan.Chat, a.body, &a.r); err != nil {
		t.Fatal(err)
	}
	a.chain.Reset(seed, a.r.Text, nil)
	return a
}

func (a *asked) origin(m *Map) Origin {
	form, _ := m.Form(scan.Chat, "m", &a.r, a.body)
	return Origin{seed, form}
}

func (a *asked) recall(m *Map) *Entry {
	e, _ := m.Recall(&Text{Chain: &a.chain, Bytes: a.r.Text, Form: a.origin(m).Form})
	return e
}

// keys returns the blocks of ids.
func keys(ids []uint32) []uint64 {
	var c prefix.Chain
	c.Reset(seed, nil, ids)
	c.HashTo(c.Blocks())
	return c.Keys()
}

func letters(r *rand.Rand, n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = "abc \n"[r.IntN(5)]
	}
	return string(b)
}

// TestNeverMoreThanTheTokens checks that what is recalled of a chat are its own first blocks, for
// chats that share beginnings, and that a chat's next turn is known to its end.
func TestNeverMoreThanTheTokens(t *testing.T) {
	for s := range uint64(20) {
		r := rand.New(rand.NewPCG(s, 1))
		e, m := newToy(), NewMap(1<<20)
		systems := []string{letters(r, 300), letters(r, 500), "ab"}
		for chat := range 12 {
			said := []message{{"system", systems[r.IntN(3)]}}
			for turn := range 4 {
				said = append(said, message{"user", "x" + letters(r, r.IntN(200))})
				a, ids := ask(t, said), e.encode(render(said, true))
				known := a.recall(m)
				if known != nil && !known.begins(keys(ids)) {
					t.Fatalf("seed %d, chat %d, turn %d: %+v are not the prompt's blocks", s, chat, turn, known)
				}
				before := len(e.encode(render(said[:len(said)-1], false)))
				if turn > 0 && (known == nil || known.Tokens() < before-2) {
					t.Fatalf("seed %d, chat %d, turn %d: %+v, the turns before had %d tokens", s, chat, turn, known, before)
				}
				l := m.Lesson(scan.Chat, &a.r, a.body, "m", a.origin(m), 0)
				answer := letters(r, 1+r.IntN(100))
				page, _ := json.Marshal(map[string]any{
					"choices": []any{map[string]any{"index": 0, "message": message{"assistant", answer}}},
				})
				l.Answer.Read(page)
				if err := l.Run(e.tokenize); err != nil {
					t.Fatal(err)
				}
				said = append(said, message{"assistant", answer})
			}
		}
		if st := m.Stats(); st.Wrong > 0 || st.Taught == 0 || st.Evicted > 0 {
			t.Fatalf("%+v", st)
		}
	}
}

// TestRepeatedChat checks that a chat that an earlier one equals is known as a whole.
func TestRepeatedChat(t *testing.T) {
	e, m := newToy(), NewMap(1<<20)
	said := []message{{"user", letters(rand.New(rand.NewPCG(1, 1)), 700)}}
	a := ask(t, said)
	if err := m.Lesson(scan.Chat, &a.r, a.body, "m", a.origin(m), len(a.r.Text)).Run(e.tokenize); err != nil {
		t.Fatal(err)
	}
	known, ids := ask(t, said).recall(m), e.encode(render(said, true))
	if known == nil || known.Tokens() != len(ids) || !slices.Equal(known.Append(nil), keys(ids)) {
		t.Errorf("%+v", known)
	}
}

// TestAnswerThatIsNoText checks that a chat is learned up to its answer if that is a tool call.
func TestAnswerThatIsNoText(t *testing.T) {
	e, m := newToy(), NewMap(1<<20)
	said := []message{{"user", "x" + letters(rand.New(rand.NewPCG(1, 2)), 400)}}
	a := ask(t, said)
	l := m.Lesson(scan.Chat, &a.r, a.body, "m", a.origin(m), 0)
	l.Answer.Read([]byte(`{"choices":[{"message":{"content":"let me see","tool_calls":[{"id":"1"}]}}]}`))
	if err := l.Run(e.tokenize); err != nil {
		t.Fatal(err)
	}
	next := append(said, message{"assistant", "x"}, message{"tool", "3"})
	known := ask(t, next).recall(m)
	before, all := e.encode(render(said, true)), e.encode(render(next, true))
	if known == nil || known.Tokens() < len(before)-2 || !known.begins(keys(all)) {
		t.Errorf("%+v", known)
	}
}

// TestPartedText checks that the place where chats part is learned.
func TestPartedText(t *testing.T) {
	e, m := newToy(), NewMap(1<<20)
	r := rand.New(rand.NewPCG(1, 1))
	said := []message{{"user", letters(r, 300)}, {"assistant", letters(r, 200)}}
	first := ask(t, append(said[:2:2], message{"user", "xa"}))
	shared := len(ask(t, said).r.Text) + 5
	if err := m.Lesson(scan.Chat, &first.r, first.body, "m", first.origin(m), shared).Run(e.tokenize); err != nil {
		t.Fatal(err)
	}
	known := ask(t, append(said[:2:2], message{"user", "x" + letters(r, 100)})).recall(m)
	if want := len(e.encode(render(said, false))); known == nil || known.Tokens() < want {
		t.Errorf("%+v, want %d tokens", known, want)
	}
}

// TestBodyThatChangesTokens checks that a body with another member has another form, and a null or
// a sampling parameter not.
func TestBodyThatChangesTokens(t *testing.T) {
	m := NewMap(1 << 20)
	form := func(more string) uint64 {
		var r scan.Request
		body := []byte(`{"model":"m","messages":[{"role":"user","content":"a"}]` + more + `}`)
		if err := scan.Scan(scan.Chat, body, &r); err != nil {
			t.Fatal(err)
		}
		f, ok := m.Form(scan.Chat, "m", &r, body)
		if !ok {
			return 0
		}
		return f
	}
	plain := form("")
	if form(`,"temperature":1,"max_tokens":3,"documents":null`) != plain {
		t.Error("sampling changes the form")
	}
	one := form(`,"reasoning_effort":"high","chat_template_kwargs":{"a":1}`)
	if one == plain || one != form(`,"chat_template_kwargs":{"a":1},"reasoning_effort":"high"`) {
		t.Error("the form is not that of its members")
	}
	if one == form(`,"reasoning_effort":"low","chat_template_kwargs":{"a":1}`) {
		t.Error("the value does not count")
	}
	if form(`,"tool\u005fchoice":1`) != 0 {
		t.Error("an escaped name has a form")
	}
}

// TestMembersThatTokenizeIgnores checks that a chat with a member that /tokenize ignores asks the
// engine for nothing, and teaches the ids of the whole chat that its answer shows.
func TestMembersThatTokenizeIgnores(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	said := []message{{"system", letters(r, 300)}, {"user", letters(r, 300)}}
	for member, ignored := range map[string]bool{
		`"reasoning_effort":"high"`: true, `"documents":[{"text":"a"}]`: true, `"truncate_prompt_tokens":9`: true,
		`"a_later_one":1`: true, `"reasoning_effort":null`: false, `"temperature":1`: false,
		`"chat_template_kwargs":{"enable_thinking":false}`: false, `"tools":[],"tool_choice":"auto"`: false,
	} {
		e, m := newToy(), NewMap(1<<20)
		a := &asked{body: append(bytes.TrimSuffix(bodyOf(said), []byte("}")), ","+member+"}"...)}
		if err := scan.Scan(scan.Chat, a.body, &a.r); err != nil {
			t.Fatal(err)
		}
		a.chain.Reset(seed, a.r.Text, nil)
		lesson := func(shows bool) {
			l := m.Lesson(scan.Chat, &a.r, a.body, "m", a.origin(m), len(a.r.Text))
			page := map[string]any{"choices": []any{map[string]any{"message": message{"assistant", "x"}}}}
			if shows {
				page["prompt_token_ids"] = e.encode(render(said, true))
			}
			doc, _ := json.Marshal(page)
			l.Answer.Read(doc)
			if err := l.Run(e.tokenize); err != nil {
				t.Fatal(err)
			}
		}
		lesson(false)
		if st := m.Stats(); (e.asked == 0) != ignored || (st.Taught == 0) != ignored {
			t.Errorf("%s: asked %d times, %+v", member, e.asked, st)
		}
		lesson(true)
		if known := a.recall(m); known == nil || !slices.Equal(known.Append(nil), keys(e.encode(render(said, true)))) {
			t.Errorf("%s: %+v", member, known)
		}
		if ignored && (e.asked != 0 || m.Stats().Taught != 1) {
			t.Errorf("%s: asked %d times, %+v", member, e.asked, m.Stats())
		}
	}
}

// TestTwoModels lets the engines of two models teach equal chats. One template ends each message
// with two more ids, which the other model's ids behind a boundary, and the trust in it, must not
// see.
func TestTwoModels(t *testing.T) {
	e, m := newToy(), NewMap(1<<20)
	models := map[string]int{"short": 0, "long": 2}
	tails := map[string]tail{}
	for i := range surely {
		for model, more := range models {
			a := ask(t, []message{{"user", strings.Repeat("ab", 100+i)}})
			form, _ := m.Form(scan.Chat, model, &a.r, a.body)
			l := m.Lesson(scan.Chat, &a.r, a.body, model, Origin{prefix.Seed(model, "", ""), form}, 0)
			if err := l.Run(func(body []byte) ([]uint32, error) {
				ids, err := e.tokenize(body)
				return append(ids, make([]uint32, more)...), err
			}); err != nil {
				t.Fatal(err)
			}
			tails[model] = m.formOf(form).tails["assistant"]
			if model == "long" {
				m.Settle(&Entry{form: form}, false)
			} else if m.formOf(form).wrong > 0 {
				t.Error("one model answers for the other")
			}
		}
	}
	if s, l := tails["short"], tails["long"]; s.agreed != surely || l.agreed != surely || l.ids != s.ids+2 {
		t.Errorf("%+v", tails)
	}
}

// TestSettle checks that a contradicted beginning goes, and that a form that is mostly wrong is not
// used any more.
func TestSettle(t *testing.T) {
	m := NewMap(1 << 20)
	for i := range uint64(tooWrong) {
		m.put(&Entry{key: i, form: 7}, nil, []uint64{1, 2})
		e, _ := m.first([]uint64{i})
		m.Settle(e, false)
		if e, _ := m.first([]uint64{i}); e != nil {
			t.Fatal("a wrong beginning is known")
		}
	}
	if !m.trusts(7) || m.Stats().Wrong != tooWrong {
		t.Fatalf("%+v", m.Stats())
	}
	e := &Entry{key: 99, form: 7}
	m.Settle(e, true)
	m.Settle(e, false)
	if !m.trusts(7) {
		t.Error("a form that was right once is not trusted")
	}
	if m.Settle(e, false); m.trusts(7) || !m.trusts(8) {
		t.Error("a wrong form is trusted")
	}
}

// TestDistrustFades checks that a form that was wrong is used again after a while.
func TestDistrustFades(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := NewMap(1 << 20)
		for range tooWrong + 1 {
			m.Settle(&Entry{form: 7}, false)
		}
		if time.Sleep(fadeEvery - 1); m.trusts(7) || m.Stats().Distrusted != 1 {
			t.Errorf("at first: %+v", m.Stats())
		}
		if time.Sleep(time.Nanosecond); !m.trusts(7) || m.Stats().Distrusted != 0 {
			t.Errorf("later: %+v", m.Stats())
		}
		for range tooWrong + 1 - (tooWrong+1)/2 {
			m.Settle(&Entry{form: 7}, false)
		}
		if m.trusts(7) {
			t.Error("a form that goes on to be wrong is trusted")
		}
		time.Sleep(100 * fadeEvery)
		if m.Settle(&Entry{form: 7}, true); m.formOf(7).wrong != 0 || m.formOf(7).right != 1 {
			t.Errorf("%+v after a long time", m.formOf(7))
		}
	})
}

// TestManyForms checks that the records of forms are bounded, and that those in use stay.
func TestManyForms(t *testing.T) {
	m := NewMap(1 << 20)
	for range tooWrong + 1 {
		m.Settle(&Entry{form: 7}, false)
	}
	for form := range uint64(2 * maxForms) {
		if m.agree(1000+form, []byte("user"), 3); m.trusts(7) {
			t.Fatalf("a wrong form in use is forgotten after %d others", form)
		}
	}
	if n := len(m.forms.known); n != maxForms || m.forms.order.Len() != n {
		t.Errorf("%d forms", n)
	}
	if m.forms.find(1000) != nil || m.forms.find(999+2*maxForms) == nil {
		t.Error("not the oldest forms went")
	}
}

// TestRoom checks that the map keeps to its size, and forgets children before their parents.
func TestRoom(t *testing.T) {
	const size = 20 << 10
	m := NewMap(size)
	r := rand.New(rand.NewPCG(3, 3))
	blocks := map[uint64][]uint64{}
	for i := range uint64(3000) {
		var parent *Entry
		own := []uint64{r.Uint64(), r.Uint64()}
		if k := r.Uint64N(i + 1); i > 0 {
			if parent, _ = m.first([]uint64{k}); parent != nil {
				own = append(parent.Append(nil), own...)
			}
		}
		blocks[i] = own
		m.put(&Entry{key: i, tokens: 16 * len(own)}, parent, own)
		st := m.Stats()
		if st.Bytes > size {
			t.Fatalf("%d bytes", st.Bytes)
		}
		for key, e := range m.known {
			if e.parent != nil && e.parent.older == nil {
				t.Fatalf("the parent of %d is forgotten", key)
			}
			if key == i && !slices.Equal(e.Append(nil), blocks[key]) {
				t.Fatalf("%d has other blocks", key)
			}
		}
	}
	if st := m.Stats(); st.Evicted == 0 || st.Entries == 0 {
		t.Errorf("%+v", st)
	}
}

// TestUsedEntriesStay checks that the entry goes that was used least recently, over several uses
// between two stored entries.
func TestUsedEntriesStay(t *testing.T) {
	const room = 8
	m := NewMap(room * (entryBytes + 8))
	for i := range uint64(100) {
		for range 2 {
			for key := range min(i, room/2) {
				if e, _ := m.first([]uint64{key}); e == nil {
					t.Fatalf("%d is forgotten after %d others", key, i)
				}
			}
		}
		m.put(&Entry{key: i, tokens: 16}, nil, []uint64{i})
	}
	if n := m.Stats().Entries; n != room {
		t.Errorf("%d entries", n)
	}
}

// TestNoRoom checks that a map of size 0 learns nothing.
func TestNoRoom(t *testing.T) {
	for size, learns := range map[int]bool{0: false, 1 << 10: true} {
		m := NewMap(size)
		if m.Learn(map[string]struct{}{"m": {}}); m.Learns("m") != learns || m.Learns("other") {
			t.Errorf("%d bytes: %v", size, !learns)
		}
	}
}

// TestAnswers checks what counts as the text of an answer.
func TestAnswers(t *testing.T) {
	for want, docs := range map[string][]string{
		"a\nb": {`{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`,
			`{"choices":[{"index":0,"delta":{"content":"a\n"}}]}`,
			`{"choices":[{"index":0,"delta":{"content":"b","tool_calls":null}}],"usage":{}}`, `{"choices":[]}`},
		"":  {`{"choices":[{"message":{"content":null,"tool_calls":[{"id":"x"}]}}]}`},
		" ": {`{"choices":[{"message":{"content":" ","reasoning":"hm"}}]}`},
	} {
		var a Answer
		for _, doc := range docs {
			a.Read([]byte(doc))
		}
		if text, whole := a.Text(); string(text) != want || whole != (want != "") {
			t.Errorf("%q %v, want %q", text, whole, want)
		}
	}
	for _, doc := range []string{`{"choices":[{"index":1,"delta":{"content":"a"}}]}`, `{"choices":[{},{}]}`,
		`{"choices":[{"message":{"content":"a","tool_calls":[1]}}]}`, `{"choices":[{"delta":`,
		`{"choices":[{"delta":{"content":"` + strings.Repeat("x", maxAnswer+1) + `"}}]}`} {
		a := Answer{text: []byte("x")}
		if a.Read([]byte(doc)); !a.strict {
			t.Errorf("%.40s is one text", doc)
		}
	}
}

// FuzzIDs reads any answer of an engine.
func FuzzIDs(f *testing.F) {
	f.Add([]byte(`{"count":2,"max_model_len":9,"tokens":[1,2],"token_strs":null}`))
	f.Add([]byte(`{"tokens":[-1]}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		ids, err := IDs(doc)
		if (err == nil) != (len(ids) > 0) {
			t.Errorf("%d ids, %v", len(ids), err)
		}
	})
}

// FuzzLesson lets any body teach, by an engine whose ids are any bytes.
func FuzzLesson(f *testing.F) {
	f.Add(bodyOf([]message{{"system", "s"}, {"user", "u"}}), []byte("12345678901234567890"), 40)
	f.Fuzz(func(t *testing.T, body, ids []byte, shared int) {
		var r scan.Request
		if scan.Scan(scan.Chat, body, &r) != nil {
			return
		}
		m := NewMap(1 << 16)
		form, ok := m.Form(scan.Chat, "m", &r, body)
		l := m.Lesson(scan.Chat, &r, body, "m", Origin{seed, form}, shared)
		if !ok {
			return
		}
		if l == nil {
			return
		}
		l.Answer.Read(ids)
		n := 0
		_ = l.Run(func(body []byte) ([]uint32, error) {
			if n++; !json.Valid(body) || n > 7 {
				t.Fatalf("%d: %s", n, body)
			}
			var out []uint32
			for _, b := range bytes.TrimRight(ids, string(rune('0'+n))) {
				out = append(out, uint32(b))
			}
			return out, nil
		})
	})
}

func TestRecallDoesNotAllocate(t *testing.T) {
	e, m := newToy(), NewMap(1<<20)
	a := ask(t, []message{{"system", strings.Repeat("ab", 300)}, {"user", "x"}})
	if err := m.Lesson(scan.Chat, &a.r, a.body, "m", a.origin(m), 0).Run(e.tokenize); err != nil {
		t.Fatal(err)
	}
	a.chain.HashTo(a.chain.Blocks())
	form, _ := m.Form(scan.Chat, "m", &a.r, a.body)
	text := &Text{Chain: &a.chain, Bytes: a.r.Text, Form: form}
	var out []uint64
	if n := testing.AllocsPerRun(100, func() {
		e, _ := m.Recall(text)
		out = e.Append(out[:0])
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// BenchmarkRecall looks up the 21st turn of a chat of 32 KiB, whose 20th turn is known.
func BenchmarkRecall(b *testing.B) {
	e, m := newToy(), NewMap(1<<20)
	r := rand.New(rand.NewPCG(9, 9))
	said := []message{{"system", letters(r, 2000)}}
	for range 20 {
		said = append(said, message{"user", "x" + letters(r, 300)}, message{"assistant", letters(r, 1200)})
	}
	a := ask(b, append(said[:40:40], message{"user", "xyz"}))
	if err := m.Lesson(scan.Chat, &a.r, a.body, "m", a.origin(m), len(a.r.Text)-64).Run(e.tokenize); err != nil {
		b.Fatal(err)
	}
	var keys []uint64
	for b.Loop() {
		a.chain.Reset(seed, a.r.Text, nil)
		form, _ := m.Form(scan.Chat, "m", &a.r, a.body)
		e, _ := m.Recall(&Text{Chain: &a.chain, Bytes: a.r.Text, Form: form})
		keys = e.Append(keys[:0])
	}
	b.ReportMetric(float64(len(keys)), "blocks")
}
