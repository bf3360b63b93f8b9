// Package route has the command that explains the node choice for a request.
package route

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/net/http/httpguts"

	"github.com/cognitora/dataplane/ctl/admin"
	"github.com/cognitora/dataplane/ctl/cell"
	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/router/policy"
)

// maxBody is the longest request that is read, in bytes.
const maxBody = 64 << 20

type routeFlags struct {
	api, prompt, system, file, model string
	tenant, key                      string
	headers                          []string
	router                           admin.Port
}

// explainHelp is the help text of `cgn-ctl route explain`.
const explainHelp = "" +
	"Asks a router where a request would go at this moment: every candidate, the figures by which the policy's mode\n" +
	"chooses, the winner and the reason. Nothing is sent to an engine and nothing is counted. The columns depend on\n" +
	"the mode; -o json has all figures.\n\n" +
	`In mode predicted the lowest COST wins, in seconds: FIRST, the expected time to the first token, which is the sum of
BASE, which is base_s + steps_s, WAIT, the prefill that waits at the node, and PREFILL, this prompt's own; ANSWER,
from the first token to the last, with STEP between two tokens; and OTHERS, what the node's running requests lose.
Columns for rare parts appear where one is not 0. Of FIRST: STALLED, what a token of the node is overdue, SLOT,
until the engine has a free slot, ADAPTER, until the request's adapter is loaded, FETCH, in which the host gets
blocks of other hosts, and VIA, until another node has computed the prompt, in place of WAIT, PREFILL and FETCH.
Of COST: SHARED, the part of PREFILL and FETCH that other running requests with the same beginning bear, LATE, the
time beyond the request's targets, and TAINT, the factor of preferred labels. The policy weighs the parts, and the
line of each candidate has the sum. -o json has the parts with their weights.
LAST is the time to the first token of the node's last streamed answer, as expected when it was sent and as it came:
0.208/0.231. -o json has the answer's age too. - is none yet.
SLOWDOWN is the time that the node's prefill and its decode took lately beside nodes of its kind: 2.00/1.00 is twice
their prefill and the same decode. - is unknown: fewer than 8 answers, or none for 10 minutes. A node that is alone
in its kind has no SLOWDOWN. NOTE has the answers behind a slowdown and the age of the last one.
BLOCKS is as in mode score, and so are +HOST, +DISK and +SHARED.

In mode score BLOCKS is how many of the prompt's blocks the node is believed to hold; 3+5/9: it computes 5 more of 9 for
other requests. Columns for the blocks behind them appear where a node has some: +HOST in its host's RAM, +DISK on
its host's SSD, +SHARED in the caches of other hosts. OVERLAP is the share of all, each with its tier's worth; the line of a candidate
has shared_worth, that of a block of other hosts. PENDING is the prefill that waits at the node, in prompts of this
size, 4 at most: the policy takes its share (weights.pending) off OVERLAP. LOAD is how idle the node is, POWER how
little it draws beside the others, CAPACITY the mean of three shares, of GPU memory, of throughput (by width and
dtype) and of free request slots, each beside the most that a candidate has; all from 0 to 1. SCORE is their
sum, weighted by the policy (cgn-ctl route policy). A figure that a node does not report counts as the mean
of the others'; one that none reports is shown as - (power) or 0, and decides nothing. IN FLIGHT is requests
now, and those of other routers and clients as last told, of how many the node may have at once (-: no limit).
MEASURED has the figures of the node's agent, from its stream or its last heartbeat, with the age of each
sample: use of the GPU, CPUs of the engine (100 % is one), the wait for a CPU that 99 % of waits do not exceed,
round trip, segments sent again in a million, power. In mode cost the lowest COST wins, in blocks. least_loaded,
power_of_two and direct compare LOAD, and device_aware also DEVICE, whose - counts as an accelerator. In these modes
and in cost PENDING is the prefill that waits at the node, in blocks of 16 tokens. A line for each
candidate has its score or its cost with the parts: COST = prefill_load_scale * PREFILL + DECODE, and the blocks
that are cached; in other modes its load. A router with --log-level debug logs the same lines for every pick.
For a request with nvext.router.moe_query NOTE has how many of its experts the node hosts. They raise OVERLAP,
and in mode cost lower PREFILL by expert_blocks.
--header sends a header as a client would: a session's id, a pin (x-cgn-node, x-data-parallel-rank), an override
(x-cgn-router-NAME). The last lines name overrides of another mode, which have no effect. Whoever may ask here may
steer. Other headers change nothing.
Where nodes compute prompts for others, the lines below say whether one does for this request, and why. A second
table has its candidates.
Without a candidate the exit status is 1.`

