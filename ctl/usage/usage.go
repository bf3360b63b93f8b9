// Package usage has the command that sums up what clients have used, by tenant, key, model and day.
package usage

import (
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/admin"
	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/router/tally"
)

// maxDays bounds the days of one command.
const maxDays = 400

// query is what the command is asked.
type query struct {
	router                admin.Port
	dirs                  []string
	from, to              string
	first, last           tally.Day
	by                    []string
	tenants, keys, models []string // empty: all
}

// Command is cgn-ctl usage.
func Command(a *cli.App) *cobra.Command { return command(a, time.Now) }

func command(a *cli.App, now func() time.Time) *cobra.Command {
	var q query
	c := &cobra.Command{
		Use:   "usage [DIR...]",
		Short: "Sum up requests and tokens by tenant, key, model and day",
		Long: "Sums up what clients have used, from the directories that routers write (usage.dir), from routers' admin\n" +
			"ports, or from both. A file that is found twice counts once. Without DIR the router at --admin is asked.\n" +
			"Several admin ports have commas between them.\n\n" +
			"  PROMPT, CACHED, COMPLETION  tokens; CACHED are those of PROMPT that the engine had in its cache\n" +
			"  ESTIMATED                   requests whose tokens the engine did not report, or not all of them\n\n" +
			"A day is a UTC day. -o csv has a line for each row and no total; -o json has both.",
		Example: "  cgn-ctl usage /var/lib/cognitora/usage\n" +
			"  cgn-ctl usage --admin 10.0.0.5:9091,10.0.0.6:9091 --from 2026-10-01 --to 2026-10-31 -o csv\n" +
			"  cgn-ctl usage --by day,model --tenant acme",
		Annotations: map[string]string{cli.FurtherOutput: "csv"},
		RunE: func(c *cobra.Command, dirs []string) error {
			q.dirs = dirs
			if err := q.read(c, now()); err != nil {
				return cli.Misused(err)
			}
			r, err := q.answer(c.Context(), c.Flags().Changed("admin"))
			if err != nil {
				return err
			}
			if err := strange(a.Err, q.dirs); err != nil {
				return err
			}
			if a.Output == "csv" {
				return r.csv(a)
			}
			return a.Show(r, r.table)
		},
	}
	f := c.Flags()
	q.router.Flags(f, a.Getenv)
	f.StringVar(&q.from, "from", "", "first day, as 2026-11-29 (default: the first of this month)")
	f.StringVar(&q.to, "to", "", "last day (default: today)")
	f.StringSliceVar(&q.by, "by", []string{"tenant", "key", "model"}, "what has a row of its own: tenant, key, model, "+
		"day; the rows are sorted in this order")
	f.StringSliceVar(&q.tenants, "tenant", nil, "only these tenants")
	f.StringSliceVar(&q.keys, "key", nil, "only keys with these ids")
	f.StringSliceVar(&q.models, "model", nil, "only these models")
	return c
}

// columns are the names that --by takes, and what they are of a row.
var columns = map[string]func(*tally.Row) string{
	"tenant": func(r *tally.Row) string { return r.Tenant },
	"key":    func(r *tally.Row) string { return r.Key },
	"model":  func(r *tally.Row) string { return r.Model },
	"day":    func(r *tally.Row) string { return r.Day.String() },
}

// read checks the flags and finds the days.
func (q *query) read(c *cobra.Command, now time.Time) (err error) {
	for i, dir := range q.dirs {
		if dir == "" || slices.Contains(q.dirs[:i], dir) {
			return fmt.Errorf("DIR %q is empty, or given twice", dir)
		}
	}
	today := tally.DayOf(now)
	q.first, q.last = today-tally.Day(now.UTC().Day()-1), today
	for _, d := range []struct {
		flag, text string
		into       *tally.Day
	}{{"from", q.from, &q.first}, {"to", q.to, &q.last}} {
		if d.text == "" {
			continue
		}
		if *d.into, err = tally.ParseDay(d.text); err != nil {
			return fmt.Errorf("--%s: %w", d.flag, err)
		}
	}
	if q.last < q.first {
		return fmt.Errorf("--from %s is after --to %s", q.first, q.last)
	}
	if q.last-q.first >= maxDays {
		return fmt.Errorf("--from %s --to %s: more than %d days; ask for fewer", q.first, q.last, maxDays)
	}
	for i, name := range q.by {
		if columns[name] == nil || slices.Contains(q.by[:i], name) {
			return fmt.Errorf("--by %q: name tenant, key, model and day, each once at most", name)
		}
	}
	return nil
}

// answer sums up the days. asked says that admin ports are named.
func (q *query) answer(ctx context.Context, asked bool) (*result, error) {
	r := &result{From: q.first, To: q.last, By: q.by}
	sources := make([]source, 0, len(q.dirs)+1)
	for _, dir := range q.dirs {
		sources = append(sources, directory(dir))
	}
	if asked || len(q.dirs) == 0 {
		for at := range strings.SplitSeq(q.router.At, ",") {
			p := q.router
			p.At = strings.TrimSpace(at)
			sources = append(sources, &port{p})
		}
	}
	sums := map[string]*row{}
	for d := q.first; d <= q.last; d++ {
		files, err := filesOf(ctx, sources, d)
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			for i := range f.Rows {
				q.add(sums, &f.Rows[i])
			}
		}
	}
	r.Rows = slices.AppendSeq([]*row{}, maps.Values(sums)) // no null in JSON
	slices.SortFunc(r.Rows, func(x, y *row) int { return slices.Compare(x.of, y.of) })
	for _, sum := range r.Rows {
		r.Total.Add(&sum.Use)
	}
	return r, nil
}

