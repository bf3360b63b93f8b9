package realengine

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// witness stands between the router and an engine and keeps what both say.
type witness struct {
	mu    sync.Mutex
	heard []*exchanged
}

// exchanged is a request and its answer so far.
type exchanged struct {
	id, path  string
	body, got []byte
}

// witnessed puts a witness before the engine, which must be ready.
func witnessed(t *testing.T, e *engine) *witness {
	t.Helper()
	w := &witness{}
	at, err := url.Parse(e.url())
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(at) },
		FlushInterval: -1, // at once
		ModifyResponse: func(r *http.Response) error {
			if x, ok := r.Request.Context().Value(w).(*exchanged); ok {
				r.Body = &tap{r.Body, w, x}
			}
			return nil
		},
	}
	server := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		x := &exchanged{id: r.Header.Get("x-request-id"), path: r.URL.Path, body: body}
		w.mu.Lock()
		w.heard = append(w.heard, x)
		w.mu.Unlock()
		r.Body = io.NopCloser(bytes.NewReader(body))
		proxy.ServeHTTP(out, r.WithContext(context.WithValue(r.Context(), w, x)))
	}))
	t.Cleanup(server.Close)
	e.address = strings.TrimPrefix(server.URL, "http://")
	return w
}

// tap keeps what is read of an answer.
type tap struct {
	io.ReadCloser
	w *witness
	x *exchanged
}

func (t *tap) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	t.w.mu.Lock()
	defer t.w.mu.Unlock()
	t.x.got = append(t.x.got, p[:n]...)
	return n, err
}

// of returns the exchange about the request of this id on path.
func (w *witness) of(id, path string) *exchanged {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.heard {
		if x.id == id && x.path == path {
			c := *x
			return &c
		}
	}
	return nil
}

// spoken is what an engine has sent in a stream: its prompt's ids, and the ids and text of its
// tokens.
type spoken struct {
	prompt, ids []int
	text        string
}

func spokenIn(body []byte) (s spoken) {
	a := &answer{body: body, header: http.Header{"Content-Type": {"text/event-stream"}}}
	for _, doc := range a.documents() {
		var c struct {
			Prompt  []int `json:"prompt_token_ids"`
			Choices []struct {
				Prompt []int `json:"prompt_token_ids"`
				IDs    []int `json:"token_ids"`
				Text   string
				Delta  struct{ Content string }
			}
		}
		if json.Unmarshal([]byte(doc), &c) != nil {
			continue
		}
		s.prompt = append(s.prompt, c.Prompt...)
		for _, choice := range c.Choices {
			s.prompt = append(s.prompt, choice.Prompt...)
			s.ids = append(s.ids, choice.IDs...)
			s.text += choice.Text + choice.Delta.Content
		}
	}
	return s
}

// TestVLLMResume: an engine is killed in the middle of its ten of twenty streams, and the other
// engine goes on with them. The ids that it gets are exactly those of the prompt and of the
// delivered tokens, and each client gets one well-formed stream, with each piece of text once.
func TestVLLMResume(t *testing.T) {
	const streams, tokens = 20, 120
	s := prepared(t, "vllm")
	var engines []*engine
	for i := range 2 {
		engines = append(engines, s.engine(t, fmt.Sprint("vllm-resume-", i+1),
			append(vllmFlags(s.model, "--enable-prompt-tokens-details"), "--max-num-seqs", "32")...))
	}
	witnesses := map[string]*witness{}
	for _, e := range engines {
		e.awaitReady(t)
		witnesses[e.id] = witnessed(t, e)
	}
	w := s.site(t, engines...)
	var begun sync.WaitGroup
	begun.Add(streams)
	var victim *engine
	first, killed := make(chan string, streams), make(chan struct{})
	go func() {
		defer close(killed)
		begun.Wait()
		victim = w.engine(t, <-first)
		victim.kill()
	}()
	all := make([]*answer, streams)
	paths := [2]string{"/v1/chat/completions", "/v1/completions"}
	var done sync.WaitGroup
	for i := range streams {
		done.Go(func() { all[i] = w.resumed(i, paths[i%2], tokens, first, &begun) })
	}
	done.Wait()
	<-killed
	went := 0
	for i, a := range all {
		if a.err != nil || !a.good() || !a.done() || a.node() != victim.id {
			if a.node() == victim.id || !a.good() {
				t.Errorf("stream %d: %v", i, a)
			}
			continue
		}
		went++
		w.exact(t, a, witnesses, fmt.Sprint("resume-", i), paths[i%2], tokens)
	}
	if n := w.metric(t, "cgn_router_resumed_total"); went < streams/4 || int(n) != went {
		t.Errorf("%d streams went on, %v are counted", went, n)
	}
	t.Logf("%d of %d streams went on after %s was killed", went, streams, victim.id)
}

