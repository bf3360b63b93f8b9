package router_test

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/sim/engine"
)

// resumes is a tweak that sets router.resume.mode.
func resumes(mode string) func(*router.Config) {
	return func(c *router.Config) { c.Router.Resume.Mode, c.Router.Mode = mode, "score" }
}

// said is a stream as its client understands it. The sum of its chunks is compared with that of an
// undisturbed stream, because the boundaries of chunks may differ at the seam.
type said struct {
	ids, roles, finishes, usages, dones int
	id, text, reason, stop              string
	tokens                              []float64
	prompt, completion, total           float64
	err                                 string
}

func saidBy(t *testing.T, r *reply) said {
	t.Helper()
	s, err := r.said()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// said reads a stream.
func (r *reply) said() (s said, err error) {
	if r.status != 200 || r.err != nil {
		return s, fmt.Errorf("%v", r)
	}
	ids := map[string]bool{}
	for _, e := range r.events() {
		if e.data == "[DONE]" {
			s.dones++
			continue
		}
		var c struct {
			ID      string
			Object  string
			Created int
			Model   string
			Error   *struct{ Message string }
			Usage   *struct {
				Prompt     float64 `json:"prompt_tokens"`
				Completion float64 `json:"completion_tokens"`
				Total      float64 `json:"total_tokens"`
			}
			Choices []struct {
				Delta  struct{ Role, Content string }
				Text   string
				Reason *string   `json:"finish_reason"`
				Stop   *string   `json:"stop_reason"`
				IDs    []float64 `json:"token_ids"`
			}
		}
		if err := json.Unmarshal([]byte(e.data), &c); err != nil {
			return s, fmt.Errorf("%w: %s", err, e.data)
		}
		if c.Error != nil {
			s.err = c.Error.Message
			continue
		}
		ids[fmt.Sprint(c.ID, c.Object, c.Created, c.Model)] = true
		s.id = c.ID
		if c.Usage != nil {
			s.usages++
			s.prompt, s.completion, s.total = c.Usage.Prompt, c.Usage.Completion, c.Usage.Total
		}
		for _, choice := range c.Choices {
			if choice.Delta.Role != "" {
				s.roles++
			}
			s.text += choice.Delta.Content + choice.Text
			s.tokens = append(s.tokens, choice.IDs...)
			if choice.Reason != nil {
				s.finishes++
				s.reason = *choice.Reason
			}
			if choice.Stop != nil {
				s.stop = *choice.Stop
			}
		}
	}
	s.ids = len(ids)
	return s, nil
}

// same compares a stream with an undisturbed one.
func (s said) same(of said) bool {
	s.id, of.id = "", ""
	return fmt.Sprint(s) == fmt.Sprint(of)
}

// resumed returns the number of broken streams with this end.
func (s *site) resumed(by, result string) int {
	return int(s.metrics().sum("cgn_router_resumed_total", `by="`+by+`"`, `result="`+result+`"`))
}

// varies is what differs between two runs of one request: its time, and what the engine had cached.
var varies = regexp.MustCompile(`"created":\d+|"(created_cache|cached)_tokens":\d+`)

// paced reads a stream to its end, and returns the longest time between two pieces too.
func paced(body io.Reader) (all []byte, gap time.Duration, err error) {
	last := time.Now()
	for piece := make([]byte, 4096); err == nil; {
		var n int
		n, err = body.Read(piece)
		all = append(all, piece[:n]...)
		gap, last = max(gap, time.Since(last)), time.Now()
	}
	if err == io.EOF {
		err = nil
	}
	return all, gap, err
}

// TestStreamsGoOn: D is killed in the middle of 200 streams. Every stream is complete, and has
// exactly the bytes of an undisturbed one.
func TestStreamsGoOn(t *testing.T) {
	const streams = 200
	s := serve(t, simulate(t, 2, func(c *engine.Config) { c.DecodeStep = 30 * time.Millisecond }), resumes("auto"))
	bodies := make([]string, streams)
	for i := range bodies {
		bodies[i] = chatBody(fmt.Sprint("question ", i),
			`,"stream":true,"max_tokens":100,"stream_options":{"include_usage":true}`)
	}
	undisturbed := together(streams, func(i int) *reply { return s.chat(bodies[i], numbered(i)...) })
	mustAll(t, "undisturbed", undisturbed)
	all := s.killed(bodies)
	for i, r := range all {
		if got := saidBy(t, r); got.err != "" {
			t.Fatalf("stream %d: %s\n%s", i, got.err, s.log.text())
		}
	}
	went, longest := 0, time.Duration(0)
	for i, r := range all {
		longest = max(longest, r.took)
		if got, want := saidBy(t, r), saidBy(t, undisturbed[i]); !got.same(want) || got.roles != 1 || got.ids != 1 ||
			got.usages != 1 || got.dones != 1 || got.finishes != 1 {
			t.Fatalf("stream %d:\n%+v\n%+v", i, got, want)
		}
		if r.node() == "sim-0" {
			went++
			if varies.ReplaceAllString(string(r.body), "") != varies.ReplaceAllString(string(undisturbed[i].body), "") {
				t.Errorf("stream %d:\n%s\n%s", i, r.body, undisturbed[i].body)
			}
		}
	}
	// On a machine that stalls, some streams had ended before.
	complete := 0
	eventually(t, "streams are counted", func() bool {
		m := s.metrics()
		complete = s.resumed("ids", "complete")
		return complete >= streams/20 && m.sum("cgn_router_resuming_streams") == 0
	})
	t.Logf("%d streams went on; no client waited longer than %v for its next bytes", complete, longest)
	if total := int(s.metrics().sum("cgn_router_resumed_total")); complete > went || total != complete {
		t.Errorf("%d streams were on the killed node, %d broke, %d went on", went, total, complete)
	}
	for _, r := range s.engines[1].Requests() {
		if strings.Contains(string(r.Body), "prompt_token_ids") {
			return
		}
	}
	t.Error("no stream went on by its ids")
}

// numbered returns the header of the stream of that number.
func numbered(i int) []string { return []string{"x-request-id", fmt.Sprint("stream-", i)} }

// killed sends the chats together, and kills the first engine once every stream has begun.
func (s *site) killed(bodies []string) []*reply {
	var begun sync.WaitGroup
	begun.Add(len(bodies))
	done := make(chan []*reply)
	go func() {
		done <- together(len(bodies), func(i int) *reply {
			resp, err := s.send(s.t.Context(), http.MethodPost, chatPath, bodies[i], numbered(i)...)
			if err != nil {
				begun.Done()
				return &reply{err: err}
			}
			defer resp.Body.Close()
			first := make([]byte, 1500)
			_, err = io.ReadFull(resp.Body, first)
			begun.Done()
			if err != nil {
				return &reply{err: err}
			}
			rest, gap, err := paced(resp.Body)
			return &reply{resp.StatusCode, resp.Header, append(first, rest...), err, gap}
		})
	}()
	begun.Wait()
	p := s.metrics()
	kept, counted := p.sum("cgn_router_resume_bytes"), p.sum("cgn_router_body_bytes")
	s.engines[0].Kill()
	if bytes := float64(len(bodies[0])); kept < bytes || counted < bytes {
		s.t.Errorf("%v bytes are kept for streams, and %v bytes of bodies count", kept, counted)
	}
	return <-done
}

// TestBrokenStreamsTakeTurns: D is killed in the middle of 200 streams, and the node left answers
// none. That node gets 64 of them, and no more. The others end after their wait.
func TestBrokenStreamsTakeTurns(t *testing.T) {
	t.Parallel()
	const streams, turns = 200, 64
	s := serve(t, simulate(t, 2, func(c *engine.Config) {
		c.DecodeStep, c.RecordRequests = 20*time.Millisecond, 4096
	}), resumes("auto"))
	var begun, ended sync.WaitGroup
	begun.Add(streams)
	for i := range streams {
		ended.Go(func() {
			body := chatBody(fmt.Sprint("question ", i), `,"stream":true,"max_tokens":4000`)
			resp, err := s.send(t.Context(), http.MethodPost, chatPath, body)
			if err != nil {
				begun.Done()
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			_, err = io.ReadFull(resp.Body, make([]byte, 1000))
			if begun.Done(); err != nil {
				t.Error(err)
				return
			}
			_, _ = io.Copy(io.Discard, resp.Body)
		})
	}
	begun.Wait()
	broken := had(s.engines[0], chatPath)
	s.engines[1].SetFault(&engine.Fault{HangBody: true})
	s.engines[0].Kill()
	eventually(t, "the others have waited too long", func() bool {
		return s.resumed("crowded", "impossible") == broken-turns
	})
	if n := s.metrics().sum("cgn_router_resuming_streams"); n != turns {
		t.Errorf("%v streams wait for the node left", n)
	}
	if n := s.legsOf(`"prompt_token_ids"`); n != turns || broken <= turns {
		t.Errorf("%d of %d broken streams were given to the node left", n, broken)
	}
	s.engines[1].Kill()
	ended.Wait()
}

// broken sends a request whose first node dies after so many tokens, and its second node after the
// second number, if there is one. broken returns the undisturbed answer too.
func (s *site) broken(path, body string, after ...int) (got, want said, r *reply) {
	s.t.Helper()
	for round := range 30 { // until the nodes are asked in this order
		undisturbed := s.post(path, body, "x-request-id", "one")
		want = saidBy(s.t, undisturbed)
		first := slices.IndexFunc(s.engines, func(e *engine.Engine) bool { return undisturbed.node() == s.idOf(e) })
		second := s.engines[(first+1+round%(len(s.engines)-1))%len(s.engines)]
		s.engines[first].SetFault(&engine.Fault{DieAfter: &after[0]})
		before := had(second, path)
		if len(after) > 1 {
			second.SetFault(&engine.Fault{DieAfter: &after[1]})
		}
		r = s.post(path, body, "x-request-id", "one")
		for _, e := range s.engines {
			e.SetFault(nil)
		}
		eventually(s.t, "every node is back", func() bool { return s.eligible() == len(s.engines) })
		if r.node() == undisturbed.node() && (len(after) == 1 || had(second, path) > before) {
			return saidBy(s.t, r), want, r
		}
	}
	s.t.Fatalf("the nodes were never asked in this order: %s %v; %v", body, after, r)
	return
}

func (s *site) idOf(e *engine.Engine) string { return fmt.Sprint("sim-", slices.Index(s.engines, e)) }

// had returns the number of requests for path that the engine has had.
func had(e *engine.Engine, path string) (n int) {
	for _, r := range e.Requests() {
		if r.Path == path {
			n++
		}
	}
	return n
}

const chatPath, textPath = "/v1/chat/completions", "/v1/completions"

// TestContinuedByIDs checks that a continued stream equals an undisturbed one, for all that a
// request may ask of it.
func TestContinuedByIDs(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 3, func(c *engine.Config) {
		c.OutputTokens, c.EndsItself, c.RecordRequests = 24, true, 4096
	}), resumes("auto"))
	const usage = `,"stream":true,"stream_options":{"include_usage":true}`
	text := func(prompt, more string) string { return `{"model":"sim","prompt":` + prompt + usage + more + `}` }
	for name, c := range map[string]struct {
		path, body string
		after      []int
	}{
		"chat":                {chatPath, chatBody("a", usage+`,"max_tokens":20`), []int{5}},
		"no limit":            {chatPath, chatBody("b", usage), []int{5}},
		"two deaths":          {chatPath, chatBody("c", usage+`,"max_completion_tokens":20`), []int{5, 4}},
		"first token":         {chatPath, chatBody("d", usage+`,"max_tokens":20`), []int{1, 1}},
		"last token":          {chatPath, chatBody("e", usage+`,"max_tokens":20`), []int{19}},
		"least tokens":        {chatPath, chatBody("f", usage+`,"min_tokens":30,"max_tokens":40`), []int{5, 4}},
		"no usage":            {chatPath, chatBody("g", `,"stream":true,"max_tokens":20`), []int{5}},
		"log probabilities":   {chatPath, chatBody("h", usage+`,"max_tokens":20,"logprobs":true`), []int{5}},
		"ids for the client":  {chatPath, chatBody("i", usage+`,"max_tokens":20,"return_token_ids":true`), []int{5, 4}},
		"seed":                {chatPath, chatBody("j", usage+`,"max_tokens":20,"seed":3`), []int{5, 4}},
		"text":                {textPath, text(`"once upon a time"`, `,"max_tokens":20`), []int{5, 4}},
		"text of usual size":  {textPath, text(`"once upon a time"`, ``), []int{5, 4}},
		"text, ids":           {textPath, text(`"once upon"`, `,"max_tokens":20,"return_token_ids":true`), []int{5, 4}},
		"prompt of token ids": {textPath, text(`[70,71,72]`, `,"max_tokens":20`), []int{5, 4}},
		"escapes":             {chatPath, chatBody("k\n\u00e9", usage+`,"max_tokens":20`), []int{5}},
	} {
		got, want, r := s.broken(c.path, c.body, c.after...)
		if !got.same(want) || got.dones != 1 || got.ids != 1 || got.finishes != 1 || want.text == "" {
			t.Errorf("%s:\n%+v\n%+v\n%s", name, got, want, r.body)
		}
	}
	if n := s.resumed("ids", "complete"); n < 15 {
		t.Errorf("%d streams went on by ids\n%s", n, s.log.text())
	}
}

