package up

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/cognitora/dataplane/ctl/admin"
	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/ctl/etcd"
	"github.com/cognitora/dataplane/ctl/screen"
	top "github.com/cognitora/dataplane/ctl/top"
)

const (
	readyPoll = 100 * time.Millisecond
	readyTell = 5 * time.Second // interval of explanations during a long wait
	simReady  = 60 * time.Second
)

// awaitReady returns when every router would answer a request. awaitReady waits for all nodes that
// were started here, or for at least one node if none was started here.
func (l *local) awaitReady(drain context.Context, a *cli.App) error {
	begin, tick := time.Now(), time.NewTicker(readyPoll)
	defer tick.Stop()
	told := begin
	for {
		missing := l.missing(drain)
		switch {
		case missing == "":
			return nil
		case l.flags.model == "" && l.etcd != "" && time.Since(begin) > simReady:
			return fmt.Errorf("not ready after %s: %s", simReady, missing)
		case time.Since(told) > readyTell:
			told = time.Now()
			fmt.Fprintf(a.Err, "waiting, until Ctrl-C: %s\n", missing)
		}
		select {
		case <-drain.Done():
			return context.Canceled
		case err := <-l.parts.failed:
			return err
		case <-tick.C:
		}
	}
}

// missing returns why the routers cannot answer yet; "" if they can.
func (l *local) missing(ctx context.Context) string {
	for _, r := range l.routers {
		view, err := (&admin.Port{At: reachable(r.Admin)}).Fleet(ctx)
		if err != nil {
			return err.Error()
		}
		ready, reasons := 0, []string{}
		for _, n := range view.Nodes {
			if n.Eligible {
				ready++
				continue
			}
			reason := n.ID + ": " + n.Reason
			if n.LastError != "" {
				reason += " (" + n.LastError + ")"
			}
			reasons = append(reasons, reason)
		}
		for _, p := range view.Problems {
			reasons = append(reasons, p.Subject+": "+p.Reason)
		}
		if ready < max(len(l.nodes), 1) {
			return fmt.Sprintf("router at %s has %d of %d nodes ready; %s", r.Listen, ready, max(len(l.nodes), 1),
				strings.Join(reasons, "; "))
		}
	}
	if _, err := l.askReady(ctx); err != nil {
		return err.Error()
	}
	return ""
}

func (l *local) askReady(ctx context.Context) ([]byte, error) {
	return (&admin.Port{At: reachable(l.routers[0].Admin)}).Ask(ctx, "GET", "/readyz", "")
}

// summary is the JSON output of `up`.
type summary struct {
	Listen  string     `json:"listen"`
	Admin   string     `json:"admin"`
	Etcd    string     `json:"etcd,omitempty"`
	Model   string     `json:"model"`
	Routers []routerAt `json:"routers"`
	Nodes   []nodeAt   `json:"nodes"`
	Cache   *cacheAt   `json:"cache,omitempty"`
	Parts   []*part    `json:"parts"`
	Data    string     `json:"data"`
	Curl    string     `json:"curl"`
}

// present prints the running programs with their addresses, a request that can be pasted, and
// further commands.
func present(a *cli.App, l *local) error {
	first := routerAt{reachable(l.routers[0].Listen), reachable(l.routers[0].Admin)}
	view, err := (&admin.Port{At: first.Admin}).Fleet(context.Background())
	if err != nil {
		return err
	}
	model := view.FirstModel()
	if model == "" {
		return errors.New("no engine names a model; give one with --backend URL,model=NAME")
	}
	if l.flags.cascade {
		model = smartModel
	}
	s := summary{first.Listen, first.Admin, l.etcd, model, l.routers, l.nodes, l.cache, l.parts.list, l.dir,
		l.flags.curl(first.Listen, model)}
	return a.Show(s, func(t *cli.Table) { l.write(t, &s) })
}

