package learned

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/scan"
)

// askText is ask for the prompt of a completion, of which an earlier prompt had shared bytes.
func askText(t testing.TB, text, more string) *asked {
	t.Helper()
	quoted, _ := json.Marshal(text)
	a := &asked{body: fmt.Appendf(nil, `{"model":"m","prompt":%s%s}`, quoted, more)}
	if err := scan.Scan(scan.Completions, a.body, &a.r); err != nil {
		t.Fatal(err)
	}
	a.chain.Reset(seed, a.r.Text, nil)
	return a
}

func (a *asked) textOrigin(m *Map) Origin {
	form, _ := m.Form(scan.Completions, "m", &a.r, a.body)
	return Origin{seed, form}
}

func (a *asked) recallText(m *Map, shared int) *Entry {
	e, _ := m.Recall(&Text{Chain: &a.chain, Bytes: a.r.Text, Form: a.textOrigin(m).Form, Lines: true, Shared: shared})
	return e
}

func (a *asked) textLesson(m *Map, shared int) *Lesson {
	return m.Lesson(scan.Completions, &a.r, a.body, "m", a.textOrigin(m), shared)
}

// tokenizeText is tokenize for texts.
func (e *toy) tokenizeText(body []byte) ([]uint32, error) {
	e.asked++
	var q struct{ Prompt *string }
	if err := json.Unmarshal(body, &q); err != nil || q.Prompt == nil {
		return nil, fmt.Errorf("%s: %w", body, err)
	}
	return e.encode(*q.Prompt), nil
}

// sharedBlocks returns the bytes of whole blocks that texts have in common with a text.
func sharedBlocks(before []string, text string) (most int) {
	for _, b := range before {
		n := 0
		for n < min(len(b), len(text)) && b[n] == text[n] {
			n++
		}
		most = max(most, n/prefix.BlockBytes*prefix.BlockBytes)
	}
	return most
}

// TestTextsNeverHaveMore checks that what is recalled of a text are its own first blocks, for texts
// that share beginnings and that go on after their answers, and that these are known to the last
// common line.
func TestTextsNeverHaveMore(t *testing.T) {
	for s := range uint64(20) {
		r := rand.New(rand.NewPCG(s, 1))
		e, m := newToy(), NewMap(1<<20)
		var before []string
		heads := []string{letters(r, 700) + "\nx", letters(r, 1500) + ".\n"}
		for i := range 12 {
			text := heads[r.IntN(2)]
			for turn := range 4 {
				text += "Q" + strings.ReplaceAll(letters(r, r.IntN(200)), "\n", "c") + "\nA:"
				shared := sharedBlocks(before, text)
				a, ids := askText(t, text, ""), e.encode(text)
				known := a.recallText(m, shared)
				if known != nil && !known.begins(keys(ids)) {
					t.Fatalf("seed %d, text %d, turn %d: %+v are not the prompt's blocks", s, i, turn, known)
				}
				if turn > 0 && (known == nil || known.Tokens() < len(e.encode(text[:strings.LastIndex(text, "\nQ")]))) {
					t.Fatalf("seed %d, text %d, turn %d: %+v of %d bytes", s, i, turn, known, len(text))
				}
				l, answer := a.textLesson(m, shared), " "+letters(r, 1+r.IntN(100))+"b"
				said, _ := json.Marshal(answer)
				l.Answer.Read(fmt.Appendf(nil, `{"choices":[{"index":0,"text":%s}]}`, said))
				if err := l.Run(e.tokenizeText); err != nil {
					t.Fatal(err)
				}
				before = append(before, text)
				text += answer + "\n"
			}
		}
		if st := m.Stats(); st.Wrong > 0 || st.Taught == 0 || st.Evicted > 0 {
			t.Fatalf("%+v", st)
		}
	}
}

