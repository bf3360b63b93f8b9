package bench

import (
	"strings"
	"testing"
)

func TestBenchCompareRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"--root /":                    "--root /: is not the repository",
		"--repetitions 0":             "--repetitions 0: must be 1 or more",
		"--longest -1s":               "--longest -1s: must be 0s or more",
		"--scenarios chatt":           "--scenarios \"chatt\": must be some of chat-2k, ",
		"--contestants envoi":         "--contestants \"envoi\": must be some of direct, ours, ",
		"--scenarios held":            "held is part of the full form: add --full",
		"--write --scenarios chat-2k": "would replace the whole table by a part of it",
		"--write --longest 1s":        "would replace the whole table",
		"--write --contestants ours":  "it is for the full form, --full",
		"--write --full --contestants direct,ours,haproxy": "one without nginx: add it",
	} {
		_, err := ctl(t, nil, append([]string{"bench", "compare", "--root", "../.."}, strings.Fields(args)...)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", args, err, want)
		}
	}
}

// TestBenchCompareOfNothing: no scenario of the form includes these contestants.
func TestBenchCompareOfNothing(t *testing.T) {
	_, err := ctl(t, nil, "bench", "compare", "--root", "../..", "--contestants", "GOGC 50")
	if err == nil || !strings.Contains(err.Error(), "nothing was measured") {
		t.Error(err)
	}
}
