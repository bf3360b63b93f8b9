package scan

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// everything is larger than any Text in these tests.
const everything = 1 << 40

// sameBeginning compares a scan that kept less with a scan of the whole text.
func sameBeginning(text []byte, less, all *Request) error {
	n := min(less.keep, len(all.Text))
	if len(text) < n || !bytes.Equal(text[:n], all.Text[:n]) {
		return fmt.Errorf("the first %d bytes differ: %.200q, want %.200q", n, text, all.Text)
	}
	if len(text)+less.Omitted != len(all.Text) {
		return fmt.Errorf("%d bytes and %d omitted, want %d", len(text), less.Omitted, len(all.Text))
	}
	short := less.ShortTurn != all.ShortTurn || less.TurnHash != all.TurnHash
	if short || min(less.FirstTurn, n) != min(all.FirstTurn, n) {
		return fmt.Errorf("first turn %d, want %d", less.FirstTurn, all.FirstTurn)
	}
	return nil
}

// TestTextKeepsTheBeginning checks that omitted text lies behind the kept bytes, for members in any
// order.
func TestTextKeepsTheBeginning(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	rng := rand.New(rand.NewPCG(seed, 0))
	omitted := 0
	for range 300 {
		turns := []any{}
		for range rng.IntN(4) {
			turns = append(turns, map[string]any{
				"role": "user", "name": strings.Repeat("n", rng.IntN(40)),
				"content": []any{
					map[string]any{"text": strings.Repeat("t", rng.IntN(4000)), "input": anyValue(rng, 3)}, "more",
				},
				"tool_calls": []any{map[string]any{
					"id": "c", "function": map[string]any{"name": "f", "arguments": anyValue(rng, 3)},
				}},
			})
		}
		body := []byte(respell(rng, map[string]any{
			"model": "m", "messages": turns,
			"tools":     []any{map[string]any{"p": anyValue(rng, 4)}, map[string]any{"q": anyValue(rng, 3)}},
			"functions": []any{map[string]any{"1": 1e300, strings.Repeat("k", rng.IntN(300)): 2}},
		}))
		all, less := Request{keep: everything}, Request{keep: shortTurn + rng.IntN(5000)}
		if err := Scan(Chat, body, &all); err != nil {
			t.Fatal(err)
		}
		if err := Scan(Chat, body, &less); err != nil {
			t.Fatal(err)
		}
		if err := sameBeginning(less.Text, &less, &all); err != nil {
			t.Fatalf("seed %d, %d bytes kept: %v\n%.500s", seed, less.keep, err, body)
		}
		omitted += less.Omitted
	}
	if omitted == 0 {
		t.Error("nothing was omitted")
	}
}

// TestTextKeepsTheBeginningBehindAMark does the same for scans that begin in the middle.
func TestTextKeepsTheBeginningBehindAMark(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	passed := 0
	for n := range uint64(20) {
		talk := newTalk(seed + n)
		m, before := NewMemo(4<<20), map[string][]byte{}
		api := []API{Chat, Messages, Responses, Completions}[talk.IntN(4)]
		for range 15 {
			body, all := talk.body(api), Request{keep: everything}
			less := Request{keep: shortTurn + talk.IntN(100_000)}
			if Scan(api, body, &all) != nil || m.Scan(api, body, &less) != nil {
				continue
			}
			text, known := less.Text, true
			if less.Skipped > 0 {
				var skipped []byte
				skipped, known = before[string(less.Text[:less.Head])+fmt.Sprint(less.Passed()[less.rec.taken-1])]
				text = append(append([]byte{}, skipped...), less.Text[less.Head:]...)
				passed++
			}
			if less.keep == TextKept { // Reset made the Request scan again
				continue
			}
			if err := sameBeginning(text, &less, &all); known && err != nil {
				t.Fatalf("seed %d, %d bytes kept, %d passed over: %v\n%.500s",
					seed+n, less.keep, less.Skipped, err, body)
			}
			if compareErr := keepMarks(m, before, api, body, &all); compareErr != nil {
				t.Fatal(compareErr)
			}
		}
	}
	if passed < 20 {
		t.Errorf("only %d scans began behind the beginning", passed)
	}
}

// keepMarks scans a body for its marks and records the canonical text before each.
func keepMarks(m *Memo, before map[string][]byte, api API, body []byte, all *Request) error {
	r := Request{keep: everything}
	if err := m.Scan(api, body, &r); err != nil {
		return err
	}
	m.Keep(&r)
	for hash, length := range r.Marks {
		before[string(r.Text[:r.Head])+fmt.Sprint(hash)] = all.Text[:length:length]
	}
	return nil
}

// TestBounds checks that a request that would need too much memory is refused, and that the error
// names the member.
func TestBounds(t *testing.T) {
	long := strings.Repeat("x", TextKept+1)
	members := `{"m":0` + strings.Repeat(`,"m":0`, membersMost) + `}`
	object := `{"a":"` + long + `","b":"` + long + `","c":"` + long + `"}`
	for _, c := range []struct {
		api                        API
		body, param, message, code string
	}{
		{Chat, `{"model":"` + strings.Repeat("m", shortMost+1) + `","messages":[]}`, "model", "longer than 64 KiB", CodeTooLong},
		{Chat, `{"model":"m","messages":[],"cache_salt":"` + long + `"}`, "cache_salt", "longer than 64 KiB", CodeTooLong},
		{Chat, `{"model":"m","messages":[],"tools":[` + members + `]}`, "tools", "objects of more than 65536 members",
			CodeTooLarge},
		{Chat, `{"model":"m","messages":[],"tools":[{"d":` + object + `,"e":` + object + `}]}`, "tools",
			"more than 24 MiB of text", CodeTooLarge},
	} {
		var r Request
		err, ok := Scan(c.api, []byte(c.body), &r).(*Error)
		if !ok || err.Param != c.param || err.Code != c.code || !strings.Contains(err.Message, c.message) {
			t.Errorf("%.60s: %v", c.body, err)
		}
	}
	body := `{"model":"m","tools":[` + object + `,` + object + `],"messages":[{"content":"` + long + `",` +
		`"name":"` + long + `","role":"user"}]}`
	r := mustScan(t, Chat, body)
	if len(r.Text) > 4*TextKept || len(r.Text)+r.Omitted < len(body)-200 {
		t.Errorf("%d MiB are kept and %d MiB omitted of %d", len(r.Text)>>20, r.Omitted>>20, len(body)>>20)
	}
	if r = mustScan(t, Completions, `{"model":"m",`+
		`"prompt":[1`+strings.Repeat(",1", TokensKept+9)+`]}`); len(r.Tokens) != TokensKept || r.Omitted != 40 {
		t.Errorf("%d tokens are kept, %d bytes omitted", len(r.Tokens), r.Omitted)
	}
}
