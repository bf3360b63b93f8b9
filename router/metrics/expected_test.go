package metrics

import (
	"net/http/httptest"
	"strings"
	"testing"
)

// TestErrorsOfFirstTokens checks both errors of an expected time, and that counting allocates
// nothing.
func TestErrorsOfFirstTokens(t *testing.T) {
	r := New()
	m := r.Model("m")
	m.FirstCame(0.3, 0.39)
	m.FirstCame(0.3, 0)
	if n := testing.AllocsPerRun(100, func() { m.FirstCame(0.3, 0.39) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	page := httptest.NewRecorder()
	r.Set.Handler().ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
	for _, line := range []string{
		`cgn_router_expected_ttft_error_seconds_bucket{model="m",le="-0.1"} 0`,
		`cgn_router_expected_ttft_error_seconds_bucket{model="m",le="-0.05"} 102`,
		`cgn_router_expected_ttft_error_ratio_bucket{model="m",le="0.2"} 0`,
		`cgn_router_expected_ttft_error_ratio_bucket{model="m",le="0.3"} 102`,
	} {
		if !strings.Contains(page.Body.String(), line) {
			t.Errorf("no %s", line)
		}
	}
}
