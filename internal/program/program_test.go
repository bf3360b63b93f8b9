package program

import (
	"errors"
	"io"
	"testing"

	"github.com/cognitora/dataplane/internal/config"
)

// TestStatus: a flag that is not understood has another exit status than another failure.
func TestStatus(t *testing.T) {
	for _, c := range []struct {
		args []string
		env  []string
		want int
	}{
		{[]string{"--nothing"}, nil, 2}, {[]string{"word"}, nil, 2}, {[]string{"--slots", "x"}, nil, 2},
		{nil, []string{"CGN_SLOTS=x"}, 1}, {[]string{"--config", "/nowhere.toml"}, nil, 1},
	} {
		var dst struct {
			Slots int `toml:"slots" flag:"slots" help:"places"`
		}
		var level, format string
		options := config.Options{Program: "p", Args: c.args, Env: c.env, Out: io.Discard}
		_, err := Load(&dst, options, io.Discard, &level, &format)
		if got := status(err); err == nil || got != c.want {
			t.Errorf("%q %q: %d, want %d: %v", c.args, c.env, got, c.want, err)
		}
	}
}

// TestIndented: a further problem is seen to be of the same program.
func TestIndented(t *testing.T) {
	if got := indented("a\nb\n  c"); got != "a\n  b\n  c" {
		t.Errorf("%q", got)
	}
}

// TestFromVariable: an error of a start tells which variable the setting comes from.
func TestFromVariable(t *testing.T) {
	var dst struct {
		Daemon struct {
			Sock string `toml:"sock"`
			Data string `toml:"data"`
		} `toml:"daemon"`
	}
	var level, format string
	_, err := Load(&dst, config.Options{Program: "p", Args: []string{"--daemon.data=x"},
		Env: []string{"CGN_DAEMON_SOCK=s", "CGN_DAEMON_DATA=y"}}, io.Discard, &level, &format)
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"daemon.sock: in use": "CGN_DAEMON_SOCK", "daemon.sock (--sock) s: in use": "CGN_DAEMON_SOCK",
		"daemon.data: in use": "", "etcd": "",
	} {
		if _, variable := fromVariable(errors.New(text)); variable != want {
			t.Errorf("%s: %q, want %q", text, variable, want)
		}
	}
}