// Command is cgn-ctl route.
func Command(a *cli.App) *cobra.Command {
	var f routeFlags
	c := &cobra.Command{
		Use:   "explain",
		Short: "Show where a request would go now, and why",
		Long:  explainHelp,
		Example: "  cgn-ctl route explain --prompt 'Why is the sky blue?'\n" +
			"  cgn-ctl route explain --file body.json --api responses\n" +
			"  cgn-ctl route explain --prompt Hello -H 'x-cgn-session-id: 7' -H 'x-cgn-router-temperature: 0.5'",
		Args: cli.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if !c.Flags().Changed("prompt") && !c.Flags().Changed("file") {
				return cli.Misused(cli.WithHint(errors.New("--prompt or --file is missing"),
					"for example: cgn-ctl route explain --prompt 'Why is the sky blue?'"))
			}
			for _, flag := range []string{"prompt", "model", "system"} {
				if c.Flags().Changed(flag) && c.Flags().Changed("file") {
					return cli.Misused(cli.WithHint(
						fmt.Errorf("--%s and --file are both given; the file is the whole request", flag),
						"for example: cgn-ctl route explain --file body.json"))
				}
			}
			return explain(a, c, f)
		},
	}
	f.router.Flags(c.Flags(), a.Getenv)
	c.Flags().StringVar(&f.prompt, "prompt", "", "text of a user message")
	c.Flags().StringVar(&f.system, "system", "", "text of a system message before it")
	c.Flags().StringVar(&f.file, "file", "", "file with a whole request body, - for standard input")
	c.Flags().StringVar(&f.model, "model", "", "model to ask for with --prompt (default: the router's first)")
	c.Flags().StringVar(&f.api, "api", "chat", "API the body is for: chat, completions, embeddings, responses, "+
		"messages")
	c.Flags().StringVar(&f.tenant, "tenant", "", "explain as for a key of this tenant; with auth.isolation only its own "+
		"cached blocks count")
	c.Flags().StringVar(&f.key, "key", "", "explain as for the API key with this id")
	c.MarkFlagsMutuallyExclusive("tenant", "key")
	c.Flags().StringArrayVarP(&f.headers, "header", "H", nil, "header of the request as 'NAME: VALUE'; repeat it for "+
		"several")
	return cli.Group("route", "Explain routing decisions, and show the policy behind them", c, newPolicy(a))
}

func explain(a *cli.App, c *cobra.Command, f routeFlags) error {
	header, err := headersOf(f.headers)
	if err != nil {
		return err
	}
	if f.file == "" && f.model == "" {
		view, err := f.router.Fleet(c.Context())
		if err != nil {
			return err
		}
		if f.model = view.FirstModel(); f.model == "" {
			return errors.New("the router serves no model yet")
		}
	}
	body, err := f.body(c)
	if err != nil {
		return err
	}
	if len(body) == 0 {
		return cli.WithHint(fmt.Errorf("--file %s: the body is empty", f.file),
			`it holds a whole request, such as {"model":"m","messages":[{"role":"user","content":"Hello"}]}`)
	}
	var e leg.Explanation
	query := url.Values{"api": {f.api}}
	for name, value := range map[string]string{"tenant": f.tenant, "key": f.key} {
		if value != "" {
			query.Set(name, value)
		}
	}
	path := "/debug/route?" + query.Encode()
	if err := f.router.DecodeWith(c.Context(), header, path, string(body), &e); err != nil {
		return err
	}
	show := func(t *cli.Table) {
		writeExplanation(t, &e)
		for _, name := range idleHeaders(header, e.Mode) {
			t.Line(fmt.Sprintf("%s has no effect in mode %s", name, e.Mode))
		}
	}
	if err := a.Show(e, show); err != nil || e.Winner != "" {
		return err
	}
	return refusal(&e)
}

