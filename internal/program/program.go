// Package program has the beginning that all daemons share.
package program

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/logging"
)

// Main runs a daemon. If run fails, Main prints the error and ends the process, with status 2 if
// flags were not understood, else 1.
func Main(name string, run func(args, env []string, out, errOut io.Writer) error) {
	if err := run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, name+":", indented(err.Error()))
		if setting, variable := fromVariable(err); variable != "" {
			fmt.Fprintf(os.Stderr, "  %s comes from the environment variable %s\n", setting, variable)
		}
		os.Exit(status(err))
	}
}

// indented returns a text whose lines after the first are indented.
func indented(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines[1:] {
		if !strings.HasPrefix(line, "  ") {
			lines[1+i] = "  " + line
		}
	}
	return strings.Join(lines, "\n")
}

// variables holds the variable of each setting that has its value from one. Load writes it once.
var variables = map[string]string{}

// fromVariable returns the setting that an error of a start begins with, and the variable that has
// set it, if any.
func fromVariable(err error) (setting, variable string) {
	setting = err.Error()
	if end := strings.IndexAny(setting, ": "); end >= 0 {
		setting = setting[:end]
	}
	return setting, variables[setting]
}

// status returns the exit status for an error of a daemon.
func status(err error) int {
	if c, ok := errors.AsType[*config.Error](err); ok && c.Misused {
		return 2
	}
	return 1
}

// Load fills the configuration that c points to, and returns the log to errOut, which it also makes
// the default. level and format are the fields of c for the log. Load warns of environment
// variables that are no settings, and of older names. Without a log the daemon ends, with an error
// or because the command line asked a question that is answered.
func Load(c any, o config.Options, errOut io.Writer, level, format *string) (*slog.Logger, error) {
	var ignored []string
	o.Ignored = func(name string) { ignored = append(ignored, name) }
	o.FromVariable = func(setting, variable string) { variables[setting] = variable }
	var renamed [][2]string // given name, present name
	o.Renamed = func(given, name string) { renamed = append(renamed, [2]string{given, name}) }
	if err := config.Load(c, o); errors.Is(err, config.ErrAnswered) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	log := logging.New(errOut, *level, *format)
	slog.SetDefault(log)
	for _, name := range ignored {
		log.Warn("this program has no setting of the name of this environment variable; see --help", "variable", name)
	}
	for _, r := range renamed {
		log.Warn("a setting is given by an older name; write the new one", "given", r[0], "name", r[1])
	}
	return log, nil
}
