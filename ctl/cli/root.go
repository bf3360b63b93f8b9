package cli

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/internal/buildinfo"
)

// Root is cgn-ctl itself, with the given commands.
func Root(a *App, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use:   "cgn-ctl",
		Short: "Run, look into and steer a Cognitora fleet",
		Long: "Run, look into and steer a Cognitora fleet. The exit status is 1 after a failure, and 2 " +
			"where flags or arguments are not understood.",
		Version:           buildinfo.String(),
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		PersistentPreRunE: func(*cobra.Command, []string) error { return a.check() },
	}
	c.SetOut(a.Out)
	c.SetErr(a.Err)
	c.SetFlagErrorFunc(flagError)
	c.SetVersionTemplate("cgn-ctl {{.Version}}\n")
	c.SetGlobalNormalizationFunc(plainFlag)
	c.PersistentFlags().StringVarP(&a.Output, "output", "o", "table", "how results are written: table or json")
	c.AddCommand(commands...)
	c.AddCommand(newVersion(a))
	c.SetHelpCommand(newHelp(c))
	return c
}

// Run returns the exit status: 0, 1 after a failure, 2 where flags or arguments are not understood.
func Run(root *cobra.Command, errOut io.Writer) int {
	check, understood := root.PersistentPreRunE, false
	root.PersistentPreRunE = func(c *cobra.Command, args []string) error {
		err := check(c, args)
		understood = err == nil
		return err
	}
	err := root.Execute()
	if err == nil {
		return 0
	}
	fmt.Fprintln(errOut, "cgn-ctl:", Cause(err.Error()))
	var hint interface{ Hint() string }
	if errors.As(err, &hint) {
		fmt.Fprintln(errOut, "  "+hint.Hint())
	}
	if !understood {
		return 2
	}
	return 1
}

// Group is a command that only holds others. An unknown one is an error, and
// cobra names what was probably meant.
func Group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: noCommand, RunE: func(c *cobra.Command, _ []string) error {
		return c.Help()
	}, SuggestionsMinimumDistance: 2}
	c.AddCommand(commands...)
	return c
}

// noCommand names the commands that an unknown one may stand for.
func noCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Errorf("%s has no command %q", c.CommandPath(), args[0])
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		return WithHint(err, "Did you mean "+strings.Join(near, " or ")+"?")
	}
	return WithHint(err, "see "+c.CommandPath()+" --help")
}

func newVersion(a *App) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version string `json:"version"`
				Commit  string `json:"commit"`
			}{buildinfo.Version(), buildinfo.Commit()}
			return a.Show(v, func(t *Table) { t.Line("cgn-ctl " + buildinfo.String()) })
		},
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
				return WithHint(fmt.Errorf("%s has no command %q", of.CommandPath(), rest[0]),
					"see "+of.CommandPath()+" --help")
			}
			of.InitDefaultHelpFlag()
			return of.Help()
		},
	}
}