// TestGoesOnBehindTLS checks a stream that a goroutine relays, not the relay's loops.
func TestGoesOnBehindTLS(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "pki")
	if err := pki.Bootstrap(dir, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	own := pki.FilesIn(dir, pki.Router)
	s := serve(t, simulate(t, 2), resumes("auto"), func(c *router.Config) { c.TLS.Cert, c.TLS.Key = own.Cert, own.Key })
	s.url = strings.Replace(s.url, "http:", "https:", 1)
	s.client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
	for i := range 5 {
		got, want, r := s.broken(chatPath, chatBody(fmt.Sprint(i), `,"stream":true,"max_tokens":20`), 5)
		if !got.same(want) || got.dones != 1 || got.ids != 1 {
			t.Errorf("%+v\n%+v\n%s", got, want, r.body)
		}
	}
}

// TestStopStringsAcrossTheSeam checks each place of a stop string around the seam. A stop string
// that begins before the seam is found, although no engine has all of it in its text.
func TestStopStringsAcrossTheSeam(t *testing.T) {
	t.Parallel()
	// With text the engine must hold back whole tokens, or it cuts the text into others.
	for mode, lengths := range map[string][]int{"ids": {1, 2, 7, 12}, "text": {1, 5, 13}} {
		s := serve(t, simulate(t, 2, func(c *engine.Config) { c.OmitTokenIDs = mode == "text" }), resumes("on"))
		const usage, seam = `,"stream":true,"max_tokens":20,"stream_options":{"include_usage":true}`, 5
		whole := saidBy(t, s.chat(chatBody("go", usage))).text
		for from := 2; from < 34; from += 3 {
			for _, length := range lengths {
				stop, _ := json.Marshal([]string{"never", whole[from : from+length]})
				got, want, r := s.broken(chatPath, chatBody("go", usage+`,"stop":`+string(stop)), seam)
				if got.text != want.text || got.reason != want.reason || got.stop != want.stop || got.dones != 1 ||
					got.finishes != 1 || got.ids != 1 || got.roles != 1 {
					t.Fatalf("%s, stop %s at %d:\n%+v\n%+v\n%s", mode, stop, from, got, want, r.body)
				}
				if mode == "text" {
					continue
				}
				most, more := float64(max(length, len("never"))-1), got.completion-want.completion
				if across := from < 4*seam && from+length > 4*seam; got.usages != 1 || got.prompt != want.prompt ||
					got.total != got.prompt+got.completion || more < 0 || 4*more > most+3 || more > 0 && !across {
					t.Errorf("stop %s at %d: %v tokens more than %v\n%s", stop, from, more, want.completion, r.body)
				}
			}
		}
		if s.resumed(mode, "complete") < 10 {
			t.Errorf("only %d streams went on", s.resumed(mode, "complete"))
		}
	}
}

