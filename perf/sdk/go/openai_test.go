package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
)

var weather = map[string]any{
	"type":       "object",
	"properties": map[string]any{"city": map[string]any{"type": "string"}, "days": map[string]any{"type": "integer"}},
	"required":   []string{"city", "days"},
}

func words(n int) string { return strings.Repeat("word after word ", n) }

func chat(model string, tokens int64) openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{
		Model: model, MaxTokens: openai.Int(tokens),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("Tell me about rivers. " + words(10))},
	}
}

func completion(model string, tokens int64) openai.CompletionNewParams {
	return openai.CompletionNewParams{
		Model: openai.CompletionNewParamsModel(model), MaxTokens: openai.Int(tokens),
		Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String("Once upon a time")},
	}
}

func response(model, input string, tokens int64) responses.ResponseNewParams {
	return responses.ResponseNewParams{
		Model: model, MaxOutputTokens: openai.Int(tokens),
		Input: responses.ResponseNewParamsInputUnion{OfString: openai.String(input)},
	}
}

func embedding(model string) openai.EmbeddingNewParams {
	return openai.EmbeddingNewParams{Model: model,
		Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{"one", "two"}}}
}

func unique(s string) string { return fmt.Sprintf("%s %d", s, time.Now().UnixNano()) }

// arguments checks the JSON arguments of a call of get_weather.
func arguments(t *testing.T, doc string) {
	t.Helper()
	var args struct {
		City string
		Days *int
	}
	if err := json.Unmarshal([]byte(doc), &args); err != nil || args.City == "" || args.Days == nil {
		t.Errorf("arguments %q: %v", doc, err)
	}
}

func TestModels(t *testing.T) {
	healthy(t)
	c := client(fleetURL)
	list := must[[]openai.Model](t)(func() (all []openai.Model, err error) {
		pages := c.Models.ListAutoPaging(t.Context())
		for pages.Next() {
			all = append(all, pages.Current())
		}
		return all, pages.Err()
	}())
	if len(list) != 1 || list[0].ID != "sim" {
		t.Errorf("models: %v", list)
	}
	if m := must[*openai.Model](t)(c.Models.Get(t.Context(), "sim")); m.ID != "sim" || m.Created == 0 {
		t.Errorf("model: %+v", m)
	}
	_, err := c.Models.Get(t.Context(), "nope")
	var e *openai.Error
	if !errors.As(err, &e) || e.StatusCode != http.StatusNotFound || e.Code != "model_not_found" {
		t.Errorf("an unknown model: %v", err)
	}
}

func TestChat(t *testing.T) {
	healthy(t)
	c := client(fleetURL)
	p := chat("sim", 8)
	p.Logprobs, p.TopLogprobs = openai.Bool(true), openai.Int(3)
	answer := must[*openai.ChatCompletion](t)(c.Chat.Completions.New(t.Context(), p))
	if ch := answer.Choices[0]; ch.Message.Content == "" || ch.FinishReason != "length" ||
		answer.Usage.CompletionTokens != 8 {
		t.Errorf("answer: %s", answer.RawJSON())
	}
	if lp := answer.Choices[0].Logprobs.Content; len(lp) != 8 || len(lp[0].TopLogprobs) != 3 || lp[0].Logprob > 0 {
		t.Errorf("logprobs: %+v", lp)
	}
}

func TestChatRepeatedPromptIsCached(t *testing.T) {
	healthy(t)
	c := client(fleetURL)
	p := chat("sim", 2)
	p.Messages = []openai.ChatCompletionMessageParamUnion{openai.UserMessage(unique("") + words(50))}
	var first, second *http.Response
	must[*openai.ChatCompletion](t)(c.Chat.Completions.New(t.Context(), p, option.WithResponseInto(&first)))
	answer := must[*openai.ChatCompletion](t)(c.Chat.Completions.New(t.Context(), p, option.WithResponseInto(&second)))
	if a, b := first.Header.Get("x-cgn-node"), second.Header.Get("x-cgn-node"); a == "" || a != b {
		t.Errorf("nodes %q and %q", a, b)
	}
	if u := answer.Usage; 10*u.PromptTokensDetails.CachedTokens < 8*u.PromptTokens {
		t.Errorf("usage: %s", u.RawJSON())
	}
}

func TestChatStream(t *testing.T) {
	healthy(t)
	c := client(fleetURL)
	p := chat("sim", 9)
	for _, chunk := range collect(t, c.Chat.Completions.NewStreaming(t.Context(), p)) {
		if len(chunk.Choices) != 1 || chunk.JSON.Usage.Valid() {
			t.Errorf("a usage chunk that nobody asked for: %s", chunk.RawJSON())
		}
	}
	p.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	var whole openai.ChatCompletionAccumulator
	said := 0
	for _, chunk := range collect(t, c.Chat.Completions.NewStreaming(t.Context(), p)) {
		if !whole.AddChunk(chunk) {
			t.Errorf("a chunk that does not fit: %s", chunk.RawJSON())
		}
		if len(chunk.Choices) > 0 && chunk.Choices[0].Delta.Content != "" {
			said++
		}
	}
	if said != 9 || whole.Usage.CompletionTokens != 9 || whole.Choices[0].FinishReason != "length" {
		t.Errorf("%d pieces, usage %+v, choices %+v", said, whole.Usage, whole.Choices)
	}
}

