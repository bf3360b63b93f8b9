package scan

import (
	"strings"
	"testing"
)

// TestFraming checks what a prompt counts besides its text.
func TestFraming(t *testing.T) {
	many := func(n int, element string) string {
		return "[" + strings.TrimSuffix(strings.Repeat(element+",", n), ",") + "]"
	}
	const talk, tool = framedTalk, framedTool
	for _, c := range []struct {
		api           API
		members       string
		tokens, bytes int64
	}{
		{Chat, `"messages":[]`, talk, 0},
		{Chat, `"messages":` + many(500, `{"role":"user","content":"a"}`), talk + 500*framedTurn, 0},
		{Chat, `"messages":` + many(2000, `{}`), talk + 2000*framedTurn, 0},
		{Chat, `"messages":[{"role":"user","content":` + many(100, `"a"`) + `}]`, talk + framedTurn + 100*framedPart, 0},
		{Chat, `"messages":[{"role":"user","content":[{"text":"a","text":"0123456789"}]}]`,
			talk + framedTurn + framedPart, 12},
		{Chat, `"messages":[{"role":"assistant","reasoning_content":"0123456789"}]`, talk + framedTurn, 12},
		{Chat, `"messages":[{"role":"assistant","tool_calls":` + many(50, `{"function":{"name":"f"}}`) + `}]`,
			talk + framedTurn + 50*tool, 0},
		{Chat, `"tools":` + many(50, `{"function":{"a":[1,2]}}`) + `,"messages":[]`,
			talk + 50*(tool+2*framedMember+2*framedValue), 0},
		{Messages, `"system":"s","messages":[{"role":"user","content":[{"tool_use_id":"a","content":"b"}]}]`,
			talk + 2*framedTurn + framedPart + framedTurn, 0},
		{Messages, `"messages":[{"role":"assistant","content":[{"name":"f","input":{"a":1}}]}]`,
			talk + framedTurn + framedPart + tool + framedMember, 0},
		{Responses, `"input":"a"`, talk + framedTurn, 0},
		{Responses, `"instructions":"i","input":[{"name":"f","arguments":"{}"}]`, talk + 2*framedTurn + tool, 0},
		{Completions, `"prompt":"a"`, framedPrompt, 0},
		{Completions, `"prompt":` + many(1000, `"a"`), 1000 * framedPrompt, 0},
		{Completions, `"prompt":[1,2,3]`, 0, 0},
		{Embeddings, `"input":` + many(1000, `""`), 1000 * framedPrompt, 0},
		// Each text below has a mark in front.
		{Rerank, `"query":"0123456789","documents":` + many(100, `"a"`), 100 * framedPrompt, 99 * 11},
		{Rerank, `"documents":` + many(100, `"a"`) + `,"query":"0123456789"`, 100 * framedPrompt, 99 * 11},
		{Score, `"text_1":"0123456789","text_2":"a"`, framedPrompt, 0},
		{Score, `"queries":["012","345"],"documents":` + many(2, `"a"`), 2 * framedPrompt, 0},
		{Score, `"text_1":` + many(3, `"a"`) + `,"text_2":["0123"]`, 3 * framedPrompt, 2 * 5},
	} {
		var r Request
		if err := Scan(c.api, []byte(`{"model":"m",`+c.members+`}`), &r); err != nil {
			t.Errorf("%v: %.80s: %v", c.api, c.members, err)
			continue
		}
		if tokens, bytes := r.Framing(); tokens != c.tokens || bytes != c.bytes {
			t.Errorf("%v: %.80s: %d tokens and %d bytes, want %d and %d", c.api, c.members, tokens, bytes, c.tokens,
				c.bytes)
		}
	}
}
