package cli

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestEmptyFlags checks that no flag of text takes an empty one, nor a list an empty part, and that
// the help shows no empty default.
func TestEmptyFlags(t *testing.T) {
	run := func(args ...string) (string, error) {
		var out strings.Builder
		c := &cobra.Command{Use: "do", RunE: func(*cobra.Command, []string) error { return nil }}
		group, do := Group("group", "", c), c.Flags()
		group.PersistentFlags().String("all", "", "")
		do.String("text", "", "")
		do.StringSlice("list", nil, "")
		do.StringArray("array", nil, "")
		root := Root(&App{Out: &out, Err: io.Discard}, group)
		root.SetArgs(append([]string{"group", "do"}, args...))
		err := root.Execute()
		return out.String(), err
	}
	for _, flag := range []string{"all", "text", "list", "array", "output"} {
		for _, args := range [][]string{{"--" + flag, ""}, {"--" + flag, "table", "--" + flag + "="}} {
			if _, err := run(args...); err == nil || err.Error() != "--"+flag+" is empty; leave it out or name one" {
				t.Errorf("%q: %v", args, err)
			}
		}
	}
	for _, text := range []string{"a,,b", "a,", ",a"} {
		if _, err := run("--list", text); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
	if _, err := run("--all", "x", "--text", "a,,b", "--list", "a,b", "--list", "c", "--array", ","); err != nil {
		t.Error(err)
	}
	if help, err := run("--help"); err != nil || strings.Contains(help, "[]") {
		t.Errorf("%v, %s", err, help)
	}
}