func TestToolStream(t *testing.T) {
	healthy(t)
	c := client(fleetURL)
	p := chat("sim", 200)
	p.Tools = []openai.ChatCompletionToolUnionParam{openai.ChatCompletionFunctionTool(
		openai.FunctionDefinitionParam{Name: "get_weather", Parameters: weather})}
	p.ToolChoice.OfAuto = openai.String("required")
	answer := must[*openai.ChatCompletion](t)(c.Chat.Completions.New(t.Context(), p))
	arguments(t, answer.Choices[0].Message.ToolCalls[0].Function.Arguments)

	var whole openai.ChatCompletionAccumulator
	for _, chunk := range collect(t, c.Chat.Completions.NewStreaming(t.Context(), p)) {
		whole.AddChunk(chunk)
	}
	if call := whole.Choices[0].Message.ToolCalls[0].Function; call.Name != "get_weather" ||
		whole.Choices[0].FinishReason != "tool_calls" {
		t.Errorf("call %+v", call)
	}
	arguments(t, whole.Choices[0].Message.ToolCalls[0].Function.Arguments)
}

func TestCompletions(t *testing.T) {
	healthy(t)
	c := client(fleetURL)
	p := completion("sim", 6)
	p.Logprobs = openai.Int(2)
	answer := must[*openai.Completion](t)(c.Completions.New(t.Context(), p))
	if answer.Choices[0].Text == "" || answer.Usage.CompletionTokens != 6 ||
		len(answer.Choices[0].Logprobs.Tokens) != 6 {
		t.Errorf("answer: %s", answer.RawJSON())
	}
	p.StreamOptions = openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(true)}
	chunks := collect(t, c.Completions.NewStreaming(t.Context(), p))
	if u := chunks[len(chunks)-1].Usage; len(chunks) != 7 || u.CompletionTokens != 6 {
		t.Errorf("%d chunks, usage %+v", len(chunks), u)
	}
}

func TestEmbeddings(t *testing.T) {
	healthy(t)
	c := client(fleetURL)
	answer := must[*openai.CreateEmbeddingResponse](t)(c.Embeddings.New(t.Context(), embedding("sim")))
	if len(answer.Data) != 2 || len(answer.Data[1].Embedding) < 8 || answer.Usage.PromptTokens == 0 {
		t.Errorf("answer: %s", answer.RawJSON())
	}
}

func TestResponses(t *testing.T) {
	healthy(t)
	c := client(fleetURL)
	var made, again *http.Response
	first := must[*responses.Response](t)(c.Responses.New(t.Context(), response("sim", unique("Keep this"), 7),
		option.WithResponseInto(&made)))
	if first.OutputText() == "" || first.Usage.OutputTokens != 7 {
		t.Errorf("answer: %s", first.RawJSON())
	}
	next := response("sim", "Which one?", 4)
	next.PreviousResponseID = openai.String(first.ID)
	for range 4 { // another node would not know the response
		got := must[*responses.Response](t)(c.Responses.Get(t.Context(), first.ID, responses.ResponseGetParams{},
			option.WithResponseInto(&again)))
		if got.OutputText() != first.OutputText() || again.Header.Get("x-cgn-node") != made.Header.Get("x-cgn-node") {
			t.Errorf("retrieved from %s: %s", again.Header.Get("x-cgn-node"), got.RawJSON())
		}
		must[*responses.Response](t)(c.Responses.New(t.Context(), next, option.WithResponseInto(&again)))
		if again.Header.Get("x-cgn-node") != made.Header.Get("x-cgn-node") {
			t.Errorf("continued on %s", again.Header.Get("x-cgn-node"))
		}
	}
	if err := c.Responses.Delete(t.Context(), first.ID); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{first.ID, "resp_nobody"} {
		_, err := c.Responses.Get(t.Context(), id, responses.ResponseGetParams{})
		var e *openai.Error
		if !errors.As(err, &e) || e.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %v", id, err)
		}
	}
}

func TestResponsesStream(t *testing.T) {
	healthy(t)
	c := client(fleetURL)
	events := collect(t, c.Responses.NewStreaming(t.Context(), response("sim", "Hello", 7)))
	var said strings.Builder
	for i, e := range events {
		if e.SequenceNumber != int64(i) {
			t.Errorf("event %d is numbered %d", i, e.SequenceNumber)
		}
		if e.Type == "response.output_text.delta" {
			said.WriteString(e.Delta)
		}
	}
	if last := events[len(events)-1].Response; said.String() != last.OutputText() || last.Usage.OutputTokens != 7 {
		t.Errorf("said %q, last %s", said.String(), last.RawJSON())
	}
	p := response("sim", "call the tool", 200)
	p.Tools = []responses.ToolUnionParam{responses.ToolParamOfFunction("get_weather", weather, false)}
	p.ToolChoice.OfToolChoiceMode = openai.Opt(responses.ToolChoiceOptionsRequired)
	events = collect(t, c.Responses.NewStreaming(t.Context(), p))
	call := events[len(events)-1].Response.Output[0].AsFunctionCall()
	if call.Name != "get_weather" {
		t.Errorf("call: %s", call.RawJSON())
	}
	arguments(t, call.Arguments)
}

func TestCancel(t *testing.T) {
	healthy(t)
	c := client(fleetURL)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s := c.Chat.Completions.NewStreaming(ctx, chat("sim", 4000))
	for range 3 {
		if !s.Next() {
			t.Fatal(s.Err())
		}
	}
	engineNotices(t, cancel)
	for s.Next() { // the events that had arrived before
	}
	if !errors.Is(s.Err(), context.Canceled) {
		t.Errorf("the stream ends with %v", s.Err())
	}

	r := c.Responses.NewStreaming(t.Context(), response("sim", "Hello", 4000))
	for range 6 {
		if !r.Next() {
			t.Fatal(r.Err())
		}
	}
	engineNotices(t, func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}
