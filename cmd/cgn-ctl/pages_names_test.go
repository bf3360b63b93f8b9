package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/textproto"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router"
	"github.com/cognitora/dataplane/router/nvext"
	"github.com/cognitora/dataplane/router/policy"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
)

// names knows the names of this project.
type names struct {
	settings  string // the reference of the settings
	metrics   string
	firstHour string
	sections  map[string]bool // first parts of keys
	keys      map[string]bool // settings, with their sections
	bare      map[string]bool // keys of tables
	tables    map[string]bool
	ports     [2]http.Client // of the API and of the admin port of a router
}

func newNames(t *testing.T) *names {
	t.Helper()
	n := &names{sections: map[string]bool{}, keys: map[string]bool{}}
	n.bare, n.tables = map[string]bool{}, map[string]bool{}
	for file, into := range map[string]*string{
		"deploy/reference/config.md": &n.settings, "deploy/reference/metrics.md": &n.metrics,
		"docs/first-hour.md": &n.firstHour,
	} {
		text, err := os.ReadFile("../../" + file)
		if err != nil {
			t.Fatal(err)
		}
		*into = string(text)
	}
	section, table := "", false
	row := regexp.MustCompile("^\\| `([a-z_.0-9]+)` \\|")
	for line := range strings.Lines(n.settings) {
		if name, ok := strings.CutPrefix(line, "### `["); ok {
			name = strings.TrimRight(name, "]`\n")
			section = strings.TrimLeft(name, "[")
			first, _, _ := strings.Cut(section, ".")
			n.sections[first] = true
			if table = strings.HasPrefix(name, "["); table {
				n.tables[section] = true
			}
		} else if m := row.FindStringSubmatch(line); m != nil {
			n.keys[section+"."+m[1]] = true
			n.bare[m[1]] = n.bare[m[1]] || table
		}
	}
	n.serve(t)
	return n
}

