package address

import (
	"strings"
	"testing"
)

func TestErrorsShowNoPassword(t *testing.T) {
	for _, in := range []string{
		"http://user:secret@h:1", "http://user:sec/ret@h", "ftp://user:secret@h", "user:secret@h",
		"http://u:secret@h:bad", "http://u:secret@", "http://%zz:secret@h",
	} {
		_, err := Parse(in)
		if err == nil || strings.Contains(err.Error(), "sec") {
			t.Errorf("%s: %v", in, err)
		}
	}
	if _, err := Parse("http://user:secret@h:1"); !strings.Contains(err.Error(), "api_key_file") {
		t.Errorf("no way out is given: %v", err)
	}
}

func TestParse(t *testing.T) {
	for in, want := range map[string]Address{
		"http://10.0.0.1:8000":      {Network: "tcp", Addr: "10.0.0.1:8000", Host: "10.0.0.1:8000"},
		"http://engine/":            {Network: "tcp", Addr: "engine:80", Host: "engine"},
		"https://engine/api/":       {Network: "tcp", Addr: "engine:443", Host: "engine", BasePath: "/api", TLS: true},
		"http://[::1]:8000":         {Network: "tcp", Addr: "[::1]:8000", Host: "[::1]:8000"},
		"unix:///run/engine.sock":   {Network: "unix", Addr: "/run/engine.sock", Host: "localhost"},
		"http+unix:///run/eng.sock": {Network: "unix", Addr: "/run/eng.sock", Host: "localhost"},
	} {
		if got, err := Parse(in); err != nil || got != want {
			t.Errorf("%s: %+v %v", in, got, err)
		}
	}
	for _, in := range []string{"", "engine:8000", "http://", "http://u:p@h", "http://h/?q", "unix://run/x", "unix:///",
		"http://h:0", "http://h:x", "gopher://h"} {
		if got, err := Parse(in); err == nil {
			t.Errorf("%q is taken as %+v", in, got)
		}
	}
}

func TestIsHost(t *testing.T) {
	for text, want := range map[string]bool{
		"gpu1.example": true, "localhost": true, "10.0.0.7": true, "fe80::1": true, "a_b-c.": true,
		"": false, "http://x": false, "x:1": false, "[::1]": false, "*.example": false, "a..b": false, "-a": false,
		"a b": false,
	} {
		if IsHost(text) != want {
			t.Errorf("%q: want %v", text, want)
		}
	}
}
