package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestServiceLinksOfKubernetesAreNoSettings(t *testing.T) {
	env := []string{"CGN_LIMITS_SERVICE_HOST=10.0.0.1", "CGN_LIMITS_SERVICE_PORT_HTTP=80",
		"CGN_LIMITS_PORT=tcp://10.0.0.1:80", "CGN_LIMITS_PORT_80_TCP_ADDR=10.0.0.1"}
	if _, err := load(t, "", env); err != nil {
		t.Error(err)
	}
}

func TestVariablesOfNobodyAreReported(t *testing.T) {
	var ignored []string
	o := Options{
		Program: "sample",
		Env: []string{
			"CGN_KVCACHED_SOCK=1", "CGN_KVCACHED_NONE=1", "CGN_SOMETHING=1", "OTHER=1", "CGN_CONFIG=c",
			"CGN_LIMITS_PORT=1", "CGN_LIMITS_KEEP_ALIVE=1", "CGN_ADMIN=1",
		},
		ReadFile: files(""), Ignored: func(name string) { ignored = append(ignored, name) },
	}
	if err := Load(&sample{}, o); err != nil || fmt.Sprint(ignored) != "[CGN_SOMETHING CGN_LIMITS_KEEP_ALIVE]" {
		t.Errorf("%v, ignored %v", err, ignored)
	}
	o.Program, o.Env = "cgn-router", []string{"CGN_LIMITS_KEEP_ALIVE=1"}
	if err := Load(&sample{}, o); err == nil || !strings.Contains(err.Error(), "CGN_LIMITS_KEEP_ALIVE") {
		t.Errorf("a setting of this program's that it does not have: %v", err)
	}
}

func TestFlagSpellings(t *testing.T) {
	for _, flag := range []string{"--limits.max_body", "--limits-max-body", "--limits.max-body", "-limits_max_body"} {
		if c, err := load(t, "", nil, flag, "1KiB"); err != nil || c.Limits.MaxBody != 1024 {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

// needy is invalid without a name.
type needy struct {
	Name string `toml:"name"`
	Slow bool   `toml:"slow"`
}

func (n *needy) Validate() error {
	if n.Name == "" {
		return errors.Join(Missing{errors.New("name: none")})
	}
	return nil
}

func TestMissingIsNotSaidWhereReadingFailed(t *testing.T) {
	for args, want := range map[string]string{
		"":                        "configuration: name: none",
		"--nme x":                 "configuration: --nme: unknown flag; did you mean --name?",
		"--config /no/such.toml":  "configuration: --config: open /no/such.toml: no such file or directory; name a TOML file with --config or CGN_CONFIG",
		"--slow=perhaps --name x": `configuration: --slow: slow = "perhaps": not a boolean; write true or false`,
	} {
		if err := Load(&needy{}, Options{Args: strings.Fields(args)}); err == nil || err.Error() != want {
			t.Errorf("%q: got %v, want %s", args, err, want)
		}
	}
}

func TestChanged(t *testing.T) {
	was, err := load(t, "[[backend]]\nurl = \"http://a\"\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	is, err := load(t, "mode = \"random\"\n[limits]\nmax_streams = 7\ntargets = []\n[[backend]]\nurl = \"http://b\"\n",
		nil)
	if err != nil {
		t.Fatal(err)
	}
	if names, err := Changed(was, is); err != nil || fmt.Sprint(names) != "[mode backend limits.max_streams]" {
		t.Errorf("got %v, %v", names, err)
	}
}
