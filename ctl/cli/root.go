package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/internal/buildinfo"
)

// Root returns cgn-ctl itself, with the given commands.
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
		PersistentPreRunE: func(c *cobra.Command, _ []string) error { return a.check(c) },
		Args:              noCommand, RunE: showHelp, SuggestionsMinimumDistance: 2,
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
	refuseEmpty(c)
	return c
}

// Run returns the exit status: 0 for success, 1 for a failure, 2 for invalid flags or arguments.
func Run(root *cobra.Command, errOut io.Writer) int {
	check, understood := root.PersistentPreRunE, false
	root.PersistentPreRunE = func(c *cobra.Command, args []string) error {
		err := check(c, args)
		understood = err == nil
		return err
	}
	var unknown error
	help := root.HelpFunc()
	root.SetHelpFunc(func(c *cobra.Command, args []string) {
		if c.HasSubCommands() {
			unknown = noCommand(c, c.Flags().Args())
		}
		if unknown == nil {
			help(c, args)
		}
	})
	err := cmp.Or(root.Execute(), unknown)
	if err == nil {
		return 0
	}
	fmt.Fprintln(errOut, "cgn-ctl:", Cause(err.Error()))
	if hint, ok := errors.AsType[interface {
		error
		Hint() string
	}](err); ok {
		fmt.Fprintln(errOut, "  "+hint.Hint())
	}
	if _, wrong := errors.AsType[misused](err); wrong || !understood {
		return 2
	}
	return 1
}

// Group returns a command that only contains other commands. An unknown command is an error, and
// cobra suggests the probable one.
func Group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{
		Use: use, Short: short, Args: noCommand, RunE: showHelp, SuggestionsMinimumDistance: 2,
	}
	c.AddCommand(commands...)
	return c
}

// noCommand returns an error that suggests commands for an unknown one.
func noCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	err := fmt.Errorf("%s has no command %q", c.CommandPath(), args[0])
	meant := called(c.Root(), args[0])
	if meant == nil {
		c.SuggestionsMinimumDistance = min(2, len(args[0])/2) // all words of three letters are similar
		for _, near := range c.SuggestionsFor(args[0]) {
			meant = append(meant, c.CommandPath()+" "+near)
		}
	}
	if len(meant) > 0 {
		return WithHint(err, "Did you mean "+strings.Join(meant, " or ")+"?")
	}
	return WithHint(err, "see "+c.CommandPath()+" --help")
}

// called lists the paths of the commands with this name below c.
func called(c *cobra.Command, name string) (paths []string) {
	for _, sub := range c.Commands() {
		if sub.Name() == name && !sub.Hidden {
			paths = append(paths, sub.CommandPath())
		}
		paths = append(paths, called(sub, name)...)
	}
	return paths
}

func showHelp(c *cobra.Command, _ []string) error { return c.Help() }

func newVersion(a *App) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: NoArguments,
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version string `json:"version"`
				Commit  string `json:"commit"`
			}{buildinfo.Version(), buildinfo.Commit()}
			return a.Show(v, func(t *Table) { t.Line("cgn-ctl " + buildinfo.String()) })
		},
	}
}

// newHelp returns cobra's help command. For an unknown command, help returns an error.
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