// refusal returns the error for a request that no node can take.
func refusal(e *leg.Explanation) error {
	err, hint := errors.New("no node can take this request now"), "cgn-ctl top shows the nodes as they change"
	if e.Error != nil {
		what := "it would get"
		if e.Queue != nil {
			what = fmt.Sprintf("it would wait in the router's queue beside %d others; without a queue it would get",
				e.Queue.Requests)
		}
		err = fmt.Errorf("%w: %s HTTP %d %s, %s", err, what, e.Error.Status, e.Error.Code, e.Error.Message)
	}
	if slices.ContainsFunc(e.Candidates, func(c leg.ExplainedNode) bool { return c.Reason != "" }) {
		hint = "the notes above say why; " + hint
	}
	return cli.WithHint(err, hint)
}

// ofTheConnection are headers that a client's connection decides, so they cannot be given.
var ofTheConnection = []string{
	"Connection", "Content-Encoding", "Content-Length", "Content-Type", "Host", "Trailer", "Transfer-Encoding",
}

// overrides are the headers of single modes, after x-cgn-router-. Other overrides count in every
// mode.
var overrides = map[policy.Mode][]string{
	policy.Cost: {
		"overlap-score-credit", "prefill-load-scale", "overlap-score-weight", "kv-overlap-score-weight", "temperature",
		"shared-cache-multiplier",
	},
	policy.Predicted: {"ttft-target", "itl-target"},
}

// idleHeaders returns the headers that have no effect in the mode with the given name.
func idleHeaders(header http.Header, mode string) (idle []string) {
	for of, names := range overrides {
		for _, name := range names {
			if name = "x-cgn-router-" + name; of.String() != mode && header.Get(name) != "" {
				idle = append(idle, name)
			}
		}
	}
	slices.Sort(idle)
	return idle
}

// headersOf reads the values of --header.
func headersOf(lines []string) (http.Header, error) {
	all := http.Header{}
	for _, line := range lines {
		name, value, ok := strings.Cut(line, ":")
		value = strings.Trim(value, " \t")
		fault := ""
		switch {
		case !ok:
			fault = "has no colon"
		case !httpguts.ValidHeaderFieldName(name):
			fault = fmt.Sprintf("%q is no header's name", name)
		case !httpguts.ValidHeaderFieldValue(value):
			fault = "the value has bytes that no header may have"
		case slices.Contains(ofTheConnection, http.CanonicalHeaderKey(name)):
			fault = "the command decides " + name + " itself"
		}
		if fault != "" {
			return nil, cli.Misused(cli.WithHint(fmt.Errorf("--header %q: %s", line, fault),
				"for example: cgn-ctl route explain --prompt Hello --header 'x-cgn-session-id: 7'"))
		}
		all.Add(name, value)
	}
	return all, nil
}

// body returns the request to explain: the unchanged file, or a chat or completion with the prompt.
func (f routeFlags) body(c *cobra.Command) ([]byte, error) {
	if f.file != "" {
		return cli.ReadInput(c, f.file, maxBody)
	}
	request := map[string]any{"model": f.model}
	type message struct {
		Role    string `json:"role"`
		Content string `json:"content"`
	}
	messages := []message{{"user", f.prompt}}
	switch f.api {
	case "chat", "messages":
		if f.system != "" {
			messages = append([]message{{"system", f.system}}, messages...)
		}
		request["messages"] = messages
	case "completions":
		request["prompt"] = f.prompt
	case "responses", "embeddings":
		request["input"] = f.prompt
	default:
		return nil, cli.Misused(fmt.Errorf("--api %q: with --prompt it must be chat, completions, embeddings, "+
			"responses or messages", f.api))
	}
	return json.Marshal(request)
}

// blocksCell returns how much of the prompt the node holds, and how much more it would compute.
func blocksCell(c *leg.ExplainedNode) string {
	held := strconv.Itoa(c.Matched)
	if more := c.Coming - c.Matched; more > 0 {
		held += "+" + strconv.Itoa(more)
	}
	return held + "/" + strconv.Itoa(c.Total)
}