// TestTextOfTokensIsPrivate checks that only nodes that the client allows are asked for the text of
// an answer's last tokens, and not always the same node.
func TestTextOfTokensIsPrivate(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 6, func(c *engine.Config) { c.RecordRequests = 4096 }), resumes("auto"))
	const more = `,"stream":true,"max_tokens":20,"stop":"never seen","nvext":{"allowed_worker_ids":["sim-3","sim-4","sim-5"]}`
	for i := range 6 {
		if got, want, r := s.broken(chatPath, chatBody(fmt.Sprint(i), more), 5); !got.same(want) || got.dones != 1 {
			t.Errorf("%+v\n%+v\n%s", got, want, r.body)
		}
	}
	all, asked := 0, make([]int, len(s.engines))
	for i, e := range s.engines {
		asked[i] = had(e, "/detokenize")
		all += asked[i]
	}
	if asked[0]+asked[1]+asked[2] > 0 || all < 6 || slices.Max(asked) == all {
		t.Errorf("nodes were asked so often: %v", asked)
	}
}

// TestContinuedByText checks the way of engines without token ids.
func TestContinuedByText(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "access")
	engines := simulate(t, 3, func(c *engine.Config) { c.OmitTokenIDs, c.RecordRequests = true, 4096 })
	s := serve(t, engines, resumes("on"), func(c *router.Config) { c.Log.Access = file })
	const more = `,"stream":true,"max_tokens":20,"stream_options":{"include_usage":true}`
	for path, body := range map[string]string{
		chatPath: chatBody("tell", more), textPath: `{"model":"sim","prompt":"once upon a time"` + more + `}`,
	} {
		if got, want, r := s.broken(path, body, 5, 4); !got.same(want) || got.dones != 1 || got.ids != 1 {
			t.Errorf("%s:\n%+v\n%+v\n%s", path, got, want, r.body)
		}
	}
	eventually(t, "the access log says so", func() bool {
		page, err := os.ReadFile(file)
		return err == nil && strings.Count(string(page), `"resumed":"text"`) >= 2
	})
	if n := s.legsOf(`"continue_final_message":true`); n < 2 {
		t.Errorf("%d chats went on by text", n)
	}
}