// add adds a row to the sum that it belongs to, if the filters let it pass.
func (q *query) add(sums map[string]*row, r *tally.Row) {
	for _, f := range []struct {
		only []string
		name string
	}{{q.tenants, r.Tenant}, {q.keys, r.Key}, {q.models, r.Model}} {
		if len(f.only) > 0 && !slices.Contains(f.only, f.name) {
			return
		}
	}
	of := make([]string, len(q.by))
	for i, name := range q.by {
		of[i] = columns[name](r)
	}
	key := strings.Join(of, "\x00")
	if sums[key] == nil {
		sums[key] = &row{by: q.by, of: of}
	}
	sums[key].Add(&r.Use)
}

// source has files of days.
type source interface {
	day(ctx context.Context, d tally.Day) ([]tally.File, error)
}

// directory is usage.dir of one or several routers.
type directory string

func (dir directory) day(_ context.Context, d tally.Day) ([]tally.File, error) {
	return tally.ReadDay(string(dir), d)
}

// maxStrange bounds the names that strange prints of a directory.
const maxStrange = 5

// strange says which files of the directories do not count, because their names are not those that
// routers give, such as compressed files.
func strange(errOut io.Writer, dirs []string) error {
	for _, dir := range dirs {
		names, err := tally.Strange(dir)
		if err != nil {
			return err
		}
		if n := len(names); n > 0 {
			more := ""
			if n > maxStrange {
				names, more = names[:maxStrange], fmt.Sprintf(" and %d more", n-maxStrange)
			}
			fmt.Fprintf(errOut, "cgn-ctl: not counted, as no router gives such names: %q%s in %s\n", names, more, dir)
		}
	}
	return nil
}

// port is the admin port of a router.
type port struct{ admin.Port }

func (p *port) day(ctx context.Context, d tally.Day) ([]tally.File, error) {
	var a tally.Answer
	if err := p.Decode(ctx, "/usage?day="+d.String(), "", &a); err != nil {
		return nil, err
	}
	if a.Day != d {
		return nil, fmt.Errorf("%s answers about %s, not about %s", p.At, a.Day, d)
	}
	return a.Files, nil
}

// filesOf returns the files of a day. Of a file that several sources have, the latest state counts.
func filesOf(ctx context.Context, sources []source, d tally.Day) (map[string]tally.File, error) {
	all := map[string]tally.File{}
	for _, s := range sources {
		files, err := s.day(ctx, d)
		if err != nil {
			return nil, err
		}
		for _, f := range files {
			if was, twice := all[f.Name]; !twice || f.Requests() > was.Requests() {
				all[f.Name] = f
			}
		}
	}
	return all, nil
}

// result is what the command prints.
type result struct {
	From  tally.Day `json:"from"`
	To    tally.Day `json:"to"`
	By    []string  `json:"by"`
	Rows  []*row    `json:"rows"`
	Total tally.Use `json:"total"`
}

// row is the sum of what belongs together.
type row struct {
	by, of []string // names and values of the columns
	tally.Use
}

// MarshalJSON implements json.Marshaler: the row is an object with the columns of --by.
func (r *row) MarshalJSON() ([]byte, error) {
	var b []byte
	for i, name := range r.by {
		text, err := json.Marshal(r.of[i])
		if err != nil {
			return nil, err
		}
		b = fmt.Appendf(b, ",%q:%s", name, text)
	}
	for i, n := range numbers(&r.Use) {
		b = fmt.Appendf(b, ",%q:%s", numberNames[i], n)
	}
	b[0] = '{'
	return append(b, '}'), nil
}

// numberNames are the names of numbers in JSON and CSV.
var numberNames = []string{"requests", "prompt_tokens", "cached_tokens", "completion_tokens", "estimated_requests"}

func numbers(u *tally.Use) []string {
	var all []string
	for _, n := range []int64{u.Requests, u.Prompt, u.Cached, u.Completion, u.Estimated} {
		all = append(all, strconv.FormatInt(n, 10))
	}
	return all
}

func (r *result) table(t *cli.Table) {
	var head []string
	for _, name := range r.By {
		head = append(head, strings.ToUpper(name))
	}
	total := make([]string, len(r.By))
	if len(total) > 0 {
		total[0] = "total"
	}
	t.Words(append(head, "REQUESTS", "PROMPT", "CACHED", "COMPLETION", "ESTIMATED"))
	for _, sum := range r.Rows {
		cells := slices.Clone(sum.of)
		for i := range cells {
			cells[i] = cmp.Or(cells[i], "-")
		}
		t.Words(append(cells, numbers(&sum.Use)...))
	}
	t.Words(append(total, numbers(&r.Total)...))
}

func (r *result) csv(a *cli.App) error {
	w := csv.NewWriter(a.Out)
	_ = w.Write(append(slices.Clone(r.By), numberNames...)) // Flush keeps the error
	for _, sum := range r.Rows {
		_ = w.Write(append(slices.Clone(sum.of), numbers(&sum.Use)...))
	}
	w.Flush()
	return w.Error()
}