// tiers are the tiers outside of an engine's own memory, with the node's leading blocks in the tier
// and in no better one.
var tiers = []struct {
	title string
	of    func(c *leg.ExplainedNode) int
}{
	{"+HOST", func(c *leg.ExplainedNode) int { return max(c.Host-max(c.Matched, c.Coming), 0) }},
	{"+DISK", func(c *leg.ExplainedNode) int { return max(c.Disk-max(c.Host, c.Coming), 0) }},
	{"+SHARED", func(c *leg.ExplainedNode) int { return max(c.Shared-max(c.Disk, c.Coming), 0) }},
}

// blockColumns returns the columns of the blocks that nodes hold: BLOCKS, and those of the tiers in
// which some node has more.
func blockColumns(e *leg.Explanation) []column {
	columns := []column{{"BLOCKS", blocksCell}}
	for _, t := range tiers {
		if slices.ContainsFunc(e.Candidates, func(c leg.ExplainedNode) bool { return t.of(&c) > 0 }) {
			cell := func(c *leg.ExplainedNode) string { return strconv.Itoa(t.of(c)) }
			columns = append(columns, column{t.title, cell})
		}
	}
	return columns
}

// lastCell returns the expected and the real time to the first token of the node's last answer.
func lastCell(c *leg.ExplainedNode) string {
	if c.Last == nil {
		return "-"
	}
	return fmt.Sprintf("%.3f/%.3f", c.Last.Expected, c.Last.Real)
}

// column is a column of the candidates' table.
type column struct {
	title string
	of    func(c *leg.ExplainedNode) string
}

// columnsOf returns the columns of the figures by which the explanation's mode chooses.
func columnsOf(e *leg.Explanation) []column {
	load := column{"LOAD", func(c *leg.ExplainedNode) string {
		if !c.Eligible {
			return "-"
		}
		return fmt.Sprintf("%.3f", c.Load)
	}}
	pending := column{"PENDING", func(c *leg.ExplainedNode) string { return strconv.Itoa(c.Pending) }}
	switch e.Mode {
	case policy.Score.String():
		power := ofScore("POWER", func(c *leg.ScoreTerms) float64 { return c.Power })
		if !slices.ContainsFunc(e.Candidates, func(c leg.ExplainedNode) bool { return !c.Signals.Power.At.IsZero() }) {
			power.of = func(*leg.ExplainedNode) string { return "-" }
		}
		return append(blockColumns(e),
			ofScore("OVERLAP", func(c *leg.ScoreTerms) float64 { return c.Overlap }),
			ofScore("PENDING", func(c *leg.ScoreTerms) float64 { return c.Waiting }),
			load,
			power,
			ofScore("CAPACITY", func(c *leg.ScoreTerms) float64 { return c.Capacity }),
			ofScore("SCORE", func(c *leg.ScoreTerms) float64 { return c.Score }),
		)
	case policy.Cost.String():
		return append(blockColumns(e),
			ofCost("COST", func(c *policy.CostTerms) float64 { return c.Total }),
			ofCost("PREFILL", func(c *policy.CostTerms) float64 { return c.Prefill }),
			ofCost("DECODE", func(c *policy.CostTerms) float64 { return c.Decode }),
			ofCost("CACHED", func(c *policy.CostTerms) float64 { return c.Cached }),
			pending,
		)
	case policy.Predicted.String():
		columns := blockColumns(e)
		for _, part := range expectedParts {
			if !part.rare || slices.ContainsFunc(e.Candidates, part.counts) {
				columns = append(columns, part.column())
			}
		}
		return append(columns, column{"LAST", lastCell}, column{"SLOWDOWN",
			func(c *leg.ExplainedNode) string { return cell.Slowdown(c.Speed) }})
	case policy.DeviceAware.String():
		return []column{{"DEVICE", func(c *leg.ExplainedNode) string { return cell.Dash(c.Device) }}, load, pending}
	case policy.LeastLoaded.String(), policy.PowerOfTwo.String(), policy.Direct.String():
		return []column{load, pending}
	}
	return nil // the mode looks at no figure
}

