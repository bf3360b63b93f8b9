package audit

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestForeignFile checks that no line goes to a file of something else, and that an audit log is
// continued.
func TestForeignFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	c := Config{Log: name, Refusals: 1}
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "lines"})
	counted := Metrics{Lost: counter, Suppressed: counter}
	for text, ours := range map[string]bool{"-----BEGIN PRIVATE KEY-----\n": false, "{}\n": true, "": true} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := c.Examine(); (err == nil) != ours {
			t.Errorf("%q: %v", text, err)
		}
		l, err := c.Open("test", counted, slog.New(slog.DiscardHandler))
		if (err == nil) != ours || err != nil && !strings.Contains(err.Error(), name+" has something else") {
			t.Errorf("%q: %v", text, err)
		}
		l.Act(Act{Action: "start"})
		l.Close()
		if got, _ := os.ReadFile(name); !strings.HasPrefix(string(got), text) || (len(got) > len(text)) != ours {
			t.Errorf("%q became %q", text, got)
		}
	}
}
