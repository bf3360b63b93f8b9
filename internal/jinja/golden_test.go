package jinja

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/jsonscan"
)

type goldenCase struct {
	Template  string
	Variables json.RawMessage
	Want      *string
	Error     string
}

func readCases(t testing.TB) (cases []goldenCase) {
	t.Helper()
	doc, err := os.ReadFile("testdata/templates.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(doc, &cases); err != nil {
		t.Fatal(err)
	}
	return cases
}

func read(t testing.TB, doc []byte) *Dict {
	t.Helper()
	c := jsonscan.New(doc)
	v, err := Read(&c)
	if err != nil || c.Err() != nil {
		t.Fatal(err, c.Err())
	}
	return v.(*Dict)
}

var enough = Limits{Bytes: 1 << 20, Steps: 1 << 20}

// refused lists constructs of Jinja that this package does not support.
var refused = []string{"** 3", "{% call", "{% filter", "recursive", "(*a)"}

// TestGolden: templates render as in Jinja. Templates that Jinja refuses are refused too, at the
// latest during rendering.
func TestGolden(t *testing.T) {
	same, failed := 0, 0
	for _, c := range readCases(t) {
		got, err := "", error(nil)
		tmpl, err := Parse(c.Template)
		if err == nil {
			got, err = tmpl.Render(read(t, c.Variables), enough)
		} else if c.Want != nil && !containsAny(c.Template, refused) {
			t.Errorf("%.300q is refused: %v", c.Template, err)
			continue
		}
		switch {
		case c.Want == nil && err == nil:
			t.Errorf("%.300q is rendered as %q, for Jinja it is a %s", c.Template, got, c.Error)
		case c.Want == nil || containsAny(c.Template, refused):
			if failed++; err == nil {
				t.Errorf("%q is not refused", c.Template)
			}
		case err != nil:
			t.Errorf("%.300q: %v", c.Template, err)
		case got != *c.Want:
			t.Errorf("%.300q:\n got %q\nwant %q", c.Template, got, *c.Want)
		default:
			same++
		}
	}
	t.Logf("%d rendered alike, %d refused", same, failed)
}

func containsAny(s string, parts []string) bool {
	for _, p := range parts {
		if strings.Contains(s, p) {
			return true
		}
	}
	return false
}