// ofScore is a column of a term that only candidates have.
func ofScore(title string, term func(c *leg.ScoreTerms) float64) column {
	return column{title, func(c *leg.ExplainedNode) string {
		if !c.Eligible || c.ScoreTerms == nil {
			return "-"
		}
		return fmt.Sprintf("%.3f", term(c.ScoreTerms))
	}}
}

// ofCost is a column of a part of the cost.
func ofCost(title string, part func(c *policy.CostTerms) float64) column {
	return column{title, func(c *leg.ExplainedNode) string {
		if c.Cost == nil {
			return "-"
		}
		return fmt.Sprintf("%.3f", part(c.Cost))
	}}
}

// expectedPart is a part of the expected cost. A rare part has a column only if it counts.
type expectedPart struct {
	title    string
	of       func(c *policy.ExpectedCost) float64
	decimals int
	rare     bool
	neutral  float64 // the value that changes no cost
}

// expectedParts are all parts of the expected cost, in the order of their columns.
var expectedParts = []expectedPart{
	{"COST", func(c *policy.ExpectedCost) float64 { return c.Total }, 3, false, 0},
	{"FIRST", func(c *policy.ExpectedCost) float64 { return c.First }, 3, false, 0},
	{"BASE", func(c *policy.ExpectedCost) float64 { return c.Base + c.ExpectedParts.Steps }, 3, true, 0},
	{"WAIT", func(c *policy.ExpectedCost) float64 { return c.Wait }, 3, false, 0},
	{"STALLED", func(c *policy.ExpectedCost) float64 { return c.Delay }, 3, true, 0},
	{"SLOT", func(c *policy.ExpectedCost) float64 { return c.Slot }, 3, true, 0},
	{"ADAPTER", func(c *policy.ExpectedCost) float64 { return c.Adapter }, 3, true, 0},
	{"PREFILL", func(c *policy.ExpectedCost) float64 { return c.Prefill }, 3, false, 0},
	{"FETCH", func(c *policy.ExpectedCost) float64 { return c.Fetch }, 3, true, 0},
	{"VIA", func(c *policy.ExpectedCost) float64 { return c.Via }, 3, true, 0},
	{"STEP", func(c *policy.ExpectedCost) float64 { return c.Step }, 4, false, 0},
	{"ANSWER", func(c *policy.ExpectedCost) float64 { return c.Answer }, 3, false, 0},
	{"OTHERS", func(c *policy.ExpectedCost) float64 { return c.Stalls + c.Slower }, 3, false, 0},
	{"SHARED", func(c *policy.ExpectedCost) float64 { return c.Shared }, 3, true, 0},
	{"LATE", func(c *policy.ExpectedCost) float64 { return c.Late }, 3, true, 0},
	{"TAINT", func(c *policy.ExpectedCost) float64 { return c.Labels }, 3, true, 1},
}

// counts says whether the part changes the candidate's cost.
func (p expectedPart) counts(c leg.ExplainedNode) bool {
	return c.Expected != nil && p.of(c.Expected) != p.neutral
}

// column is the part's column, in seconds.
func (p expectedPart) column() column {
	return column{p.title, func(c *leg.ExplainedNode) string {
		if c.Expected == nil {
			return "-"
		}
		return strconv.FormatFloat(p.of(c.Expected), 'f', p.decimals, 64)
	}}
}

// slowNoted is the slowdown from which on the note of a node has it.
const slowNoted = 1.25

// slowNotes say which parts of the node's work take long, and how well that is known.
func slowNotes(s *leg.NodeSpeed) (notes []string) {
	if s == nil {
		return nil
	}
	if s.Tried {
		notes = append(notes, "counts as like its kind, to be tried again")
	}
	for _, part := range []struct {
		name string
		pace *leg.NodePace
	}{{"prefill", &s.Prefill}, {"decode", &s.Decode}} {
		if p := part.pace; p.Slowdown >= slowNoted && p.Age != nil {
			notes = append(notes, fmt.Sprintf("%s takes %.1f times as long as at its like (%d answers, the last %s ago)",
				part.name, p.Slowdown, p.Answers, ago(*p.Age)))
		}
	}
	return notes
}

