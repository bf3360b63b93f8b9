package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cognitora/dataplane/internal/config"
)

// errEmpty is the error of a flag that is given without a value, as an unset variable of a shell
// gives it. Nobody means that as all, or as the default.
var errEmpty = errors.New("is empty; leave it out or name one")

// filled is a flag of text, or of a list of texts, that refuses empty ones.
type filled struct{ pflag.Value }

// Set implements pflag.Value.
func (f filled) Set(text string) error {
	if text == "" || f.Type() == "stringSlice" && strings.Contains(","+text+",", ",,") {
		return errEmpty
	}
	return f.Value.Set(text)
}

// refuseEmpty makes all flags of text below c refuse empty texts.
func refuseEmpty(c *cobra.Command) {
	fill := func(f *pflag.Flag) {
		switch f.Value.Type() {
		case "stringSlice", "stringArray":
			f.DefValue = strings.TrimSuffix(f.DefValue, "[]") // no default in the help
			fallthrough
		case "string":
			f.Value = filled{f.Value}
		}
	}
	c.Flags().VisitAll(fill)
	c.PersistentFlags().VisitAll(fill)
	for _, sub := range c.Commands() {
		refuseEmpty(sub)
	}
}

// flagError says what values a flag takes, and which flag was probably meant.
func flagError(c *cobra.Command, err error) error {
	if value, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if errors.Is(err, errEmpty) {
			err = fmt.Errorf("--%s %w", value.GetFlag().Name, errEmpty)
			if c.Flags().Lookup("unset") != nil {
				err = WithHint(err, "--unset removes a setting")
			}
			return err
		}
		if want := wantedBy(value.GetFlag().Value); want != "" {
			return fmt.Errorf("--%s %q: must be %s", value.GetFlag().Name, value.GetValue(), want)
		}
		return err
	}
	missing, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return err
	}
	var names []string
	c.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if meant := config.MeantFlags(missing.GetSpecifiedName(), names); len(meant) > 0 {
		return WithHint(err, "Did you mean --"+strings.Join(meant, " or --")+"?")
	}
	return WithHint(err, "see "+c.CommandPath()+" --help")
}

// wanted describes the values of a flag by type, for types whose own error would mention the
// parser.
var wanted = map[string]string{
	"int": "a whole number", "uint64": "a whole number, not negative", "float64": "a number", "bool": "true or false",
	"float64Slice": "numbers with commas between them",
	"size":         "bytes with a unit, like 64GiB", "duration": "a number with a unit, like 500ms or 10s",
}

// wantedBy returns the description of a flag's values. A type of our own has its own description.
func wantedBy(v pflag.Value) string {
	if own, ok := v.(interface{ Wanted() string }); ok {
		return own.Wanted()
	}
	return wanted[v.Type()]
}

// plainFlag makes spellings of a flag equal, as router and agent do: --etcd.ca is --etcd-ca.
func plainFlag(_ *pflag.FlagSet, name string) pflag.NormalizedName {
	name = strings.NewReplacer(".", "-", "_", "-").Replace(name)
	if name == "etcd-user" {
		name = "etcd-username"
	}
	return pflag.NormalizedName(name)
}
