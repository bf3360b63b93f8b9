package engine

import (
	"bytes"
	"encoding/json"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
)

type tokenizeRequest struct {
	named
	Prompt   *string         `json:"prompt"`
	Messages []message       `json:"messages"`
	Tools    json.RawMessage `json:"tools"`
}

func tokenize(c *call, q *tokenizeRequest) error {
	var tokens []uint32
	switch {
	case q.Prompt != nil:
		tokens = appendTokens([]uint32{}, *q.Prompt)
	case len(q.Messages) > 0:
		tokens = chatPrompt(q.Tools, q.Messages)
	default:
		return badRequest("[{'type': 'missing', 'loc': ('body', 'prompt'), 'msg': 'Field required'}]", "prompt")
	}
	return c.answer(fields{"count": len(tokens), "max_model_len": c.cfg.MaxModelTokens, "tokens": tokens,
		"token_strs": nil})
}

type detokenizeRequest struct {
	named
	Tokens []uint32 `json:"tokens"`
}

func detokenize(c *call, q *detokenizeRequest) error {
	return c.answer(fields{"prompt": string(appendText(nil, q.Tokens))})
}

// audioBytesPerSecond is the assumed rate of audio: 16 kHz, 16 bit, mono.
const audioBytesPerSecond = 32000

// transcribe returns words for any audio file, as many as its length allows.
func transcribe(c *call) error {
	form, err := c.form()
	if err != nil {
		return err
	}
	if _, err := c.model(form["model"]); err != nil {
		return err
	}
	audio, given := form["file"]
	if !given {
		return badRequest("[{'type': 'missing', 'loc': ('body', 'file'), 'msg': 'Field required'}]", "file")
	}
	seconds := 1 + len(audio)/audioBytesPerSecond
	s := sampling{MaxTokens: new(min(4*seconds, c.cfg.OutputTokens))}
	prompt := appendTokens(nil, "<|audio|>")
	prompt = appendTokens(prompt, audio[:min(len(audio), 64*seconds)])
	g, err := c.generate(&s, "", prompt)
	if err != nil {
		return err
	}
	if err := c.follow(g, quiet); err != nil {
		return err
	}
	text := g.seqs[0].output.whole()
	if form["response_format"] == "text" {
		_, err := io.WriteString(c.w, text)
		return err
	}
	return c.answer(fields{"text": text, "usage": fields{"type": "duration", "seconds": seconds}})
}

// form reads a multipart body.
func (c *call) form() (map[string]string, error) {
	kind, params, err := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" {
		return nil, &apiError{http.StatusBadRequest, "BadRequestError", "a multipart/form-data body is needed", ""}
	}
	form := map[string]string{}
	for r := multipart.NewReader(bytes.NewReader(c.body), params["boundary"]); ; {
		part, err := r.NextPart()
		if err == io.EOF {
			return form, nil
		}
		if err != nil {
			return nil, badRequest("malformed multipart body: "+err.Error(), "")
		}
		value, err := io.ReadAll(part)
		if err != nil {
			return nil, badRequest("malformed multipart body: "+err.Error(), "")
		}
		form[part.FormName()] = string(value)
	}
}