// usedNoted is the share of used blocks below which the note of a node has it.
const usedNoted = 0.9

// usedNotes say of which tiers the node's engine lately computed blocks that it could have loaded.
func usedNotes(u *leg.UsedBlocks) (notes []string) {
	if u == nil {
		return nil
	}
	for _, tier := range []struct {
		name  string
		share float64
	}{{"in its host's RAM", u.Host}, {"on its host's SSD", u.Disk}, {"on other hosts", u.Shared}} {
		if tier.share < usedNoted {
			notes = append(notes, fmt.Sprintf("its engine used %.0f %% of the blocks %s", 100*tier.share, tier.name))
		}
	}
	return notes
}

// ago writes an age in seconds.
func ago(seconds float64) string {
	if seconds < 1 {
		return "less than 1s"
	}
	return time.Duration(seconds * float64(time.Second)).Truncate(time.Second).String()
}

func writeExplanation(t *cli.Table, e *leg.Explanation) {
	t.Line(fmt.Sprintf("model %s, %s, %d blocks of prompt, mode %s\n", cell.Dash(e.Model), e.API, e.Blocks, e.Mode))
	writePick(t, e)
	if p := e.Prefill; p != nil {
		t.Line("\n" + whoseWork(p.Result) + " (" + p.Result + "): " + p.Why)
		if p.Pick != nil {
			t.Line("")
			writePick(t, p.Pick)
		}
	}
}

// whoseWork says which node computes the prompt, by the result of the decision about a hand-over.
func whoseWork(result string) string {
	if result == leg.Split.String() {
		return "Another node computes the prompt"
	}
	return "The answering node computes the prompt"
}

// writePick writes the table of a pick's candidates, their formulas and the winner.
func writePick(t *cli.Table, e *leg.Explanation) {
	columns := columnsOf(e)
	titles := []string{"", "NODE"}
	for _, c := range columns {
		titles = append(titles, c.title)
	}
	t.Words(append(titles, "IN FLIGHT", "MEASURED", "NOTE"))
	winner := leg.Title(e.Winner, e.WinnerRank)
	for _, c := range e.Candidates {
		cells := []string{"", c.Title()}
		if c.Title() == winner {
			cells[0] = "->"
		}
		for _, column := range columns {
			cells = append(cells, column.of(&c))
		}
		t.Words(append(cells, inFlightCell(&c), cell.Signals(&c.Signals), noteCell(&c)))
	}
	writeFormulas(t, e)
	writeWinner(t, e)
}

// writeFormulas writes the line of each candidate.
func writeFormulas(t *cli.Table, e *leg.Explanation) {
	lead := "\n"
	for _, c := range e.Candidates {
		if c.Formula != "" {
			t.Line(lead + c.Formula)
			lead = ""
		}
	}
}

// inFlightCell returns the requests at the node, and their limit.
func inFlightCell(c *leg.ExplainedNode) string {
	n := strconv.Itoa(c.InFlight)
	if c.Others > 0 {
		n += "+" + strconv.Itoa(c.Others)
	}
	return n + "/" + cell.Limit(c.Slots)
}

func noteCell(c *leg.ExplainedNode) string {
	var notes []string
	if c.Adapter != "" {
		notes = append(notes, "adapter "+c.Adapter)
	}
	if c.ExpertsAsked > 0 {
		notes = append(notes, fmt.Sprintf("hosts %d of %d experts", c.ExpertsHosted, c.ExpertsAsked))
	}
	notes = append(append(notes, slowNotes(c.Speed)...), usedNotes(c.Used)...)
	switch {
	case !c.Eligible:
		notes = append(notes, "no candidate: "+c.Reason)
	case c.Reason != "":
		notes = append(notes, c.Reason)
	}
	return strings.Join(notes, "; ")
}

func writeWinner(t *cli.Table, e *leg.Explanation) {
	winner := leg.Title(e.Winner, e.WinnerRank)
	if winner == "" {
		winner = "no node"
	}
	t.Line(fmt.Sprintf("\n%s: %s", winner, e.Why))
}