// curl returns requests that can be pasted, and that show what is special about the fleet.
func (f *flags) curl(listen, model string) string {
	post := func(options, prompt string) string {
		return fmt.Sprintf(`curl %s http://%s/v1/chat/completions -H 'Content-Type: application/json' -d `+
			`'{"model":"%s","messages":[{"role":"user","content":"%s"}]}'`, options, listen, model, prompt)
	}
	switch {
	case f.divided(): // no node has this prompt cached, and it is long enough for two nodes
		return post("-si", `'"$(echo $(date) $(seq 1000))"'`)
	case f.cascade:
		return "for q in one two three four five six; do " + post("-si", `'$q'`) +
			" | grep -iE 'x-cgn-(node|cascade)'; done"
	}
	return post("-s", "Hello")
}

// ask says what to look at in the answer to the requests of curl.
func (f *flags) ask() string {
	switch {
	case f.divided():
		return "Ask it something long. Of the answer's headers, x-cgn-prefill-node names the node that computed the " +
			"prompt,\nand x-cgn-node the node that answered:"
	case f.cascade:
		return "Ask it something. Of the answers' headers, x-cgn-cascade-step is 1 if the small model answered, and " +
			"2 if the large one did:"
	}
	return "Ask it something:"
}

// explained returns the arguments of `route explain` for a request like those of curl.
func (f *flags) explained() string {
	switch {
	case f.divided():
		return `"$(date) $(seq 1000)"`
	case f.cascade:
		return "'Hello' --model " + smartModel
	}
	return "'Hello'"
}

func (l *local) write(t *cli.Table, s *summary) {
	t.Row("PART", "WHERE", "WHAT")
	for _, p := range s.Parts {
		t.Row(p.Name, p.Where, p.What)
	}
	for _, b := range l.flags.backends {
		t.Row("backend", b, "not started here")
	}
	if l.flags.routerMode() != l.flags.mode {
		l.notes = append(l.notes, "the routing mode is "+l.flags.routerMode()+", in which long prompts are split; "+
			"mode predicted (--mode predicted) splits\n      a request only where another node is expected to save time")
	}
	for _, n := range l.notes {
		t.Line("\nNote: " + n + ".")
	}
	t.Line("\n" + l.flags.ask() + "\n  " + s.Curl)
	if s.Cache != nil {
		t.Line("\nTry the KV cache (S3: http://" + s.Cache.S3 + "):\n  " + s.Cache.redisLine())
	}
	t.Line("\nLook next:")
	at := ""
	if s.Admin != strings.TrimPrefix(admin.Default, "http://") {
		at = " --admin " + s.Admin
	}
	t.Row("  where a request would go, and why", os.Args[0]+" route explain --prompt "+l.flags.explained()+at)
	t.Row("  the fleet, live", os.Args[0]+" top"+at)
	if l.etcd != "" {
		t.Row("  nodes, policy, cordon", os.Args[0]+" cluster nodes"+l.etcdHint())
	}
	if s.Cache != nil {
		t.Row("  what the KV cache holds", os.Args[0]+" kv stats --sock "+s.Cache.Sock)
	}
	t.Row("  metrics", "curl -s http://"+s.Admin+"/metrics")
	t.Line("\nCtrl-C takes all of it down.")
}

func (l *local) etcdHint() string {
	if l.etcd == etcd.Default {
		return ""
	}
	return " --etcd " + l.etcd
}

// paintLook shows the fleet in the block at the end of the terminal. paintLook returns the look to
// compare the next one with.
func paintLook(ctx context.Context, router *admin.Port, scr *screen.Block, before *top.Look) *top.Look {
	now, err := top.LookAt(ctx, router)
	if err != nil {
		return before
	}
	columns, rows, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil {
		columns, rows = 80, 24
	}
	p := now.Picture(before)
	p.All = "cgn-ctl top"
	// leaves room for a row above the picture, and for the cursor below
	scr.Paint("\n" + strings.Join(p.Fit(columns, rows-2), "\n") + "\n")
	return now
}
