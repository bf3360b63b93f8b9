package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cognitora/dataplane/internal/config"
)

// flagError says what values a flag takes, and which flag was probably meant.
func flagError(c *cobra.Command, err error) error {
	if value, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
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
