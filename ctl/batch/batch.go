// Package batch has the command that sends the requests of a file when nobody waits for an answer.
package batch

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/apikey"
)

// options are the flags of batch run, and its argument.
type options struct {
	file, out, failures string
	url, keyFile        string
	concurrency         int
	timeout, patience   time.Duration
}

// keyVariable is the environment variable with the API key, as in OpenAI's clients.
const keyVariable = "OPENAI_API_KEY"

// Command is cgn-ctl batch.
func Command(a *cli.App) *cobra.Command {
	return cli.Group("batch", "Send the requests of a file at the lowest priority", newRun(a))
}

func newRun(a *cli.App) *cobra.Command {
	o := options{}
	c := &cobra.Command{
		Use:   "run FILE",
		Short: "Send the requests of a file, and go on where the last run ended",
		Long: "Sends the requests of a file in OpenAI's batch format, at the lowest priority, and writes the answers in\n" +
			"OpenAI's output format. The file is checked before anything is sent. Refusals because of load are tried " +
			"again.\nAfter an interruption the same command sends only what has no answer yet: the first ctrl-C lets " +
			"running requests\nend, the second one does not. The exit status is 0 if every request has its answer.",
		Example: "  cgn-ctl batch run requests.jsonl\n" +
			"  cgn-ctl batch run requests.jsonl --url https://router:8080 --api-key-file key --concurrency 32",
		Args: cli.OneArgument("FILE"),
		RunE: cli.Interruptible(func(ctx context.Context, c *cobra.Command, args []string) error {
			o.file = args[0]
			if err := cli.InRanges(c.Flags(), ranges); err != nil {
				return err
			}
			return o.run(ctx, a)
		}),
	}
	f := c.Flags()
	f.StringVar(&o.out, "out", "", "file for the answers; it also says what a later run leaves out (default: "+
		"FILE.out.jsonl)")
	f.StringVar(&o.failures, "errors", "", "file for requests that failed, replaced by each run (default: "+
		"FILE.errors.jsonl)")
	f.StringVar(&o.url, "url", "http://127.0.0.1:8080", "endpoint, with /v1 or without; its key is taken from "+
		keyVariable)
	f.StringVar(&o.keyFile, "api-key-file", "", "file with the API key, instead of "+keyVariable)
	f.IntVar(&o.concurrency, "concurrency", 8, "most requests in flight")
	f.DurationVar(&o.timeout, "timeout", 10*time.Minute, "time that an attempt has")
	f.DurationVar(&o.patience, "patience", time.Hour, "how long a request is tried again that the endpoint has no room "+
		"for, or that does not reach it")
	return c
}

// ranges are the allowed values of the flags.
var ranges = map[string][2]float64{"concurrency": {1, 1024}, "timeout": {0.001, cli.Most}, "patience": {0, cli.Most}}

// Summary is what a run has done.
type Summary struct {
	Requests   int     `json:"requests"`        // in the file
	Before     int     `json:"answered_before"` // by former runs
	Answered   int     `json:"answered"`
	Failed     int     `json:"failed"`
	Unanswered int     `json:"unanswered"` // because the run was stopped
	Seconds    float64 `json:"seconds"`
	Out        string  `json:"out"`
	Errors     string  `json:"errors,omitempty"` // empty: nothing failed
}

// run checks the file, sends its requests and shows the summary.
func (o *options) run(ctx context.Context, a *cli.App) error {
	s, err := o.sender(a.Getenv)
	if err != nil {
		return err
	}
	in, err := openInput(ctx, o.file)
	if err != nil {
		return err
	}
	defer in.close()
	base := strings.TrimSuffix(o.file, ".jsonl")
	if o.out == "" {
		o.out = base + ".out.jsonl"
	}
	if o.failures == "" {
		o.failures = base + ".errors.jsonl"
	}
	failures := &failures{name: o.failures, apart: o.inputs()}
	if err := failures.check(); err != nil {
		return err
	}
	out, err := openOutput(ctx, o.out, in, o.inputs())
	if err != nil {
		return err
	}
	defer out.close()
	failures.apart = append(failures.apart, o.out)
	r := &run{sender: s, in: in, out: out, failures: failures,
		progress: newProgress(a.Err, len(in.answered), in.before)}
	if in.before < len(in.answered) {
		if err := failures.check(); err != nil {
			return err
		}
		if err := s.greet(ctx); err != nil {
			return err
		}
		if err := failures.remove(); err != nil {
			return err
		}
	}
	err = r.all(ctx, o.concurrency)
	sum := r.progress.summary()
	sum.Out = o.out
	if sum.Failed > 0 {
		sum.Errors = o.failures
	}
	if bad := a.Show(sum, func(t *cli.Table) { t.Line(sum.text()) }); bad != nil {
		return errors.Join(err, bad)
	}
	return verdict(ctx, err, &sum)
}

func (s *Summary) text() string {
	text := fmt.Sprintf("%d requests: %d answered in %.1f s, %d answered before, %d failed, %d not answered\nanswers: %s",
		s.Requests, s.Answered, s.Seconds, s.Before, s.Failed, s.Unanswered, s.Out)
	if s.Errors != "" {
		text += "\nerrors: " + s.Errors
	}
	return text
}

// verdict returns the error of a run that has not answered every request.
func verdict(ctx context.Context, err error, s *Summary) error {
	const again = "the same command sends what has no answer yet"
	switch {
	case err != nil:
		return err
	case s.Unanswered > 0 && ctx.Err() != nil:
		return cli.WithHint(fmt.Errorf("interrupted: %d requests have no answer", s.Unanswered+s.Failed), again)
	case s.Failed > 0:
		return cli.WithHint(fmt.Errorf("%d of %d requests failed: %s says why", s.Failed, s.Requests, s.Errors), again)
	}
	return nil
}

// inputs are the files that a run only reads.
func (o *options) inputs() []string {
	if o.keyFile == "" {
		return []string{o.file}
	}
	return []string{o.file, o.keyFile}
}

// sender returns the sender for the flags.
func (o *options) sender(getenv func(string) string) (*sender, error) {
	site, err := cli.Endpoint("url", o.url)
	if err != nil {
		return nil, err
	}
	key := getenv(keyVariable)
	if o.keyFile != "" {
		if key, err = apikey.Read(o.keyFile); err != nil {
			return nil, fmt.Errorf("--api-key-file: %w", err)
		}
	} else if key != "" {
		if key, err = apikey.Parse(keyVariable, key); err != nil {
			return nil, err
		}
	}
	return newSender(site, key, o), nil
}
