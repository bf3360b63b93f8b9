package scan

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// talk makes bodies with common beginnings in many spellings.
type talk struct {
	*rand.Rand
	turns []string // conversations are prefixes of this list
	root  []string // members other than the messages, JSON
}

var words = []string{
	"plain ", "text ", `\"quoted\" `, `line\n`, "größer ", "日本 ", "😀", `\u00e9 `, `\ud83d\ude00`, `\ud800`,
	`back\\slash `, "                ",
	"a long run of plain text that goes on for more than one register of the machine ",
}

func (t *talk) text(n int) string {
	var b strings.Builder
	for b.Len() < n {
		b.WriteString(words[t.IntN(len(words))])
	}
	return b.String()
}

func (t *talk) size() int {
	if t.IntN(4) == 0 {
		return t.IntN(20_000)
	}
	return t.IntN(600)
}

// object writes the members in the given order or in another one.
func (t *talk) object(members ...string) string {
	if t.IntN(6) == 0 {
		t.Shuffle(len(members), func(i, k int) { members[i], members[k] = members[k], members[i] })
	}
	return "{" + strings.Join(members, []string{",", ", ", " ,\n"}[t.IntN(3)]) + "}"
}

func (t *talk) turn(i int) string {
	role := fmt.Sprintf(`"role":%q`, []string{"user", "assistant", "system", "tool"}[(i+t.IntN(2))%4])
	if i == 0 && t.IntN(2) == 0 {
		role = `"role":"system"`
	}
	content := fmt.Sprintf(`"content":"%s"`, t.text(t.size()))
	switch t.IntN(8) {
	case 0:
		content = `"content": [` + t.object(`"type":"text"`, fmt.Sprintf(`"text":"%s"`, t.text(t.size()))) + `,` +
			t.object(`"type":"image_url"`, `"image_url":{"url":"data:`+strings.Repeat("iVBORw0K", t.IntN(2000))+`"}`) +
			`, "tail"]`
	case 1:
		return t.object(role, content, `"name":"bob"`)
	case 2:
		return t.object(role, `"content":null`, `"tool_calls":[{"id":"c1","function":{"name":"f",`+
			`"arguments":"`+t.text(t.IntN(9000))+`"}}]`)
	case 3:
		return t.object(`"type":"message"`, content, `"status":"completed"`)
	case 4:
		return t.object(`"type":"message"`, role, content)
	}
	return t.object(role, content)
}

func (t *talk) body(api API) []byte {
	n := 1 + t.IntN(len(t.turns))
	turns := append([]string{}, t.turns[:n]...)
	switch last := turns[n-1]; t.IntN(4) {
	case 0: // the last string ends earlier
		if i := strings.LastIndex(last, "plain "); i > 0 {
			turns[n-1] = last[:i] + "PLAIN" + last[i+5:]
		}
	case 1:
		turns = append(turns, t.turn(n))
	case 2: // a member that belongs before text that may have been skipped
		if !strings.Contains(last, `"name"`) {
			turns[n-1] = last[:len(last)-1] + `,"name":"late"}`
		}
	}
	list := "[" + strings.Join(turns, ",") + "]"
	prompt := map[API]string{Chat: `"messages":` + list, Messages: `"messages":` + list, Responses: `"input":` + list,
		Completions: `"prompt":` + strings.ReplaceAll(fmt.Sprintf("%q", strings.Join(turns, "")), `\x`, "x"),
	}[api]
	members := append([]string{}, t.root...)
	at := []int{0, len(members), t.IntN(len(members) + 1)}[t.IntN(3)]
	return []byte("{" + strings.Join(slices.Insert(members, at, prompt), ",") + "}")
}

func newTalk(seed uint64) *talk {
	t := &talk{Rand: rand.New(rand.NewPCG(seed, 7))}
	for i := range 12 {
		t.turns = append(t.turns, t.turn(i))
	}
	all := []string{`"model":"m"`, `"stream":true`, `"stream_options":{"include_usage":false}`, `"max_tokens":5`,
		`"cache_salt":"s"`, `"nvext":{"agent_hints":{"osl":9}}`, `"unknown":[1,{"a":"` + t.text(3000) + `"}]`,
		`"tools":[{"type":"function","function":{"name":"f",` +
			`"description":"` + t.text(t.IntN(3000)) + `"}}]`, `"system":"` + t.text(900) + `"`,
		`"instructions":"be brief"`}
	t.Shuffle(len(all), func(i, k int) { all[i], all[k] = all[k], all[i] })
	t.root = all[:3+t.IntN(len(all)-3)]
	return t
}