// resumed sends request i and reads its stream, of which begun awaits the first tokens.
func (w *site) resumed(i int, path string, tokens int, first chan<- string, begun *sync.WaitGroup) *answer {
	body := chatBody(user(fmt.Sprint("tell me story ", i, " of the router")), object{
		"stream": true, "max_tokens": tokens, "min_tokens": tokens, "ignore_eos": true, "temperature": 0.8, "seed": i,
		"stream_options": object{"include_usage": true},
	})
	if path == "/v1/completions" {
		delete(body, "messages")
		body["prompt"] = fmt.Sprint("story ", i, " of the cache")
	}
	if i%4 >= 2 { // the engine then holds text back
		body["stop"] = "what it never says"
	}
	page, _ := json.Marshal(body)
	mark := sync.OnceFunc(begun.Done)
	defer mark()
	req, err := http.NewRequest(http.MethodPost, w.url+path, bytes.NewReader(page))
	if err != nil {
		return &answer{err: err, header: http.Header{}}
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("x-request-id", fmt.Sprint("resume-", i))
	resp, err := w.client.Do(req)
	if err != nil {
		return &answer{err: err, header: http.Header{}}
	}
	defer resp.Body.Close()
	a := &answer{status: resp.StatusCode, header: resp.Header}
	first <- a.node()
	for piece := make([]byte, 4096); a.err == nil; {
		n, err := resp.Body.Read(piece)
		a.body = append(a.body, piece[:n]...)
		if a.err = err; len(a.events()) > 12 {
			mark()
		}
	}
	if a.err == io.EOF {
		a.err = nil
	}
	return a
}

// exact compares a stream with what both engines have said and heard.
func (w *site) exact(t *testing.T, a *answer, all map[string]*witness, id, path string, tokens int) {
	t.Helper()
	before, after := all[a.node()].of(id, path), (*exchanged)(nil)
	var heir *engine
	for _, e := range w.engines {
		if e.id != a.node() {
			heir, after = e, all[e.id].of(id, path)
		}
	}
	if before == nil || after == nil {
		t.Errorf("%s: the engines were not asked one after the other", id)
		return
	}
	var asked struct {
		Prompt json.RawMessage
		KV     struct {
			IDs []int `json:"prompt_token_ids"`
		} `json:"kv_transfer_params"`
		Max int `json:"max_tokens"`
		Min int `json:"min_tokens"`
	}
	if err := json.Unmarshal(after.body, &asked); err != nil {
		t.Error(err)
		return
	}
	sent := asked.KV.IDs
	if path == "/v1/completions" {
		_ = json.Unmarshal(asked.Prompt, &sent)
	}
	one, two := spokenIn(before.got), spokenIn(after.got)
	k := len(sent) - len(one.prompt)
	if k < 1 || k > len(one.ids) || !slices.Equal(sent, slices.Concat(one.prompt, one.ids[:k])) ||
		!slices.Equal(two.prompt, sent) {
		t.Errorf("%s: the second engine got %v and had %v; the first one had %v and sent %v", id, sent, two.prompt,
			one.prompt, one.ids)
		return
	}
	text := a.text()
	delivered, ok := strings.CutSuffix(text, two.text)
	whole := heir.says(t, sent[len(one.prompt):])
	if !ok || legible(delivered) != legible(whole) || len(two.ids) != tokens-k || asked.Max != tokens-k ||
		asked.Min != tokens-k {
		t.Errorf("%s: after %d tokens the second engine sent %d of %d: %q\nof %q\nthe first one %q", id, k, len(two.ids),
			asked.Max, two.text, text, one.text)
	}
	w.oneStream(t, a, id, len(one.prompt), tokens)
	t.Logf("%s: %d tokens, then %d", id, k, tokens-k)
}

// legible joins the marks of bytes that are no characters. How many there are depends on whether
// the tokens' texts are made one by one.
func legible(text string) string { return marks.ReplaceAllString(text, "\ufffd") }

var marks = regexp.MustCompile("\ufffd+")

// says returns the text of token ids.
func (e *engine) says(t *testing.T, ids []int) string {
	t.Helper()
	page, _ := json.Marshal(object{"model": model, "tokens": ids})
	resp, err := http.Post(e.url()+"/detokenize", "application/json", bytes.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var got struct{ Prompt string }
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	return got.Prompt
}

// oneStream checks that a stream has one id, one usage and one role, and no token ids.
func (w *site) oneStream(t *testing.T, a *answer, id string, prompt, tokens int) {
	t.Helper()
	ids, usages := map[string]bool{}, 0
	for _, doc := range a.documents() {
		var c struct {
			ID      string
			Created int
			Usage   *struct {
				Prompt     int `json:"prompt_tokens"`
				Completion int `json:"completion_tokens"`
			}
		}
		if err := json.Unmarshal([]byte(doc), &c); err != nil {
			t.Errorf("%s: %v: %s", id, err, doc)
		}
		ids[fmt.Sprint(c.ID, c.Created)] = true
		if c.Usage != nil {
			usages++
			if c.Usage.Prompt != prompt || c.Usage.Completion != tokens {
				t.Errorf("%s: usage %+v, want %d and %d", id, *c.Usage, prompt, tokens)
			}
		}
	}
	if len(ids) != 1 || usages != 1 || strings.Count(string(a.body), `"role":`) > 1 ||
		strings.Contains(string(a.body), `token_ids":[`) {
		t.Errorf("%s: %v, %d usages: %s", id, ids, usages, a.body)
	}
}