// legsOf returns how many of the engines' requests have a text.
func (s *site) legsOf(text string) (n int) {
	for _, e := range s.engines {
		for _, r := range e.Requests() {
			n += strings.Count(string(r.Body), text)
		}
	}
	return n
}

// TestNothingGoesOn checks the streams that end with an error event when their node is gone.
func TestNothingGoesOn(t *testing.T) {
	t.Parallel()
	const more = `,"stream":true,"max_tokens":20`
	tool := `,"tools":[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":` +
		`{"city":{"type":"string"}}}}}],"tool_choice":"required"`
	for name, c := range map[string]struct{ mode, more, node, by string }{ // both nodes die
		"off":             {"off", "", "", "off"},
		"choices":         {"on", `,"n":2`, "", "n"},
		"guided decoding": {"on", `,"response_format":{"type":"json_object"}`, "", "response_format"},
		"stop string":     {"on", `,"stop":"ab","include_stop_str_in_output":true`, "", "include_stop_str_in_output"},
		"tool call":       {"on", tool, "", "tool"},
		"pin":             {"on", "", "sim-0", "pinned"},
	} {
		s := serve(t, simulate(t, 2), resumes(c.mode))
		for _, e := range s.engines {
			e.SetFault(&engine.Fault{DieAfter: new(2)})
		}
		header := []string{"x-request-id", "one"}
		if c.node != "" {
			header = append(header, "x-cgn-node", c.node)
		}
		r := s.chat(chatBody("x", more+c.more), header...)
		if got := saidBy(t, r); got.err != "the backend failed before the stream was complete" || got.dones != 0 {
			t.Errorf("%s: %s", name, r.body)
		}
		if n := s.legsOf(`"model"`); n != 1 {
			t.Errorf("%s: %d nodes were asked", name, n)
		}
		if n := s.metrics().sum("cgn_router_resumed_total"); n != 1 || s.resumed(c.by, "impossible") != 1 {
			t.Errorf("%s is counted %v times\n%s", name, n, s.metrics())
		}
	}
}

