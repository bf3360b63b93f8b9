package route

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/router/nvext"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/predict"
)

const explained = `{"model":"m","api":"chat","mode":"score","prompt_blocks":4,"winner":"b","why":"highest score",
"candidates":[{"node":"a","eligible":false,"reason":"cordoned","matched":0,"total":4},
{"node":"b","eligible":true,"matched":1,"coming":3,"total":4,"overlap":0.75,"waiting":1.25,"load":1,` +
	`"power":0,"capacity":0.5,"score":0.7125,"in_flight":2,"formula":"Formula for b: 0.7125 = 0.55 * x",
"in_flight_of_others":5,"max_concurrent":64},
{"node":"c","eligible":true,"matched":2,"total":4,"in_flight":1,"adapter":"loaded"},
{"node":"d","reason":"too slow","adapter":"not loaded"},
{"node":"e","eligible":true,"total":4,"experts_asked":3},
{"node":"f","eligible":true,"total":4,"experts_asked":3,"experts_hosted":2,"reason":"suspected"}]}`

func TestRouteExplain(t *testing.T) {
	url, last, body := ctltest.AdminPort(t, map[string]string{"/debug/route": explained})
	out, err := ctl(t, map[string]string{"CGN_ADMIN": url}, "route", "explain", "--prompt", "hi", "--system", "be",
		"--model", "m")
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, out, "model m, chat, 4 blocks of prompt, mode score", "no candidate: cordoned", "->  b",
		"1+2/4", "1.250", "0.713", "2+5/64", "2/4", "1/-", "adapter loaded",
		"adapter not loaded; no candidate: too slow", "hosts 0 of 3 experts\n", "hosts 2 of 3 experts; suspected",
		"\n\nFormula for b: 0.7125 = 0.55 * x\n\nb: highest score")
	if last.Method != "POST" || last.URL.RawQuery != "api=chat" {
		t.Errorf("sent %s ?%s", last.Method, last.URL.RawQuery)
	}
	if *body != `{"messages":[{"role":"system","content":"be"},{"role":"user","content":"hi"}],"model":"m"}` {
		t.Errorf("sent %s", *body)
	}
	_, err = ctl(t, map[string]string{"CGN_ADMIN": url}, "route", "explain", "--prompt", "hi", "--model", "m",
		"--tenant", "a&b")
	if err != nil || last.URL.RawQuery != "api=chat&tenant=a%26b" {
		t.Errorf("%v, sent ?%s", err, last.URL.RawQuery)
	}
}

// TestRouteExplainOfPrompts checks that the text has the decision about the prompt, and the pick of
// the node that computes it.
func TestRouteExplainOfPrompts(t *testing.T) {
	const answering = `{"model":"m","api":"chat","mode":"score","winner":"d","why":"highest","candidates":` +
		`[{"node":"d","eligible":true,"score":0.5}],"prefill":%s}`
	for prefill, want := range map[string][]string{
		`{"result":"short","why":"it has 2 tokens"}`: {
			"d: highest\n\nThe answering node computes the prompt (short): it has 2 tokens\n"},
		`{"result":"split","why":"it is long","pick":{"mode":"score","winner":"p","why":"the only one","candidates":` +
			`[{"node":"p","eligible":true,"score":0.25}]}}`: {
			"\n\nAnother node computes the prompt (split): it is long\n\n    NODE", "->  p", "0.250", "\np: the only one\n"},
	} {
		url, _, _ := ctltest.AdminPort(t, map[string]string{"/debug/route": fmt.Sprintf(answering, prefill)})
		out, err := ctl(t, nil, "route", "explain", "--admin", url, "--model", "m", "--prompt", "hi")
		if err != nil {
			t.Fatal(err)
		}
		ctltest.Want(t, out, want...)
	}
}

