package config

import (
	"errors"
	"io"
	"strings"
	"testing"
)

type outside struct {
	Engine struct {
		Key keyFile `toml:"key"`
	} `toml:"engine"`
}

type keyFile struct {
	Path string `toml:"path"`
}

func (k *keyFile) Examine() error {
	if k.Path == "gone" {
		return errors.New("engine.key.path: gone does not exist; name another")
	}
	return nil
}

type invalidOutside outside

func (*invalidOutside) Validate() error { return errors.New("a: is missing") }

// TestAFailedStartExamines: a start that fails names what is wrong outside too, unless a value was
// not read.
func TestAFailedStartExamines(t *testing.T) {
	for _, args := range []string{"--engine.key.path=gone", "--engine.key.path=gone --nothing"} {
		err := Load(&invalidOutside{}, Options{Args: strings.Fields(args), Out: io.Discard})
		failed, ok := errors.AsType[*Error](err)
		if !ok || len(failed.Problems) != 2 {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestOnlyCheckConfigExamines(t *testing.T) {
	for _, c := range []struct {
		path  string
		check bool
		want  string
	}{
		{"gone", false, ""}, {"there", true, ErrAnswered.Error()},
		{"gone", true, "configuration: engine.key.path: gone does not exist; name another"},
	} {
		args := []string{"--engine.key.path", c.path}
		if c.check {
			args = append(args, "--check-config")
		}
		err := Load(&outside{}, Options{Args: args, Out: io.Discard})
		if (err == nil) != (c.want == "") || err != nil && err.Error() != c.want {
			t.Errorf("%+v: got %v", c, err)
		}
	}
}

type risky struct {
	A string `toml:"a"`
}

func (*risky) Advise() []string { return []string{"a may not do"} }

func TestCheckConfigWarns(t *testing.T) {
	var out strings.Builder
	if err := Load(&risky{}, Options{Args: []string{"--check-config"}, Out: &out}); !errors.Is(err, ErrAnswered) ||
		!strings.Contains(out.String(), "# warning: a may not do\n") {
		t.Errorf("%v\n%s", err, &out)
	}
}