// TestMemoFindsWhatAScanFinds compares scans that begin in the middle with scans of the whole body.
func TestMemoFindsWhatAScanFinds(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	passed, bodies := 0, 0
	for n := range uint64(30) {
		talk := newTalk(seed + n)
		m, before := NewMemo(4<<20), map[string][]byte{} // canonical text by hash and head
		api := []API{Chat, Chat, Messages, Responses, Completions}[talk.IntN(5)]
		for range 25 {
			body := talk.body(api)
			if !json.Valid(body) {
				t.Fatalf("seed %d: not JSON: %.300s", seed+n, body)
			}
			p, err := compare(m, before, api, body)
			if err != nil {
				t.Fatalf("seed %d, %v: %v\n%.600s", seed+n, api, err, body)
			}
			bodies++
			if p {
				passed++
			}
		}
	}
	if passed < bodies/8 {
		t.Errorf("seed %d: only %d of %d scans began behind the beginning", seed, passed, bodies)
	}
}

// TestMemoKnowsShortTurns checks that the whole text of a short first turn is known, wherever a
// stride ends in or near it.
func TestMemoKnowsShortTurns(t *testing.T) {
	for system := stride - 300; system < stride+20; system++ {
		m, before, more := NewMemo(4<<20), map[string][]byte{}, ""
		for n := range 3 {
			body := fmt.Sprintf(`{"model":"m","messages":[{"role":"system","content":%q},{"role":"user","content":%q}%s]}`,
				strings.Repeat("x", system), strings.Repeat("q", 30+system%120), more)
			passed, err := compare(m, before, Chat, []byte(body))
			if err != nil || n == 2 && !passed {
				t.Fatalf("%d bytes before: %v, passed over: %v", system, err, passed)
			}
			more += fmt.Sprintf(`,{"role":"assistant","content":%q},{"role":"user",`+
				`"content":"more"}`, strings.Repeat("a", stride))
		}
	}
}

func compare(m *Memo, before map[string][]byte, api API, body []byte) (passed bool, err error) {
	var whole, r Request
	wantErr, gotErr := Scan(api, body, &whole), m.Scan(api, body, &r)
	if fmt.Sprint(wantErr) != fmt.Sprint(gotErr) {
		return false, fmt.Errorf("error %v, want %v", gotErr, wantErr)
	}
	if wantErr != nil {
		return r.Skipped > 0, nil
	}
	key := func(hash uint64) string { return fmt.Sprint(hash, string(r.Text[:r.Head])) }
	text := r.Text
	if r.Skipped > 0 {
		hashes := r.Passed()
		known, ok := before[key(hashes[len(hashes)-1])]
		if !ok { // the head differs, so the whole body has to be scanned
			return true, nil
		}
		if len(known) != r.Head+r.Skipped {
			return true, fmt.Errorf("%d bytes passed over and a head of %d, but the hash stands for "+
				"%d", r.Skipped, r.Head, len(known))
		}
		text = append(append([]byte{}, known...), r.Text[r.Head:]...)
	}
	found := func(r *Request) string {
		return fmt.Sprintf("%q %v %v %d %q %q %d %d %d %x %x %+v", r.Model, r.Stream, r.IncludeUsage, r.MaxTokens,
			r.CacheSalt, r.PreviousResponseID, r.Media, r.FirstTurn, r.ShortTurn, r.TurnHash, r.SystemHash, r.root)
	}
	got, want := found(&r), found(&whole)
	if got != want {
		return r.Skipped > 0, fmt.Errorf("got  %s\nwant %s", got, want)
	}
	if !bytes.Equal(text, whole.Text) {
		i := 0
		for i < min(len(text), len(whole.Text)) && text[i] == whole.Text[i] {
			i++
		}
		return r.Skipped > 0, fmt.Errorf("the text differs from byte %d on (%d passed over, head %d, %d of %d "+
			"bytes)", i, r.Skipped, r.Head, len(text), len(whole.Text))
	}
	m.Keep(&r)
	for hash, length := range r.Marks {
		before[key(hash)] = whole.Text[:length:length]
	}
	return r.Skipped > 0, nil
}
