package bpf

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/perf/stopwatch"
	"github.com/cognitora/dataplane/sim/engine"
)

var number = regexp.MustCompile(`[0-9]+`)

// shape returns a line of output without the parts that differ between hosts: numbers, tags and
// spaces.
func shape(line string) string {
	line = regexp.MustCompile(`tag [0-9a-f]{16}`).ReplaceAllString(line, "tag")
	return strings.Join(strings.Fields(number.ReplaceAllString(line, "0")), " ")
}

// answers checks that out has the lines of want in order, without lines in between unless want has
// "..." there. A line of out may be longer than its line of want.
func answers(out string, want []string) error {
	lines := strings.Split(out, "\n")
	at, skip := 0, false
	for _, w := range want {
		if w == "..." {
			skip = true
			continue
		}
		begin := at
		for at < len(lines) && !strings.HasPrefix(shape(lines[at]), shape(w)) {
			at++
		}
		switch {
		case at == len(lines):
			return fmt.Errorf("no line like %q", w)
		case at != begin && !skip:
			return fmt.Errorf("%q in place of %q", lines[begin], w)
		}
		at, skip = at+1, false
	}
	return nil
}

// TestWalkthrough runs the lines of docs/bpf.md.
func TestWalkthrough(t *testing.T) {
	h := newHost(t)
	if _, err := exec.LookPath("bpftool"); err != nil {
		lack(t, err.Error())
	}
	page, err := os.ReadFile("../docs/bpf.md")
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(engine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	to := netip.MustParseAddrPort(e.Addr())
	s := h.load()
	if err := s.WatchPort(to.Port()); err != nil {
		t.Fatal(err)
	}
	if err := s.WatchProcesses(os.Getpid()); err != nil {
		t.Fatal(err)
	}
	must[stopwatch.Streams](t)(stopwatch.Completions(to,
		`{"model":"sim","prompt":"how long","stream":true,"max_tokens":8}`, 1, nil))
	questions, commands := 0, 0
	for _, part := range strings.Split(string(page), "\n## ")[1:] {
		questions++
		_, block, ok := strings.Cut(part, "```console\n")
		block, _, closed := strings.Cut(block, "```")
		if !ok || !closed {
			t.Errorf("no line to run: %s", part)
		}
		for _, one := range strings.Split("\n"+block, "\n# ")[1:] {
			lines := strings.Split(strings.TrimSpace(one), "\n")
			command := strings.ReplaceAll(lines[0], DefaultRoot, h.root)
			commands++
			out, err := exec.Command("sh", "-c", command).CombinedOutput()
			if err == nil {
				err = answers(string(out), lines[1:])
			}
			if err != nil {
				t.Errorf("%s\n%v:\n%.4000s", command, err, out)
			}
		}
	}
	if questions != 6 || commands != 8 {
		t.Errorf("%d questions with %d lines to run", questions, commands)
	}
}