// TestRouteExplainOfCosts checks the table and the lines of mode cost.
func TestRouteExplainOfCosts(t *testing.T) {
	page := `{"model":"m","api":"chat","mode":"cost","prompt_blocks":4,"winner":"b","why":"lowest cost",
"candidates":[{"node":"a","eligible":false,"reason":"cordoned","total":4},
{"node":"b","eligible":true,"matched":1,"total":4,"in_flight":2,"max_concurrent":64,
"formula":"Formula for b: 125.5 = 1.0 * 100.5 + 25.0 (cached_blocks: 15)",
"cost":{"total":125.5,"adjusted_prefill_blocks":100.5,"decode_blocks":25,"cached_blocks":15}}]}`
	url, _, _ := ctltest.AdminPort(t, map[string]string{"/debug/route": page})
	out, err := ctl(t, nil, "route", "explain", "--admin", url, "--model", "m", "--prompt", "hi")
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, out, "mode cost", "COST", "->  b", "125.500", "100.500", "25.000", "15.000", "2/64",
		"no candidate: cordoned", "\nFormula for b: 125.5 = 1.0 * 100.5 + 25.0 (cached_blocks: 15)\n", "\nb: lowest cost\n")
	if strings.Contains(out, "SCORE") {
		t.Error(out)
	}
}