// serve starts a router without a working engine. Its ports are sockets.
func (n *names) serve(t *testing.T) {
	t.Helper()
	var c router.Config
	if err := config.Defaults(&c); err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	for i, name := range []string{"api.sock", "admin.sock"} {
		socket := filepath.Join(folder, name)
		n.ports[i].Transport = &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", socket)
			},
		}
	}
	c.Router.Listen = "unix://" + filepath.Join(folder, "api.sock")
	c.Router.Admin = "unix://" + filepath.Join(folder, "admin.sock")
	c.Router.Backends = []string{"unix://" + filepath.Join(folder, "none.sock")}
	c.Router.DrainDelay, c.Takeover.Socket = 0, "off"
	c.Logger = slog.New(slog.DiscardHandler)
	r, err := router.New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx, ctx) }()
	t.Cleanup(func() {
		for i := range n.ports {
			n.ports[i].CloseIdleConnections()
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

var (
	endpoint = regexp.MustCompile(`^(?:(GET|POST|PATCH|DELETE) )?(/[a-z0-9_/{}.]+)$`)
	header   = regexp.MustCompile(`^(x-[a-z-]+|thread-id)$`)
	aTable   = regexp.MustCompile(`^\[\[([a-z_.]+)\]\]$`)
	thatFlag = regexp.MustCompile(`^--[a-z][a-z0-9_.-]*( .+)?$`)
)

// unknown says what is wrong with a name of this project, or returns "".
func (n *names) unknown(name string) string {
	program, rest, _ := strings.Cut(name, " ")
	switch {
	case program == "cgn-ctl":
		return ctlCommand(rest)
	case program == "cgn-router":
		return routerFlags(rest)
	case program == "cgn-agent" || program == "cgn-kvcached":
		return ""
	case thatFlag.MatchString(name):
		return n.flag(name)
	case endpoint.MatchString(name):
		m := endpoint.FindStringSubmatch(name)
		return n.endpoint(m[1], m[2])
	case header.MatchString(name):
		return n.header(name)
	case strings.HasPrefix(name, "cgn_"):
		return unless(strings.Contains(n.metrics, "`"+name), "no such metric")
	case aTable.MatchString(name):
		return unless(n.tables[aTable.FindStringSubmatch(name)[1]], "no such table")
	case strings.Contains(name, "."):
		return unless(n.keys[name] || n.inPolicy(name) || inNvext(name), "no such setting, and no such field of nvext")
	}
	_, err := policy.ParseMode(name)
	return unless(err == nil || n.bare[name] || n.inPolicy(name) || inNvext(name) || isThreshold(name), "no such name")
}

func unless(ok bool, problem string) string {
	if ok {
		return ""
	}
	return problem
}

// ctlCommand checks a command line of cgn-ctl without running it.
func ctlCommand(line string) string {
	root := newRoot(io.Discard, io.Discard, func(string) string { return "" })
	c, rest, err := root.Find(shellFields(line))
	if err != nil {
		return err.Error()
	}
	if c.HasSubCommands() {
		return "this is a group of commands"
	}
	return text(c.ParseFlags(rest))
}

// routerFlags reads a command line of the router as the router does.
func routerFlags(line string) string {
	args := shellFields(line)
	if slices.Contains(args, "--config") || slices.Contains(args, "--version") {
		return ""
	}
	return text(loaded(args))
}

// routerFile reads a configuration file of the router.
func routerFile(t *testing.T, content string) string {
	file := filepath.Join(t.TempDir(), "router.toml")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return text(loaded([]string{"--config", file}))
}

func loaded(args []string) error {
	o := config.Options{Program: "cgn-router", Args: args, Env: []string{}, Out: io.Discard}
	return config.Load(&router.Config{}, o)
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// shellFields splits a command line. Single quotes enclose an argument.
func shellFields(line string) (fields []string) {
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			fields = append(fields, part)
		} else {
			fields = append(fields, strings.Fields(part)...)
		}
	}
	return fields
}

// flag checks a flag of a daemon, and a mode behind it.
func (n *names) flag(name string) string {
	name, value, _ := strings.Cut(name, " ")
	if name == "--mode" && value != "" {
		_, err := policy.ParseMode(value)
		return text(err)
	}
	builtin := []string{"--config", "--check-config", "--version", "--help"}
	return unless(slices.Contains(builtin, name) || strings.Contains(n.settings, "| `"+name+"` |"), "no such flag")
}

// endpoint asks both ports of a router for a path.
func (n *names) endpoint(method, path string) string {
	problem := ""
	for i := range n.ports {
		r, err := http.NewRequest(cmp.Or(method, "GET"), "http://router"+path, strings.NewReader(`{"model":"m"}`))
		if err != nil {
			return err.Error()
		}
		answer, err := n.ports[i].Do(r)
		if err != nil {
			return err.Error()
		}
		body, err := io.ReadAll(io.LimitReader(answer.Body, 1<<16))
		answer.Body.Close()
		switch absent := strings.Contains(string(body), `"code":"unknown_path"`); {
		case err != nil:
			return err.Error()
		case !absent && (answer.StatusCode != http.StatusMethodNotAllowed || method == ""):
			return ""
		}
		problem = answer.Status
	}
	return problem
}

// header checks the name of a header.
func (n *names) header(name string) string {
	canonical := textproto.CanonicalMIMEHeaderKey(name)
	if strings.HasPrefix(name, "x-cgn-router-") && name != "x-cgn-router-" {
		err := nvext.ReadHeaders(&nvext.Ext{}, func(yield func(name, value []byte) bool) {
			yield([]byte(name), []byte("?"))
		})
		return unless(!isUnknown(err), "no such override")
	}
	ours := strings.HasSuffix(name, "-") || nvext.IsHeader([]byte(canonical)) ||
		slices.Contains(request.SessionHeaders[:], canonical) || strings.Contains(n.firstHour, "| `"+name+"` |")
	return unless(ours, "no such header")
}

// isUnknown says whether a name is refused because nobody knows it, and not for its value.
func isUnknown(err error) bool {
	refused, ok := errors.AsType[*scan.Error](err)
	return ok && refused.Code == scan.CodeUnknown
}

func inNvext(path string) bool {
	body := nested(strings.TrimPrefix(path, "nvext."), nil)
	_, err := nvext.Parse(body, scan.Span{Start: 0, End: len(body)})
	return !isUnknown(err)
}

func (n *names) inPolicy(path string) bool {
	_, err := policy.Parse(nested(path, nil))
	return err == nil || !strings.Contains(err.Error(), "unknown key")
}

// policy reads a policy document.
func (n *names) policy(doc string) string {
	_, err := policy.Parse([]byte(doc))
	return text(err)
}

func isThreshold(name string) bool {
	return slices.Contains([]string{"active_decode_blocks_threshold", "active_prefill_tokens_threshold",
		"active_prefill_tokens_threshold_frac"}, name)
}
