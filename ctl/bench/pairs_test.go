package bench

import (
	"strings"
	"testing"
)

func TestBenchPairsRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"":                           "--before is missing",
		"--before x --pairs 0":       "--pairs 0: must be 1 to 1000",
		"--before x --window 1ms":    "--window 1ms: must be 100ms to 10m0s",
		"--before x --scenario held": `--scenario "held": must be some of chat-2k, `,
		"--before x --scenario=":     "--scenario is empty",
		"--before /nowhere/x":        "--before: not installed: /nowhere/x",
	} {
		_, err := ctl(t, nil, append([]string{"bench", "pairs"}, strings.Fields(args)...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", args, err, want)
		}
	}
}