func TestRouteExplainOfAFileSendsItAsItIs(t *testing.T) {
	url, last, body := ctltest.AdminPort(t, map[string]string{"/debug/route": explained})
	name := filepath.Join(t.TempDir(), "body.json")
	if err := os.WriteFile(name, []byte(`{"model": "x",  "input": 1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := ctl(t, nil, "route", "explain", "--admin", strings.TrimPrefix(url, "http://"), "--file", name, "--api",
		"responses", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	if *body != `{"model": "x",  "input": 1}` || last.URL.RawQuery != "api=responses" {
		t.Errorf("sent %s ?%s", *body, last.URL.RawQuery)
	}
	var e struct{ Winner string }
	if err := json.Unmarshal([]byte(out), &e); err != nil || e.Winner != "b" {
		t.Errorf("JSON output: %v\n%s", err, out)
	}
}

func TestNoCandidateIsAnError(t *testing.T) {
	page := `{"model":"m","api":"chat","mode":"score","winner":"","why":"no candidates","candidates":[{"node":"a","reason":"cordoned"}]}`
	url, _, _ := ctltest.AdminPort(t, map[string]string{"/debug/route": page})
	for _, output := range []string{"table", "json"} {
		out, err := ctl(t, nil, "route", "explain", "--admin", url, "--model", "m", "--prompt", "hi", "-o", output)
		if err == nil || !strings.Contains(err.Error(), "no node can take this request") ||
			!strings.Contains(out, "cordoned") || strings.Contains(out, "\n-:") {
			t.Errorf("%s: %v\n%s", output, err, out)
		}
	}
}

// TestRouteExplainSaysWhatTheRequestWouldGet checks the error of a request without a node, with and
// without notes on the candidates, and that an empty body is not sent.
func TestRouteExplainSaysWhatTheRequestWouldGet(t *testing.T) {
	const page = `{"model":"m","api":"chat","mode":"direct","why":"no candidates",
"error":{"status":400,"code":"node_missing","message":"name a node"},"candidates":[%s]}`
	for row, notes := range map[string]bool{
		`{"node":"a"}`: false, "": false, `{"node":"a","reason":"cordoned"}`: true,
	} {
		url, _, _ := ctltest.AdminPort(t, map[string]string{"/debug/route": fmt.Sprintf(page, row)})
		_, err := ctl(t, nil, "route", "explain", "--admin", url, "--model", "m", "--prompt", "hi")
		if err == nil || !strings.HasSuffix(err.Error(), ": it would get HTTP 400 node_missing, name a node") ||
			strings.Contains(ctltest.Hint(err), "the notes above") != notes {
			t.Errorf("%s: %v, hint %q", row, err, ctltest.Hint(err))
		}
	}
	empty := filepath.Join(t.TempDir(), "body.json")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ctl(t, nil, "route", "explain", "--file", empty); err == nil ||
		!strings.HasSuffix(err.Error(), "the body is empty") {
		t.Errorf("an empty body: %v", err)
	}
}

// TestRouteExplainSendsHeaders checks that each header reaches the router, by either flag.
func TestRouteExplainSendsHeaders(t *testing.T) {
	url, last, _ := ctltest.AdminPort(t, map[string]string{"/debug/route": explained})
	_, err := ctl(t, nil, "route", "explain", "--admin", url, "--model", "m", "--prompt", "hi", "--header",
		"x-cgn-session-id: a: b", "-H", "X-CGN-Router-Temperature:0.5", "-H", "x-many: 1", "-H", "x-many: 2")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"x-cgn-session-id": "a: b", "x-cgn-router-temperature": "0.5", "x-many": "1, 2",
		"content-type": "application/json",
	} {
		if got := strings.Join(last.Header.Values(name), ", "); got != want {
			t.Errorf("%s: sent %q, want %q", name, got, want)
		}
	}
}

// TestRouteExplainNamesABadHeader checks headers that cannot be sent.
func TestRouteExplainNamesABadHeader(t *testing.T) {
	for line, want := range map[string]string{
		"x-cgn-node":           `--header "x-cgn-node": has no colon`,
		"x cgn: 1":             `--header "x cgn: 1": "x cgn" is no header's name`,
		": 1":                  `--header ": 1": "" is no header's name`,
		"x-cgn-node: a\r\nb:c": `--header "x-cgn-node: a\r\nb:c": the value has bytes that no header may have`,
		"content-length: 5":    "the command decides content-length itself",
	} {
		_, err := ctl(t, nil, "route", "explain", "--model", "m", "--prompt", "hi", "-H", line)
		if err == nil || !strings.Contains(err.Error(), want) || ctltest.Hint(err) == "" {
			t.Errorf("%q: %v", line, err)
		}
	}
}

// TestRouteExplainHasTheColumnsOfTheMode checks the columns of every mode, and their cells.
func TestRouteExplainHasTheColumnsOfTheMode(t *testing.T) {
	want := map[string]struct{ titles, cells string }{
		"score":        {"BLOCKS OVERLAP PENDING LOAD POWER CAPACITY SCORE", "3/4 0.750 1.250 0.875 - 0.500 0.713"},
		"cost":         {"BLOCKS COST PREFILL DECODE CACHED PENDING", "3/4 125.500 100.500 25.000 15.000 17"},
		"round_robin":  {"", ""},
		"random":       {"", ""},
		"power_of_two": {"LOAD PENDING", "0.875 17"},
		"least_loaded": {"LOAD PENDING", "0.875 17"},
		"direct":       {"LOAD PENDING", "0.875 17"},
		"device_aware": {"DEVICE LOAD PENDING", "cpu 0.875 17"},
		"predicted": {"BLOCKS COST FIRST WAIT PREFILL STEP ANSWER OTHERS LAST SLOWDOWN",
			"3/4 3.142 0.234 0.125 0.089 0.0151 1.500 0.250 0.208/0.231 2.25/1.01"},
	}
	for _, mode := range policy.ModeNames() {
		if _, ok := want[mode]; !ok {
			t.Errorf("%s: its columns are not known here", mode)
		}
		page := `{"model":"m","api":"chat","mode":"` + mode + `","winner":"b","why":"because","candidates":[{"node":"b",
			"eligible":true,"matched":3,"total":4,"in_flight":2,"device":"cpu","overlap":0.75,"waiting":1.25,"load":0.875,"pending_blocks":17,
			"capacity":0.5,"score":0.7125`
		if mode == "cost" {
			page += `,"cost":{"total":125.5,"adjusted_prefill_blocks":100.5,"decode_blocks":25,"cached_blocks":15}`
		}
		note := ""
		if mode == "predicted" {
			page += `,"expected":{"wait_s":0.125,"prefill_s":0.089,"first_s":0.234,"step_s":0.01512,"answer_s":1.5,
				"stalls_s":0.2,"slower_s":0.05,"taint_factor":1,"total":3.1416},
				"last":{"expected_s":0.2081,"real_s":0.2309,"age_s":3},
				"speed":{"prefill":{"factor":2,"slowdown":2.25,"answers":34,"age_s":65.4},
				"decode":{"factor":1,"slowdown":1.01,"answers":200,"age_s":0.5}}`
			note = " prefill takes 2.2 times as long as at its like (34 answers, the last 1m5s ago)"
		}
		url, _, _ := ctltest.AdminPort(t, map[string]string{"/debug/route": page + "}]}"})
		out, err := ctl(t, nil, "route", "explain", "--admin", url, "--model", "m", "--prompt", "hi")
		if err != nil {
			t.Fatal(err)
		}
		words := func(line string) string { return strings.Join(strings.Fields(line), " ") }
		lines := strings.Split(out, "\n")
		titles := words("NODE " + want[mode].titles + " IN FLIGHT MEASURED NOTE")
		cells := words("-> b " + want[mode].cells + " 2/- -" + note)
		if words(lines[2]) != titles || words(lines[3]) != cells {
			t.Errorf("%s: %q and %q, want %q and %q", mode, words(lines[2]), words(lines[3]), titles, cells)
		}
	}
}

// TestRouteExplainSplitsBlocksByTier checks the columns of blocks outside of engines' own memory,
// and the note of an engine that does not use them.
func TestRouteExplainSplitsBlocksByTier(t *testing.T) {
	for mode, more := range map[string]string{"cost": "", "score": "", "predicted": `"expected":{"fetch_s":0.25},`} {
		page := `{"model":"m","api":"chat","mode":"` + mode + `","winner":"a","why":"because","candidates":[
			{"node":"a",` + more + `"matched":3,"coming":4,"matched_host":6,"matched_disk":6,"matched_shared":9,"total":9,
			"used":{"host":0.25,"disk":1,"shared":0.95}},
			{"node":"b","matched":0,"coming":0,"matched_host":0,"matched_disk":0,"matched_shared":9,"total":9}]}`
		url, _, _ := ctltest.AdminPort(t, map[string]string{"/debug/route": page})
		out, err := ctl(t, nil, "route", "explain", "--admin", url, "--model", "m", "--prompt", "hi")
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(out, "\n")
		for i, want := range []string{"NODE BLOCKS +HOST +SHARED ", "-> a 3+1/9 2 3 ", "b 0/9 0 9 "} {
			if got := strings.Join(strings.Fields(lines[2+i]), " "); !strings.HasPrefix(got, want) {
				t.Errorf("%s: %q, want %q", mode, got, want)
			}
		}
		fetch := strings.Contains(lines[2], "FETCH")
		if !strings.Contains(lines[3], "its engine used 25 % of the blocks in its host's RAM") ||
			strings.Contains(lines[3], "on other hosts") || fetch != (mode == "predicted") {
			t.Errorf("%s: %q, %q", mode, lines[2], lines[3])
		}
	}
}

// TestRouteExplainOfUnknownSpeeds checks the cells of nodes of which little is known, and of a node
// that is no candidate.
func TestRouteExplainOfUnknownSpeeds(t *testing.T) {
	const page = `{"model":"m","api":"chat","mode":"predicted","winner":"a","why":"because","candidates":[
{"node":"a","eligible":true,"total":4,"expected":{"taint_factor":1,"total":1},"speed":{"prefill":{"factor":1,"answers":0},
"decode":{"factor":1,"answers":0}}},
{"node":"b","eligible":true,"total":4,"expected":{"taint_factor":1,"total":1},"speed":{"prefill":{"factor":1,"answers":0},
"decode":{"factor":3,"slowdown":3,"answers":20,"age_s":0.4}}},
{"node":"c","reason":"cordoned","total":4},
{"node":"d","reason":"full","total":4,"speed":{"prefill":{"slowdown":5,"answers":220,"age_s":9},"decode":{}}}]}`
	url, _, _ := ctltest.AdminPort(t, map[string]string{"/debug/route": page})
	out, err := ctl(t, nil, "route", "explain", "--admin", url, "--model", "m", "--prompt", "hi")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"-> a 0/4 1.000 0.000 0.000 0.000 0.0000 0.000 0.000 - - 0/- -",
		"b 0/4 1.000 0.000 0.000 0.000 0.0000 0.000 0.000 - -/3.00 0/- - " +
			"decode takes 3.0 times as long as at its like (20 answers, the last less than 1s ago)",
		"c 0/4 - - - - - - - - - 0/- - no candidate: cordoned",
		"d 0/4 - - - - - - - - 5.00/- 0/- - prefill takes 5.0 times as long as at its like (220 answers, the last 9s ago)",
	} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// TestRouteExplainShowsAllOfAnExpectedCost checks that the columns of mode predicted add up to the
// cost, and that a part which is 0 for all candidates has none.
func TestRouteExplainShowsAllOfAnExpectedCost(t *testing.T) {
	p, e := policy.Default(), policy.Explanation{}
	p.TTFTSloMs, p.Predicted.Wait = 500, 2
	s := policy.Situation{Tokens: 1600, Blocks: 100, Output: 100}
	for range 2 {
		s.Candidates = append(s.Candidates, policy.Candidate{})
		s.Times = append(s.Times, policy.Timing{Speed: predict.Untaught(), Decoding: 2})
	}
	table := func() (titles []string, rows []map[string]float64) {
		t.Helper()
		p.Explain(&s, &e)
		shown := leg.Explanation{Mode: "predicted", Winner: "n0"}
		for i, terms := range e.Terms {
			shown.Candidates = append(shown.Candidates, leg.ExplainedNode{
				Node: fmt.Sprint("n", i), Eligible: true,
				Expected: &policy.ExpectedCost{ExpectedTerms: terms.Expected, ExpectedParts: terms.Parts},
			})
		}
		page, err := json.Marshal(shown)
		if err != nil {
			t.Fatal(err)
		}
		url, _, _ := ctltest.AdminPort(t, map[string]string{"/debug/route": string(page)})
		out, err := ctl(t, nil, "route", "explain", "--admin", url, "--model", "m", "--prompt", "hi")
		if err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(out, "\n")
		titles = strings.Fields(lines[2])
		titles = titles[:slices.Index(titles, "LAST")]
		for _, line := range lines[3:5] {
			row, cells := map[string]float64{}, strings.Fields(strings.TrimPrefix(line, "->"))
			for i, title := range titles {
				row[title], _ = strconv.ParseFloat(cells[i], 64)
			}
			rows = append(rows, row)
		}
		return titles, rows
	}
	titles, rows := table()
	addUp(t, e.Terms[0].Parts.Weights, rows)
	for _, rare := range []string{"STALLED", "SLOT", "ADAPTER", "SHARED", "LATE", "TAINT"} {
		if slices.Contains(titles, rare) {
			t.Errorf("column %s, and it is 0 for all", rare)
		}
	}
	c, at := &s.Candidates[1], &s.Times[1]
	c.EngineSlots, c.InFlight, c.Labels = 4, 9, 0.5
	s.Sharers, s.Shared = 9, 8
	at.Wait, at.Silent, at.Load, at.Pressing = 0.7, 2.5, 1.5, 3
	_, rows = table()
	addUp(t, e.Terms[0].Parts.Weights, rows)
	for _, rare := range []string{"BASE", "STALLED", "SLOT", "ADAPTER", "SHARED", "LATE", "TAINT"} {
		if rows[1][rare] == 0 {
			t.Errorf("column %s is missing or 0", rare)
		}
	}
}

// addUp checks that the figures of each row add up to the time to its first token and to its cost.
func addUp(t *testing.T, w policy.ExpectedWeights, rows []map[string]float64) {
	t.Helper()
	for i, r := range rows {
		if r["TAINT"] == 0 {
			r["TAINT"] = 1
		}
		first := r["BASE"] + w.Wait*r["WAIT"] + r["STALLED"] + r["SLOT"] + r["ADAPTER"] + r["PREFILL"]
		own := w.First*(r["FIRST"]-r["SHARED"]) + r["ANSWER"]
		cost := (own + w.Others*r["OTHERS"] + w.Late*r["LATE"]) * r["TAINT"]
		if math.Abs(first-r["FIRST"]) > 0.004 || math.Abs(cost-r["COST"]) > 0.15 || r["COST"] < 3 {
			t.Errorf("candidate %d: first %v and cost %v of %v", i, first, cost, r)
		}
	}
}

// TestHeadersWithoutEffectAreNamed checks that each override of another mode is named, and that the
// router knows it.
func TestHeadersWithoutEffectAreNamed(t *testing.T) {
	for of, names := range overrides {
		for _, name := range names {
			name = "x-cgn-router-" + name
			header := func(yield func(name, value []byte) bool) { yield([]byte(name), []byte("1")) }
			if err := nvext.ReadHeaders(&nvext.Ext{}, header); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			for _, mode := range policy.ModeNames() {
				page := fmt.Sprintf(`{"mode":%q,"winner":"a","why":"why"}`, mode)
				url, _, _ := ctltest.AdminPort(t, map[string]string{"/debug/route": page})
				out, err := ctl(t, nil, "route", "explain", "--admin", url, "--model", "m", "--prompt", "hi", "-H",
					name+": 1", "-H", "x-cgn-router-assume-kv-reuse: true")
				if err != nil {
					t.Fatal(err)
				}
				want := "\na: why\n"
				if mode != of.String() {
					want += name + " has no effect in mode " + mode + "\n"
				}
				if !strings.HasSuffix(out, want) {
					t.Errorf("%s in mode %s: no %q at the end of\n%s", name, mode, want, out)
				}
			}
		}
	}
}
