package engine

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
	"slices"
	"time"
)

// embeddingSize is the length of every embedding.
const embeddingSize = 64

// encode runs each prompt through the batch for one forward pass, like a pooling model. encode
// returns the number of tokens.
func (c *call) encode(list prompts) (tokens int, err error) {
	g, err := c.generate(&sampling{MaxTokens: new(1)}, "", list...)
	if err != nil {
		return 0, err
	}
	for _, p := range list {
		tokens += len(p)
	}
	return tokens, c.follow(g, quiet)
}

// feature returns value i of a prompt's embedding: repeatable, in -1..1.
func (e *Engine) feature(prompt []uint32, i int) float64 {
	key := mix(e.cfg.Seed ^ uint64(i))
	for _, t := range prompt {
		key = mix(key ^ uint64(t))
	}
	return float64(int64(key)) / math.MaxInt64
}

func (e *Engine) embedding(prompt []uint32) []float32 {
	v := make([]float32, embeddingSize)
	sum := 0.0
	seed := []uint32{uint32(int64(e.feature(prompt, 0) * math.MaxInt32))}
	for i := range v {
		x := e.feature(seed, i)
		v[i] = float32(x)
		sum += x * x
	}
	for i := range v {
		v[i] /= float32(math.Sqrt(sum))
	}
	return v
}

// poolingUsage is the usage of requests that generate nothing.
type poolingUsage struct {
	Prompt     int       `json:"prompt_tokens"`
	Total      int       `json:"total_tokens"`
	Completion int       `json:"completion_tokens"`
	Details    *struct{} `json:"prompt_tokens_details"`
}

type embeddingsRequest struct {
	named
	Input    prompts   `json:"input"`
	Messages []message `json:"messages"`
	Format   string    `json:"encoding_format"`
}

func embeddings(c *call, q *embeddingsRequest) error {
	if len(q.Messages) > 0 {
		q.Input = prompts{chatPrompt(nil, q.Messages)}
	}
	if len(q.Input) == 0 {
		return badRequest("[{'type': 'missing', 'loc': ('body', 'input'), 'msg': 'Field required'}]", "input")
	}
	tokens, err := c.encode(q.Input)
	if err != nil {
		return err
	}
	data := make([]fields, 0, len(q.Input))
	for i, p := range q.Input {
		data = append(data, fields{"index": i, "object": "embedding", "embedding": spell(c.embedding(p), q.Format)})
	}
	return c.answer(fields{
		"id": c.newID("embd-"), "object": "list", "created": time.Now().Unix(), "model": q.Model,
		"data": data, "usage": poolingUsage{Prompt: tokens, Total: tokens},
	})
}

// spell writes an embedding as numbers, or as base64 of little-endian floats.
func spell(v []float32, format string) any {
	if format != "base64" {
		return v
	}
	raw := make([]byte, 0, 4*len(v))
	for _, x := range v {
		raw = binary.LittleEndian.AppendUint32(raw, math.Float32bits(x))
	}
	return base64.StdEncoding.EncodeToString(raw)
}

// texts is one text or a list of texts. A text may be an object with "text".
type texts []string

// UnmarshalJSON reads all forms.
func (t *texts) UnmarshalJSON(b []byte) error {
	var list []json.RawMessage
	if json.Unmarshal(b, &list) != nil {
		list = []json.RawMessage{b}
	}
	for _, item := range list {
		var text string
		if json.Unmarshal(item, &text) != nil {
			var object struct {
				Text string `json:"text"`
			}
			if err := json.Unmarshal(item, &object); err != nil {
				return err
			}
			text = object.Text
		}
		*t = append(*t, text)
	}
	return nil
}

// judge scores each document against the query in one batch.
func (c *call) judge(query string, documents []string) (scores []float64, tokens int, err error) {
	var list prompts
	for _, d := range documents {
		p := appendTokens(appendTokens(nil, query), endMark)
		p = appendTokens(p, d)
		list = append(list, p)
		scores = append(scores, (c.feature(p, 0)+1)/2)
	}
	tokens, err = c.encode(list)
	return scores, tokens, err
}

type rerankRequest struct {
	named
	Query     texts `json:"query"`
	Documents texts `json:"documents"`
	TopN      int   `json:"top_n"`
}

func rerank(c *call, q *rerankRequest) error {
	if len(q.Query) != 1 || len(q.Documents) == 0 {
		return badRequest("query and documents are required", "documents")
	}
	scores, tokens, err := c.judge(q.Query[0], q.Documents)
	if err != nil {
		return err
	}
	results := make([]fields, 0, len(scores))
	for i, s := range scores {
		results = append(results, fields{"index": i, "relevance_score": s,
			"document": fields{"text": q.Documents[i], "multi_modal": nil}})
	}
	slices.SortStableFunc(results, func(a, b fields) int {
		return int(math.Copysign(1, b["relevance_score"].(float64)-a["relevance_score"].(float64)))
	})
	if q.TopN > 0 && q.TopN < len(results) {
		results = results[:q.TopN]
	}
	return c.answer(fields{"id": c.newID("rerank-"), "model": q.Model, "results": results,
		"usage": fields{"prompt_tokens": tokens, "total_tokens": tokens}})
}

type scoreRequest struct {
	named
	Text1     texts `json:"text_1"`
	Text2     texts `json:"text_2"`
	Queries   texts `json:"queries"`
	Documents texts `json:"documents"`
}

func score(c *call, q *scoreRequest) error {
	first, second := append(q.Text1, q.Queries...), append(q.Text2, q.Documents...)
	if len(first) == 0 || len(second) == 0 || len(first) > 1 && len(first) != len(second) {
		return badRequest("text_1 and text_2 must be given, with as many texts or one in text_1", "text_1")
	}
	data, total := make([]fields, 0, len(second)), 0
	for i := range second {
		scores, tokens, err := c.judge(first[min(i, len(first)-1)], second[i:i+1])
		if err != nil {
			return err
		}
		total += tokens
		data = append(data, fields{"index": i, "object": "score", "score": scores[0]})
	}
	return c.answer(fields{"id": c.newID("score-"), "object": "list", "created": time.Now().Unix(), "model": q.Model,
		"data": data, "usage": poolingUsage{Prompt: total, Total: total}})
}