// TestOtherAPIsAreCounted checks the broken streams of an API whose streams never go on, and of a
// cascade whose answer cannot go on.
func TestOtherAPIsAreCounted(t *testing.T) {
	t.Parallel()
	s := pairs(t, strict, early(8))
	for _, e := range s.engines {
		e.SetFault(&engine.Fault{DieAfter: new(2)})
	}
	s.post("/v1/responses", `{"model":"large","input":"x","stream":true}`)
	s.chat(smart(`,"stream":true,"n":2`))
	if s.resumed("api", "impossible") != 1 || s.resumed("n", "impossible") != 1 {
		t.Errorf("%s", s.metrics())
	}
}

// TestNoIDsInModeAuto checks that a stream without ids keeps its body until its first text only.
func TestNoIDsInModeAuto(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 2, func(c *engine.Config) { c.OmitTokenIDs = true }), resumes("auto"))
	got, _, r := s.broken(chatPath, chatBody("x", `,"stream":true,"max_tokens":20`), 5)
	if got.err == "" || len(got.text) != 20 || s.resumed("unknown", "impossible") != 1 {
		t.Errorf("%s\n%s", r.body, s.metrics())
	}
}

// TestNoTimeToGoOn checks that no node is asked to go on if answers have taught that it would begin
// after the client's deadline: a prompt takes 1.7 s, and 3 s are for two.
func TestNoTimeToGoOn(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 2, func(c *engine.Config) { c.PrefillTokensPerSecond = 700 }), resumes("auto"),
		func(c *router.Config) { c.Router.Mode = "predicted" })
	const more = `,"stream":true,"max_tokens":20`
	for i := range 3 {
		mustAll(t, "learning", together(2, func(j int) *reply {
			return s.chat(chatBody(longPrompt(fmt.Sprint("prompt ", i, j)), more), "x-cgn-node", fmt.Sprint("sim-", j))
		}))
	}
	for _, e := range s.engines {
		e.SetFault(&engine.Fault{DieAfter: new(5)})
	}
	before := had(s.engines[0], chatPath) + had(s.engines[1], chatPath)
	got := saidBy(t, s.chat(chatBody(longPrompt("the prompt"), more), "x-cgn-deadline-ms", "3000"))
	if got.err == "" || len(got.text) != 20 || s.resumed("late", "impossible") != 1 {
		t.Errorf("%+v\n%s", got, s.metrics().lines("cgn_router_resumed_total"))
	}
	if n := had(s.engines[0], chatPath) + had(s.engines[1], chatPath) - before; n != 1 {
		t.Errorf("%d nodes were asked", n)
	}
}