// TestPartedLines checks that two questions behind the same examples teach the end of the examples,
// and that this is found however long the question is.
func TestPartedLines(t *testing.T) {
	e, m := newToy(), NewMap(1<<20)
	examples := strings.Repeat("abc cab\nfor example\n", 40)
	var before []string
	for i := range 3 {
		question := strings.Repeat(fmt.Sprint(i, " is the question "), 6) + "\n"
		text := examples + question + strings.Repeat(fmt.Sprint(i, "\n"), 100)
		shared := sharedBlocks(before, text)
		a := askText(t, text, "")
		known := a.recallText(m, shared)
		if want := len(e.encode(examples)); i == 2 && (known == nil || known.Tokens() != want) {
			t.Errorf("%+v, want %d tokens", known, want)
		}
		if err := a.textLesson(m, shared).Run(e.tokenizeText); err != nil {
			t.Fatal(err)
		}
		before = append(before, text)
	}
	if e.asked > 20 {
		t.Errorf("the engine was asked %d times", e.asked)
	}
}

// TestWholeTexts checks that a prompt is known as a whole, without a line, if it is repeated or if
// the engine has shown its ids.
func TestWholeTexts(t *testing.T) {
	text := strings.Repeat("abc cab ", 30)
	for what, shown := range map[string]bool{"repeated": false, "shown": true} {
		e, m := newToy(), NewMap(1<<20)
		a, shared := askText(t, text, ""), len(text)
		l := a.textLesson(m, shared)
		if shown {
			ids, _ := json.Marshal(e.encode(text))
			l = a.textLesson(m, 0)
			l.Answer.Read(fmt.Appendf(nil, `{"choices":[{"index":0,"text":"","prompt_token_ids":%s}]}`, ids))
		}
		if err := l.Run(e.tokenizeText); err != nil || shown && e.asked > 0 {
			t.Fatal(err, e.asked)
		}
		known, ids := a.recallText(m, shared), e.encode(text)
		if known == nil || known.Tokens() != len(ids) || !slices.Equal(known.Append(nil), keys(ids)) {
			t.Errorf("%s: %+v", what, known)
		}
		if askText(t, text+"a", "").recallText(m, shared) != nil || askText(t, text, `,"add_special_tokens":false`).
			recallText(m, shared) != nil {
			t.Errorf("%s: another prompt is known", what)
		}
		if n := testing.AllocsPerRun(100, func() { a.recallText(m, shared) }); n > 0 {
			t.Errorf("%v allocations", n)
		}
	}
}

// TestTextsThatTeachNothing checks which completions have no lesson, or none of their answer.
func TestTextsThatTeachNothing(t *testing.T) {
	m := NewMap(1 << 20)
	for _, prompt := range []string{`["a","b"]`, `["a"]`, `[1,2]`, `""`} {
		a := &asked{body: []byte(`{"model":"m","prompt":` + prompt + `}`)}
		if err := scan.Scan(scan.Completions, a.body, &a.r); err != nil {
			t.Fatal(err)
		}
		if a.textLesson(m, 0) != nil {
			t.Errorf("%s teaches", prompt)
		}
	}
	for more, whole := range map[string]bool{
		`,"echo":true`: false, `,"echo":false`: true, `,"echo":null`: true, ``: true,
	} {
		l := askText(t, "abc", more).textLesson(m, 0)
		l.Answer.Read([]byte(`{"choices":[{"index":0,"text":"x"}]}`))
		if _, is := l.Answer.Text(); is != whole {
			t.Errorf("%s: the text is the answer: %v", more, is)
		}
	}
}

// TestLineBefore checks where lines begin.
func TestLineBefore(t *testing.T) {
	const text = "\nab\n\ncd\n  ef\ng\n"
	want := map[int]int{0: 0, 1: 1, 3: 1, 4: 1, 5: 5, 12: 5, 13: 13, 14: 13, 15: 13, 99: 13}
	for at, line := range want {
		if got := lineBefore([]byte(text), at); got != line {
			t.Errorf("before %d: %d, want %d", at, got, line)
		}
	}
	if lineBefore(nil, 3) != 0 {
		t.Error("an empty text has lines")
	}
}
