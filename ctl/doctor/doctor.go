// Package doctor has the command that looks for holes in the security of a host's configuration.
package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/agent"
	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/kvcached"
	"github.com/cognitora/dataplane/router"
)

// usual is the folder of the files that the systemd units name.
const usual = "/etc/cognitora/"

// Command is cgn-ctl doctor.
func Command(a *cli.App) *cobra.Command {
	files := make([]string, len(daemons()))
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Find what a host's configuration leaves open, unencrypted or about to expire",
		Long: "Reads the configuration files of this host's daemons, and the certificates, keys and passwords that they " +
			"name.\n" +
			"Prints each port that other hosts reach without authentication, each connection without encryption, each\n" +
			"certificate that has ended or ends within 30 days, and each secret that other users can read.\n" +
			"Flags and environment variables of the daemons are not seen. The exit status is 1 if a finding is an error.",
		Example: "  sudo cgn-ctl doctor\n  cgn-ctl doctor --router router.toml -o json",
		Args:    cli.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			return run(a, files)
		},
	}
	for i, d := range daemons() {
		c.Flags().StringVar(&files[i], d.name, "", "configuration file of cgn-"+d.name+" (without any file: "+
			usual+d.name+".toml)")
	}
	return c
}

// daemon is a program with a configuration file.
type daemon struct {
	name    string
	config  any
	examine func(*exam)
}

// daemons returns the programs whose files are read, with empty configurations.
func daemons() []daemon {
	r, a, k := &router.Config{}, &agent.Config{}, &kvcached.Config{}
	return []daemon{
		{"router", r, func(e *exam) { e.router(r) }},
		{"agent", a, func(e *exam) { e.agent(a) }},
		{"kvcached", k, func(e *exam) { e.kvcached(k) }},
	}
}

// result is what doctor prints.
type result struct {
	Checked  []checked `json:"checked"`
	Findings []finding `json:"findings"`
}

// checked counts the parts of one file that were looked at.
type checked struct {
	Daemon       string        `json:"daemon"`
	File         string        `json:"file"`
	Listeners    int           `json:"listeners"`
	Connections  int           `json:"connections"`
	Secrets      int           `json:"secrets"`
	Certificates []certificate `json:"certificates"`
}

// run examines files, one for each of daemons; "" stands for no file. Without any file run examines
// those of the usual names.
func run(a *cli.App, files []string) error {
	files, err := present(files)
	if err != nil {
		return err
	}
	r := result{Checked: []checked{}, Findings: []finding{}}
	now := time.Now()
	for i, d := range daemons() {
		if files[i] == "" {
			continue
		}
		e := &exam{now: now, file: files[i], seen: map[string]bool{}, read: map[string]bool{}}
		e.checked = checked{Daemon: "cgn-" + d.name, File: files[i], Certificates: []certificate{}}
		e.daemon(d)
		r.Checked, r.Findings = append(r.Checked, e.checked), append(r.Findings, e.findings...)
	}
	if f := examineClock(); f != nil {
		r.Findings = append(r.Findings, *f)
	}
	slices.SortStableFunc(r.Findings, func(x, y finding) int {
		return cmp.Compare(slices.Index(severities, x.Severity), slices.Index(severities, y.Severity))
	})
	if err := a.Show(r, r.write); err != nil {
		return err
	}
	wrong := 0
	for _, f := range r.Findings {
		if f.Severity == severe {
			wrong++
		}
	}
	if wrong > 0 {
		return fmt.Errorf("%d of %d findings are errors", wrong, len(r.Findings))
	}
	return nil
}

// present returns files, or the usual files that exist if no file is given.
func present(files []string) ([]string, error) {
	files = slices.Clone(files)
	none := func() bool { return strings.Join(files, "") == "" }
	if !none() {
		return files, nil
	}
	for i, d := range daemons() {
		name := usual + d.name + ".toml"
		if _, err := os.Stat(name); err == nil {
			files[i] = name
		}
	}
	if none() {
		return nil, cli.WithHint(errors.New("no configuration file of a daemon in "+usual),
			"name one with --router, --agent or --kvcached")
	}
	return files, nil
}

// daemon examines the file of a daemon. The file is parsed as the daemon parses it. A file with a
// setting that cannot be read is not examined further.
func (e *exam) daemon(d daemon) {
	err := e.load(d)
	if bad, ok := errors.AsType[*config.Error](err); ok {
		if other := e.owner(d, bad); other != "" {
			e.add(severe, kindConfig, "", "this is a file of cgn-"+other+", not of cgn-"+d.name,
				"give it with --"+other)
			return
		}
		for _, p := range bad.Problems {
			e.add(severe, kindConfig, "", "the daemon does not start: "+p.Error(), "change the file until cgn-"+d.name+
				" --config "+e.file+" --check-config takes it")
		}
		if bad.Unread {
			return
		}
	} else if err != nil {
		e.add(severe, kindConfig, "", err.Error(), "give a file that cgn-"+d.name+" can read")
		return
	}
	e.mode("", e.file, 0o022, "change")
	d.examine(e)
}

// load parses the file as the daemon d does.
func (e *exam) load(d daemon) error {
	return config.Load(d.config, config.Options{Program: "cgn-" + d.name, Args: []string{"--config", e.file},
		Out: io.Discard})
}

// owner returns the daemon whose file this is, if d does not know all of its keys and another
// daemon takes it; else "".
func (e *exam) owner(d daemon, bad *config.Error) string {
	if !strings.Contains(bad.Error(), "unknown key") {
		return ""
	}
	for _, other := range daemons() {
		if other.name != d.name && e.load(other) == nil {
			return other.name
		}
	}
	return ""
}

// write prints the findings, the most severe first, and then what was looked at.
func (r *result) write(t *cli.Table) {
	for _, f := range r.Findings {
		at := f.Field
		if at == "" {
			at = "-"
		}
		t.Line(fmt.Sprintf("%s  %s  %s  %s\n  %s\n  fix: %s\n", f.Severity, f.Kind, f.File, at, f.Problem, f.Fix))
	}
	for _, c := range r.Checked {
		t.Line(fmt.Sprintf("%s (%s): %s, %s, %s, %s", c.Daemon, c.File, cli.Count(c.Listeners, "listener"),
			cli.Count(c.Connections, "connection"), cli.Count(c.Secrets, "secret"),
			cli.Count(len(c.Certificates), "certificate")))
		for _, x := range c.Certificates {
			t.Line(fmt.Sprintf("  %s valid until %s: %s", x.Field, x.Until.UTC().Format(time.DateOnly), x.File))
		}
	}
	if len(r.Findings) == 0 {
		t.Line("\nNothing is open, unencrypted, about to expire or readable by others in these files.")
	}
}
