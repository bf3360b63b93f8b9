// Package ctltest runs commands of cgn-ctl in tests, and the servers that they call.
package ctltest

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/ctl/cli"
)

// Run runs one command line of a group and returns its output.
func Run(t *testing.T, group func(*cli.App) *cobra.Command, env map[string]string, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	root := Root(group, &out, io.Discard, func(name string) string { return env[name] })
	root.SetArgs(args)
	root.SetContext(t.Context())
	err := root.Execute()
	return out.String(), err
}

// Root returns cgn-ctl with one group of commands.
func Root(group func(*cli.App) *cobra.Command, out, errOut io.Writer, getenv func(string) string) *cobra.Command {
	a := &cli.App{Out: out, Err: errOut, Getenv: getenv}
	return cli.Root(a, group(a))
}

// Main runs a package's tests, and fails if a test has left a goroutine behind. A router that runs
// on the default port meanwhile may keep a connection open.
func Main(m *testing.M) {
	goleak.VerifyTestMain(closing{m},
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.updateServerDate.func1"), // one per process
		goleak.IgnoreAnyFunction("github.com/valyala/fasthttp.(*workerPool).Start.func2"))
}

// closing closes idle connections after the tests.
type closing struct{ *testing.M }

// Run is testing.M.Run.
func (c closing) Run() int {
	defer http.DefaultClient.CloseIdleConnections()
	return c.M.Run()
}

// Want fails the test unless text contains every part.
func Want(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("want %q in\n%s", p, text)
		}
	}
}

// Hint returns the hint of an error, or nothing.
func Hint(err error) string {
	var h interface{ Hint() string }
	if errors.As(err, &h) {
		return h.Hint()
	}
	return ""
}

// AdminPort serves fixed answers by path, and stores the last request.
func AdminPort(t *testing.T, pages map[string]string) (url string, last *http.Request, body *string) {
	last, body = new(http.Request), new(string)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		*last, *body = *r, string(b)
		page, ok := pages[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		if strings.HasPrefix(page, `{"error"`) {
			w.WriteHeader(http.StatusNotFound)
		}
		_, _ = io.WriteString(w, page)
	}))
	t.Cleanup(s.Close)
	return s.URL, last, body
}
