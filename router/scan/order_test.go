package scan

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// canonical returns the canonical text of a value by the package documentation.
func canonical(v any) string {
	switch v := v.(type) {
	case map[string]any:
		out := "\xF5"
		for _, name := range slices.Sorted(maps.Keys(v)) {
			out += "\xC1" + name + canonical(v[name])
		}
		return out + "\xF6"
	case []any:
		out := "\xF7"
		for _, e := range v {
			out += canonical(e)
		}
		return out + "\xF6"
	case string:
		return "\xC0" + v
	}
	return "\xF9" + fmt.Sprint(v)
}

// anyValue is a value with the given number of levels. Some strings of that value are long, so the
// value has objects on both sides of atOnce.
func anyValue(rng *rand.Rand, levels int) any {
	switch kind := rng.IntN(8); {
	case levels == 0 && kind == 0:
		return strings.Repeat("x", rng.IntN(2*atOnce))
	case levels == 0 && kind < 4:
		return fmt.Sprint("s", rng.IntN(100))
	case levels == 0:
		return rng.IntN(100)
	case kind < 2:
		list := make([]any, rng.IntN(4))
		for i := range list {
			list[i] = anyValue(rng, levels-1)
		}
		return list
	}
	object := map[string]any{}
	for range rng.IntN(5) {
		object[strings.Repeat(string(rune('a'+rng.IntN(6))), rng.IntN(3))] = anyValue(rng, levels-1)
	}
	return object
}

// TestOrderOfLargeObjects checks that tools, arguments and the turns around them have the same text
// for every order of members.
func TestOrderOfLargeObjects(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	long := strings.Repeat("y", 3*atOnce)
	noted := 0
	for range 60 {
		tool, input, arguments := map[string]any{"p": anyValue(rng, 5), "q": "z"}, anyValue(rng, 5), anyValue(rng, 4)
		doc := map[string]any{
			"model": "m",
			"tools": []any{tool, map[string]any{"name": "g"}},
			"messages": []any{
				map[string]any{"role": "user", "content": []any{
					map[string]any{"content": []any{map[string]any{
						"content": []any{map[string]any{"text": long, "thinking": "hm"}}, "text": "a",
					}}, "input": input},
				}},
				map[string]any{"role": "assistant", "content": "yes", "tool_calls": []any{
					map[string]any{"id": "c", "function": map[string]any{"name": "f", "arguments": arguments}},
				}},
			},
		}
		first := canonical(tool) + "\xF5\xC1name\xC0g\xF6" + "\xFFuser" + canonical(input) + "\xFEa\xF8hm\xFE" + long
		want := first + "\xFFassistant\xFEyes\xFA\xFCf" + canonical(arguments) + "\xFBc"
		var r Request
		for range 5 {
			r.Reset()
			if err := Scan(Chat, []byte(respell(rng, doc)), &r); err != nil {
				t.Fatal(err)
			}
			if string(r.Text) != want || r.FirstTurn != len(first) {
				t.Fatalf("first turn %d, want %d; got\n%.2000q\nwant\n%.2000q", r.FirstTurn, len(first), r.Text, want)
			}
			noted += cap(r.order.shuffles)
		}
	}
	if noted == 0 {
		t.Error("nothing was large")
	}
}

// deep is a chat with one tool: a leaf of the given bytes under levels of members in the wrong
// order.
func deep(levels, leaf int) []byte {
	return []byte(`{"model":"m","messages":[],"tools":[` + strings.Repeat(`{"b":`, levels) +
		`"` + strings.Repeat("x", leaf) + `"` + strings.Repeat(`,"a":1}`, levels) + `]}`)
}

func TestDeepReversedValue(t *testing.T) {
	const levels = 110
	r := mustScan(t, Chat, string(deep(levels, 1<<16)))
	want := strings.Repeat("\xF5\xC1a\xF91\xC1b", levels) + "\xC0" + strings.Repeat("x", 1<<16) +
		strings.Repeat("\xF6", levels)
	if string(r.Text) != want {
		t.Errorf("got %.200q", r.Text)
	}
	var doc map[string]any
	if err := json.Unmarshal(deep(levels, 9), &doc); err != nil {
		t.Fatal(err)
	}
}

// BenchmarkScanDeep scans one large leaf and many objects small enough to be sorted at once.
func BenchmarkScanDeep(b *testing.B) {
	one := string(deep(110, 2<<10))
	tool := one[strings.Index(one, `{"b"`) : len(one)-len(`]}`)]
	many := []byte(`{"model":"m","messages":[],"tools":[` + strings.Repeat(tool+",", 3<<10) + tool + `]}`)
	for name, body := range map[string][]byte{"flat": chatBody(8 << 20), "leaf": deep(110, 8<<20), "many": many} {
		b.Run(name, func(b *testing.B) { benchmarkScan(b, body) })
	}
}
