package architecture

import (
	"bufio"
	"bytes"
	"os"
	"path"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// What CONTRIBUTING.md says of lines, a tab counted as four columns.
const (
	commentColumns = 100
	codeColumns    = 120
	tab            = 4
)

// held are the folders whose lines are held to that.
var held = []string{
	"router/request", "router/plan", "router/leg", "router/answer", "router/where", "router/gateway",
	"router/scan", "router/policy", "router/prefix", "router/patience", "router/signals", "router/fleet",
	"router/admission", "router/affinity", "router/apierror", "router/metrics", "internal/accesslog",
	"internal/load", "internal/relay", "internal/sse", "internal/residue", "internal/intake", "perf/pairs",
	"agent/push",
}

// commented lists folders whose comments alone are checked.
var commented = []string{
	"router", "router/holdings", "internal/cluster", "cmd/cgn-ctl", "agent", "perf/gate",
}

func columns(line string) int {
	return utf8.RuneCountInString(line) + (tab-1)*strings.Count(line, "\t")
}

// TestLinesFit leaves out what cannot be broken: a line that is mostly one string, and tables of
// tests.
func TestLinesFit(t *testing.T) {
	seen := 0
	goFiles(t, func(at, rel string) error {
		inCode := slices.Contains(held, path.Dir(rel))
		if !inCode && !slices.Contains(commented, path.Dir(rel)) {
			return nil
		}
		seen++
		text, err := os.ReadFile(at)
		if err != nil {
			return err
		}
		lines := bufio.NewScanner(bytes.NewReader(text))
		for n := 1; lines.Scan(); n++ {
			line := lines.Text()
			code, comment, _ := strings.Cut(line, "//")
			whole := strings.TrimSpace(code) == "" && comment != ""
			switch {
			case whole && columns(line) > commentColumns:
				t.Errorf("%s:%d: a comment of %d columns, at most %d", rel, n, columns(line), commentColumns)
			case inCode && columns(line) > codeColumns && !strings.ContainsAny(line, "\"`"):
				t.Errorf("%s:%d: %d columns, at most %d", rel, n, columns(line), codeColumns)
			}
		}
		return lines.Err()
	})
	if seen == 0 {
		t.Error("no file was looked at")
	}
}
