package reference

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/agent"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/kvcached"
	"github.com/cognitora/dataplane/router"
)

func TestReferencesAreUpToDate(t *testing.T) {
	for page, file := range map[string]string{
		"config": "deploy/reference/config.md", "metrics": "deploy/reference/metrics.md",
		"variables": "internal/config/variables.txt",
	} {
		now, err := ctl(t, nil, "reference", page)
		if err != nil {
			t.Fatal(err)
		}
		committed, err := os.ReadFile("../../" + file)
		if err != nil || string(committed) != now {
			t.Errorf("%s is not what the code says (%v); run `make generate`", file, err)
		}
	}
}

// TestVariablesOfOthers: every program accepts an environment with all variables that only other
// programs have. The program warns of a variable in one of its own sections.
func TestVariablesOfOthers(t *testing.T) {
	var all strings.Builder
	if err := writeVariables(&all); err != nil {
		t.Fatal(err)
	}
	args := map[string]string{"cgn-router": "--backend=http://127.0.0.1:8001",
		"cgn-agent": "--engine=http://127.0.0.1:8001", "cgn-kvcached": "--data=/nowhere"}
	for program, into := range daemons() {
		var env []string
		for line := range strings.Lines(all.String()) {
			if words := strings.Fields(line); !slices.Contains(words[1:], program) {
				env = append(env, words[0]+"=x")
			}
		}
		if len(env) < 50 {
			t.Fatalf("%s: only %d variables are others'", program, len(env))
		}
		var ignored []string
		err := config.Load(into, config.Options{Program: program, Args: []string{args[program]}, Env: env,
			Ignored: func(name string) { ignored = append(ignored, name) }})
		if err != nil || program == "cgn-router" && !slices.Contains(ignored, "CGN_TLS_CA") ||
			slices.Contains(ignored, "CGN_ENGINE_KIND") {
			t.Errorf("%s: %v, warned of %q", program, err, ignored)
		}
	}
}

func TestExampleConfigsAreValid(t *testing.T) {
	for name, into := range map[string]any{"router.toml": &router.Config{}, "agent.toml": &agent.Config{},
		"agent-engines.toml": &agent.Config{}, "kvcached.toml": &kvcached.Config{}} {
		if err := config.Load(into, config.Options{Program: name,
			Args: []string{"--config", "../../deploy/config/" + name}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
