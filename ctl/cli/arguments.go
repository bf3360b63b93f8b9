package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cognitora/dataplane/internal/address"
	"github.com/cognitora/dataplane/internal/rights"
)

// NoArguments is for commands with flags only.
func NoArguments(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return WithHint(fmt.Errorf("%s takes no argument, %q is given", c.CommandPath(), args[0]),
		"see "+c.CommandPath()+" --help")
}

// OneArgument is for commands with exactly one argument of this name.
func OneArgument(name string) cobra.PositionalArgs { return Arguments(name) }

// Arguments is for commands with exactly the arguments of these names.
func Arguments(names ...string) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		verb := "are"
		if len(names) == 1 {
			verb = "is"
		}
		err := fmt.Errorf("%s %s taken, %d arguments are given", strings.Join(names, " and "), verb, len(args))
		if len(args) < len(names) {
			err = fmt.Errorf("%s is missing", names[len(args)])
		}
		example, _, _ := strings.Cut(strings.TrimSpace(c.Example), "\n")
		return WithHint(err, "for example: "+example)
	}
}

// Most is the upper bound of an argument for which a command gives none.
const Most = math.MaxInt32

// InRanges returns an error for the first flag whose value is outside its range. Bounds of a
// duration are in seconds.
func InRanges(flags *pflag.FlagSet, ranges map[string][2]float64) (err error) {
	flags.VisitAll(func(f *pflag.Flag) {
		if r, bound := ranges[f.Name]; bound && err == nil {
			err = InRange(f.Name, f.Value.String(), r[0], r[1])
		}
	})
	return err
}

// Ranges is a command's PreRunE that checks InRanges.
func Ranges(ranges map[string][2]float64) func(*cobra.Command, []string) error {
	return func(c *cobra.Command, _ []string) error { return InRanges(c.Flags(), ranges) }
}

// InRange returns an error unless the flag's value is in the range.
func InRange(flag, value string, from, to float64) error {
	number, err := strconv.ParseFloat(value, 64)
	text := func(v float64) string { return strconv.FormatFloat(v, 'f', -1, 64) }
	if err != nil {
		var d time.Duration
		d, err = time.ParseDuration(value)
		number = d.Seconds()
		text = func(v float64) string { return time.Duration(v * float64(time.Second)).String() }
	}
	switch {
	case err == nil && number >= from && number <= to:
		return nil
	case to == Most:
		return Misused(fmt.Errorf("--%s %s: must be %s or more", flag, value, text(from)))
	}
	return Misused(fmt.Errorf("--%s %s: must be %s to %s", flag, value, text(from), text(to)))
}

// Endpoint returns SCHEME://HOST:PORT of the URL that a flag gives, with /v1 or without.
func Endpoint(flag, text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" ||
		u.Fragment != "" || strings.TrimSuffix(strings.TrimRight(u.Path, "/"), "/v1") != "" {
		return "", Misused(fmt.Errorf("--%s %q: must be like http://127.0.0.1:8080, with /v1 or without", flag,
			address.Redact(text)))
	}
	return u.Scheme + "://" + u.Host, nil
}

// ReadInput reads a file of at most this many bytes, or standard input for "-".
func ReadInput(c *cobra.Command, name string, most int64) ([]byte, error) {
	in := c.InOrStdin()
	if name != "-" {
		f, err := rights.Open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("%s: has more than %d bytes", name, most)
	}
	return b, err
}

// ReadObject returns the JSON object that an argument gives as text, as the name of a file or as -
// for standard input. example is a command with an object, for the hint about a wrong argument.
func ReadObject(c *cobra.Command, argument string, most int64, example string) ([]byte, error) {
	if strings.HasPrefix(strings.TrimSpace(argument), "{") {
		return []byte(argument), nil
	}
	doc, err := ReadInput(c, argument, most)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENAMETOOLONG) {
		return nil, WithHint(fmt.Errorf("%.80q is not a JSON object, and there is no file of that name", argument),
			"for example: "+example+", or the name of a file with that object")
	}
	return doc, err
}

// FirstSet returns the value of the first variable that is set, or the default.
func FirstSet(getenv func(string) string, def string, names ...string) string {
	for _, name := range names {
		if v := getenv(name); v != "" {
			return v
		}
	}
	return def
}