// TestStrayingNode checks an engine that does not show that it goes on from the delivered tokens.
// The client gets nothing of that engine's answer, unless the engine continues the text.
func TestStrayingNode(t *testing.T) {
	t.Parallel()
	for mode, by := range map[string]string{"auto": "ids", "on": "text"} {
		s := serve(t, simulate(t, 2, func(c *engine.Config) { c.OmitTokenIDs = c.ID == "sim-1" }), resumes(mode))
		for i := 0; ; i++ {
			got, want, r := s.broken(chatPath, chatBody(fmt.Sprint(i), `,"stream":true,"max_tokens":20`), 5)
			if r.node() != "sim-0" {
				continue
			}
			if mode == "on" && (!got.same(want) || got.dones != 1) || mode == "auto" && (len(got.text) != 20 ||
				got.err != "the backend failed before the stream was complete" || got.dones != 0) {
				t.Errorf("%s:\n%+v\n%+v\n%s", mode, got, want, r.body)
			}
			break
		}
		result := map[string]string{"auto": "failed", "on": "complete"}[mode]
		eventually(t, "it is counted", func() bool { return s.resumed(by, result) == 1 })
	}
}

// TestOldClientsAreNotResumed checks that a client with HTTP/1.0 gets its stream.
func TestOldClientsAreNotResumed(t *testing.T) {
	t.Parallel()
	s := serve(t, simulate(t, 1), resumes("on"))
	conn, err := net.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := chatBody("x", streaming)
	fmt.Fprintf(conn, "POST %s HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", chatPath,
		len(body), body)
	if page, err := io.ReadAll(conn); err != nil || !strings.Contains(string(page), "[DONE]") {
		t.Errorf("%v: %s", err, page)
	}
}
