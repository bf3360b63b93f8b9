package logging

import (
	"strings"
	"testing"
	"time"
)

func TestLevelAndFormat(t *testing.T) {
	for _, c := range []struct{ level, format, want string }{
		{"info", "text", "msg=heard n=1\n"}, {"warn", "text", ""}, {"debug", "json", `"msg":"heard","n":1}` + "\n"}, {"error", "json", ""},
	} {
		var out strings.Builder
		New(&out, c.level, c.format).Info("heard", "n", 1)
		if !strings.HasSuffix(out.String(), c.want) || c.want == "" && out.Len() > 0 {
			t.Errorf("%s %s: %q", c.level, c.format, out.String())
		}
	}
}

func TestSpansOfTimeHaveAUnit(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		var out strings.Builder
		New(&out, "info", format).Info("heard", "took", 1500*time.Millisecond)
		if !strings.Contains(out.String(), "1.5s") {
			t.Errorf("%s: %q", format, out.String())
		}
	}
}
