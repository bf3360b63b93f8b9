package scan

import (
	"fmt"
	"strings"
	"testing"
)

// TestSystemHash checks which part of a prompt is the system prompt, and what its hash covers.
func TestSystemHash(t *testing.T) {
	hash := func(api API, members string) uint64 {
		t.Helper()
		var r Request
		if err := Scan(api, []byte(`{"model":"m",`+members+`}`), &r); err != nil {
			t.Fatalf("%s: %v", members, err)
		}
		return r.SystemHash
	}
	const user, brief = `{"role":"user","content":"why?"}`, `{"role":"system","content":"be brief"}`
	chat := func(turns string) uint64 { return hash(Chat, `"messages":[`+turns+`]`) }
	want := chat(brief)
	for name, got := range map[string]uint64{
		"a user turn behind it": chat(brief + "," + user),
		"another order":         chat(`{"content":"be brief","role":"system"},` + user),
		"tools before it":       hash(Chat, `"tools":[{"type":"function"}],"messages":[`+brief+`]`),
		"root member":           hash(Messages, `"system":"be brief","messages":[`+user+`]`),
		"root member, last":     hash(Messages, `"messages":[`+user+`],"system":"be brief"`),
		"root member and turn":  hash(Messages, `"messages":[{"role":"system","content":"x"}],"system":"be brief"`),
		"instructions":          hash(Responses, `"instructions":"be brief","input":"why?"`),
		"instructions first":    hash(Responses, `"instructions":"be brief","input":[{"role":"system","content":"x"}]`),
		"instructions null":     hash(Responses, `"instructions":null,"input":[`+brief+`]`),
	} {
		if got != want || got == 0 {
			t.Errorf("%s: %x, want %x", name, got, want)
		}
	}
	for name, got := range map[string]uint64{
		"a user turn":           chat(user),
		"not the first turn":    chat(user + "," + brief),
		"another role":          chat(`{"role":"systematic","content":"be brief"}`),
		"text":                  hash(Responses, `"input":"why?"`),
		"a prompt, no messages": hash(Completions, `"prompt":"be brief"`),
	} {
		if got != 0 {
			t.Errorf("%s: %x", name, got)
		}
	}
	developer, long := chat(`{"role":"developer","content":"be brief"}`), strings.Repeat("x", systemBytes)
	system := func(text string) uint64 { return chat(fmt.Sprintf(`{"role":"system","content":%q}`, text)) }
	if developer == 0 || developer == chat(`{"role":"developer","content":"be long"}`) {
		t.Errorf("developer: %x", developer)
	}
	if system(long[:900]+"a") == system(long[:900]+"b") || system(long+"a") != system(long+"b") {
		t.Error("the hash covers the first 1,024 bytes")
	}
}

// TestMemoKnowsSystemPrompts checks that the beginning of a system prompt is known, wherever a
// stride ends in or near it.
func TestMemoKnowsSystemPrompts(t *testing.T) {
	for before := stride - systemBytes - 200; before < stride+100; before += 7 {
		m, known, more := NewMemo(4<<20), map[string][]byte{}, ""
		for n := range 3 {
			body := fmt.Sprintf(`{"model":"m","tools":[{"t":%q}],"messages":[{"role":"system","content":%q}%s]}`,
				strings.Repeat("t", before), strings.Repeat("s", 30+before*7%9000), more)
			passed, err := compare(m, known, Chat, []byte(body))
			if err != nil || n == 2 && !passed {
				t.Fatalf("%d bytes before: %v, passed over: %v", before, err, passed)
			}
			more += fmt.Sprintf(`,{"role":"user","content":%q}`, strings.Repeat("q", stride))
		}
	}
}
