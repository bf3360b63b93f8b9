package telemetry

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/bpf"
)

// TestWhatIsConfiguredIsNoWarning: running without programs is logged as a warning if they cannot
// be loaded, but not if the configuration asks for none.
func TestWhatIsConfiguredIsNoWarning(t *testing.T) {
	for why, want := range map[string]string{byChoice: "level=INFO", "no rights": "level=WARN"} {
		var out strings.Builder
		tel := New(Options{Logger: slog.New(slog.NewTextHandler(&out, nil))})
		tel.say(bpf.NewProc(errors.New(why)))
		said := 0
		for line := range strings.Lines(out.String()) {
			if strings.Contains(line, `why="`+why+`"`) {
				said++
				if !strings.Contains(line, want) {
					t.Errorf("%s: want %s in %s", why, want, line)
				}
			}
		}
		if said != 1 {
			t.Errorf("%s: said %d times in\n%s", why, said, out.String())
		}
	}
}
