// Command cgn-ctl is the operator's hand on a fleet: it runs one on a laptop,
// explains where requests go and why, and changes what etcd says.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/cognitora/dataplane/internal/buildinfo"
	"github.com/cognitora/dataplane/internal/cluster"
)

func main() {
	warnOfVariables(os.Stderr, os.Environ())
	os.Exit(run(newRoot(os.Stdout, os.Stderr, os.Getenv), os.Stderr))
}

// run returns the exit status: 0, 1 after a failure, 2 where flags or arguments are not understood.
func run(root *cobra.Command, errOut io.Writer) int {
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
	fmt.Fprintln(errOut, "cgn-ctl:", cause(err.Error()))
	var hint interface{ Hint() string }
	if errors.As(err, &hint) {
		fmt.Fprintln(errOut, "  "+hint.Hint())
	}
	if !understood {
		return 2
	}
	return 1
}

// app is what all commands share: where they write and whom they talk to.
type app struct {
	out, err io.Writer
	output   string // table or json
	admin    string // base URL of a router's admin port
	etcd     cluster.Access
}

func newRoot(out, errOut io.Writer, getenv func(string) string) *cobra.Command {
	a := &app{out: out, err: errOut}
	root := &cobra.Command{
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
	root.SetOut(out)
	root.SetErr(errOut)
	root.SetFlagErrorFunc(flagError)
	root.SetVersionTemplate("cgn-ctl {{.Version}}\n")
	root.SetGlobalNormalizationFunc(plainFlag)
	flags := root.PersistentFlags()
	flags.StringVarP(&a.output, "output", "o", "table", "how results are written: table or json")
	root.AddCommand(newUp(a), newRoute(a, getenv), newTop(a, getenv), newCluster(a, getenv),
		newKV(a, getenv), newRDMA(a, getenv), newPKI(a), newBPF(a), newSim(a), newBench(a), newReference(a),
		newVersion(a))
	root.SetHelpCommand(newHelp(root))
	return root
}

func (a *app) check() error {
	if a.output != "table" && a.output != "json" {
		return fmt.Errorf("--output %q: must be table or json", a.output)
	}
	return nil
}

// group is a command that only holds others. An unknown one is an error, and
// cobra names what was probably meant.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error {
		return c.Help()
	}}
	c.AddCommand(commands...)
	return c
}

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version string `json:"version"`
				Commit  string `json:"commit"`
			}{buildinfo.Version(), buildinfo.Commit()}
			return a.show(v, func(t *table) { t.line("cgn-ctl " + buildinfo.String()) })
		},
	}
}
