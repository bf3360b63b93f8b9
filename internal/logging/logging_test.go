package logging

import (
	"strings"
	"testing"
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
