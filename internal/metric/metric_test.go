package metric

import (
	"net/http/httptest"
	"strings"
	"testing"
)

func TestKindsAreExportedAsDefined(t *testing.T) {
	s := NewSet()
	s.Counter("refused_total", "Refusals.").WithLabelValues().Add(3)
	s.Read([]Def{
		{Name: "opens_total", Kind: Counter, Labels: []string{"node"}, Help: "Opens."},
		{Name: "in_flight", Labels: []string{"node"}, Help: "In flight."},
	}, func(emit func(def int, value float64, labels ...string)) {
		emit(0, 7, "a")
		emit(1, 2, "a")
	})
	page := httptest.NewRecorder()
	s.Handler().ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	for _, line := range []string{
		"# TYPE refused_total counter\nrefused_total 3\n", "# TYPE opens_total counter\nopens_total{node=\"a\"} 7\n",
		"# TYPE in_flight gauge\nin_flight{node=\"a\"} 2\n",
	} {
		if !strings.Contains(page.Body.String(), line) {
			t.Errorf("not exported: %q", line)
		}
	}
	for _, d := range s.Defs() {
		if (d.Kind == Counter) != strings.HasSuffix(d.Name, "_total") {
			t.Errorf("%s is a %s", d.Name, d.Kind)
		}
	}
}
