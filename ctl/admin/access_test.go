package admin

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/cognitora/dataplane/ctl/ctltest"
	"github.com/cognitora/dataplane/internal/adminport"
	"github.com/cognitora/dataplane/internal/pki"
)

func TestMain(m *testing.M) { ctltest.Main(m) }

// port returns a Port from a command line and an environment.
func port(t *testing.T, env map[string]string, args ...string) *Port {
	t.Helper()
	var p Port
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	p.Flags(flags, func(name string) string { return env[name] })
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return &p
}

// TestKeys checks where the API key comes from, and the hint of a refusal.
func TestKeys(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if key := r.Header.Get("Authorization"); key != "" {
			io.WriteString(w, key)
			return
		}
		w.WriteHeader(401)
	}))
	defer s.Close()
	file := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(file, []byte("in-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		env  map[string]string
		args []string
		want string
	}{
		{map[string]string{envAPIKey: "in-env"}, nil, "Bearer in-env"},
		{map[string]string{envAPIKey: "in-env", envKeyFile: file}, nil, "Bearer in-file"},
		{nil, []string{"--api-key-file", file}, "Bearer in-file"},
	} {
		p := port(t, c.env, append(c.args, "--admin", s.URL)...)
		for range 2 {
			if got, err := p.Ask(t.Context(), "GET", "/", ""); err != nil || string(got) != c.want {
				t.Errorf("%v %v: %s, %v", c.env, c.args, got, err)
			}
		}
	}
	_, err := port(t, nil, "--admin", s.URL).Ask(t.Context(), "GET", "/", "")
	if err == nil || !strings.Contains(ctltest.Hint(err), "--api-key-file") {
		t.Errorf("%v, hint %q", err, ctltest.Hint(err))
	}
	p := port(t, map[string]string{envAPIKey: "a\nb"}, "--admin", s.URL)
	if _, err := p.Ask(t.Context(), "GET", "/", ""); err == nil || !strings.HasPrefix(err.Error(), envAPIKey) {
		t.Errorf("a malformed key: %v", err)
	}
	p = port(t, nil, "--admin", s.URL, "--api-key-file", file+"-not")
	if _, err := p.Ask(t.Context(), "GET", "/", ""); err == nil || !strings.Contains(ctltest.Hint(err), envKeyFile) {
		t.Errorf("%v, hint %q", err, ctltest.Hint(err))
	}
}

// TestCertificates asks an admin port that needs certificates.
func TestCertificates(t *testing.T) {
	dir := t.TempDir()
	if err := pki.Bootstrap(dir, pki.Options{}); err != nil {
		t.Fatal(err)
	}
	own, ctl := pki.FilesIn(dir, pki.Router), pki.FilesIn(dir, pki.Ctl)
	guarded := adminport.TLS{Cert: own.Cert, Key: own.Key, ClientCA: own.CA}
	conf, err := guarded.Config()
	if err != nil {
		t.Fatal(err)
	}
	reached := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "reached") })
	s := httptest.NewUnstartedServer(guarded.Guard("127.0.0.1:0", reached))
	s.TLS = conf
	s.StartTLS()
	defer s.Close()
	at := strings.TrimPrefix(s.URL, "https://")
	shown := []string{"--admin-ca", ctl.CA, "--admin-cert", ctl.Cert, "--admin-key", ctl.Key}
	for _, c := range []struct {
		env  map[string]string
		args []string
		hint string // empty: reached
	}{
		{nil, append(shown, "--admin", at), ""},
		{nil, append(shown, "--admin", s.URL), ""},
		{map[string]string{envCA: ctl.CA, envCert: ctl.Cert, envKey: ctl.Key, Variable: at}, nil, ""},
		{nil, []string{"--admin", at, "--admin-ca", ctl.CA}, "--admin-cert"},
		{nil, []string{"--admin", s.URL}, "--admin-ca"},
		{nil, []string{"--admin", "http://" + at}, "https://"},
	} {
		got, err := port(t, c.env, c.args...).Ask(t.Context(), "GET", "/", "")
		if c.hint == "" && (err != nil || string(got) != "reached") || c.hint != "" &&
			(err == nil || !strings.Contains(ctltest.Hint(err), c.hint)) {
			t.Errorf("%v: %s, %v, hint %q", c.args, got, err, ctltest.Hint(err))
		}
	}
	if _, err := port(t, nil, "--admin", at, "--admin-cert", ctl.Cert).Ask(t.Context(), "GET", "/", ""); err == nil ||
		!strings.Contains(err.Error(), "--admin-cert") {
		t.Errorf("a certificate without its key: %v", err)
	}
	plain := httptest.NewServer(http.NotFoundHandler())
	defer plain.Close()
	p := port(t, nil, append(shown, "--admin", strings.TrimPrefix(plain.URL, "http://"))...)
	if _, err := p.Ask(t.Context(), "GET", "/", ""); err == nil || !strings.Contains(ctltest.Hint(err), "http://") {
		t.Errorf("a plain port: %v, hint %q", err, ctltest.Hint(err))
	}
}
