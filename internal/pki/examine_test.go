package pki

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestExamineNamesTheField(t *testing.T) {
	dir := t.TempDir()
	if err := Bootstrap(dir, Options{}); err != nil {
		t.Fatal(err)
	}
	good, other := FilesIn(dir, Router), FilesIn(dir, Agent)
	garbage := filepath.Join(dir, "garbage")
	if err := os.WriteFile(garbage, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		files Files
		want  string // part of the error; "" for none
	}{
		"good":            {good, ""},
		"none":            {Files{}, ""},
		"CA alone":        {Files{CA: good.CA}, ""},
		"half a pair":     {Files{Cert: good.Cert}, ""}, // Validate refuses half a pair
		"CA missing":      {Files{CA: dir + "/no"}, "x.ca: " + dir + "/no does not exist; name a PEM file"},
		"CA garbage":      {Files{CA: garbage}, "x.ca: " + garbage + " holds no certificate"},
		"cert missing":    {Files{Cert: dir + "/no", Key: good.Key}, "x.cert: "},
		"key a directory": {Files{Cert: good.Cert, Key: dir}, "x.key: " + dir + " is a directory"},
		"another's key":   {Files{Cert: good.Cert, Key: other.Key}, "x.cert: "},
		"garbage":         {Files{Cert: garbage, Key: good.Key}, "name a PEM certificate and, with x.key, its own key"},
	} {
		err := c.files.Examine("x.ca", "x.cert", "x.key")
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func TestAdviseHosts(t *testing.T) {
	for host, warned := range map[string]bool{"": true, "127.0.0.1,localhost": true, "gpu1.example": false,
		"localhost,10.0.0.7": false} {
		o := Options{Roles: []Role{Agent}}
		if host != "" {
			o.Hosts = strings.Split(host, ",")
		}
		f := FilesIn(bootstrap(t, o), Agent)
		note := AdviseHosts("tls.cert", f.Cert, "agent.listen", "0.0.0.0:1")
		if (note != "") != warned || warned && (!strings.Contains(note, "agent.listen, 0.0.0.0:1") ||
			!strings.Contains(note, "pki bootstrap --host")) {
			t.Errorf("%q: %q", host, note)
		}
	}
	if note := AdviseHosts("tls.cert", "missing", "agent.listen", "0.0.0.0:1"); note != "" {
		t.Error(note)
	}
}
