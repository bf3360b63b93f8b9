package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cognitora/dataplane/internal/config"
)

// flagError says what a flag takes, and which one was probably meant.
func flagError(c *cobra.Command, err error) error {
	var value *pflag.InvalidValueError
	if errors.As(err, &value) {
		if want := wanted[value.GetFlag().Value.Type()]; want != "" {
			return fmt.Errorf("--%s %q: must be %s", value.GetFlag().Name, value.GetValue(), want)
		}
		return err
	}
	var missing *pflag.NotExistError
	if !errors.As(err, &missing) {
		return err
	}
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if near := config.Nearest(missing.GetSpecifiedName(), names); near != "" {
		return hinted{err, "Did you mean --" + near + "?"}
	}
	return hinted{err, "see " + c.CommandPath() + " --help"}
}

// wanted says what a flag of each type takes, where its own error would speak of the parser.
var wanted = map[string]string{
	"int": "a whole number", "uint64": "a whole number, not negative", "float64": "a number", "bool": "true or false",
	"size": "bytes with a unit, like 64GiB", "duration": "a number with a unit, like 500ms or 10s",
	"time": fmt.Sprintf("days like 397d, or hours like 12h; 1m to %dd", mostDays),
}

// plainFlag folds the spellings of a flag as router and agent do: --etcd.ca is --etcd-ca.
func plainFlag(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	name = strings.NewReplacer(".", "-", "_", "-").Replace(name)
	if name == "etcd-user" {
		name = "etcd-username"
	}
	return pflag.NormalizedName(name)
}

// oneArgument is for a command that takes exactly the argument of that name.
func oneArgument(name string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == 1 {
			return nil
		}
		err := fmt.Errorf("%s is missing", name)
		if len(args) > 1 {
			err = fmt.Errorf("one %s is taken, %d are given: %s", name, len(args), strings.Join(args, ", "))
		}
		example, _, _ := strings.Cut(strings.TrimSpace(c.Example), "\n")
		return hinted{err, "for example: " + example}
	}
}

// arguments is for a command that takes exactly the arguments of those names.
func arguments(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		err := fmt.Errorf("%s are taken, %d arguments are given", strings.Join(names, " and "), len(args))
		if len(args) < len(names) {
			err = fmt.Errorf("%s is missing", names[len(args)])
		}
		example, _, _ := strings.Cut(strings.TrimSpace(c.Example), "\n")
		return hinted{err, "for example: " + example}
	}
}

// newHelp is cobra's help command, but for a command that there is not, which is an error.
func newHelp(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "Help about any command",
		RunE: func(_ *cobra.Command, args []string) error {
			of, rest, err := root.Find(args)
			if err != nil {
				return err
			}
			if len(rest) > 0 {
				return hinted{fmt.Errorf("%s has no command %q", of.CommandPath(), rest[0]),
					"see " + of.CommandPath() + " --help"}
			}
			of.InitDefaultHelpFlag()
			return of.Help()
		},
	}
}

// variables of the environment that cgn-ctl reads.
const (
	envAdmin        = "CGN_ADMIN"
	envEtcd         = "CGN_ETCD"
	envEtcdAsConfig = "CGN_ETCD_ENDPOINTS" // the same, as router and agent have it in their configuration
	envEtcdCA       = "CGN_ETCD_CA"
	envEtcdCert     = "CGN_ETCD_CERT"
	envEtcdKey      = "CGN_ETCD_KEY"
	envEtcdUser     = "CGN_ETCD_USERNAME"
	envEtcdPassword = "CGN_ETCD_PASSWORD_FILE"
)

var variables = []string{envAdmin, envEtcd, envEtcdAsConfig, envEtcdCA, envEtcdCert, envEtcdKey, envEtcdUser,
	envEtcdPassword}

// warnOfVariables names those of env that are nearly one that is read. The rest
// of CGN_* are settings of router and agent.
func warnOfVariables(w io.Writer, env []string) {
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		short, ours := strings.CutPrefix(name, "CGN_")
		if !ours || slices.Contains(variables, name) {
			continue
		}
		for _, v := range variables {
			if config.Nearest(short, []string{strings.TrimPrefix(v, "CGN_")}) != "" {
				fmt.Fprintf(w, "cgn-ctl: %s is not read; did you mean %s?\n", name, v)
				break
			}
		}
	}
}

// firstSet is the value of the first variable that has one, or the default.
func firstSet(getenv func(string) string, def string, names ...string) string {
	for _, name := range names {
		if v := getenv(name); v != "" {
			return v
		}
	}
	return def
}
