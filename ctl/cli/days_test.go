package cli

import "testing"

func TestDays(t *testing.T) {
	for text, want := range map[string]string{"397d": "397d", "24h": "1d", "90m": "1h30m"} {
		var d Days
		if err := d.Set(text); err != nil || d.String() != want {
			t.Errorf("%s: %s, %v", text, &d, err)
		}
	}
	for _, text := range []string{"", "d", "-1d", "0d", "1s", "99999d", "99999999h", "x"} {
		var d Days
		if d.Set(text) == nil {
			t.Errorf("%q is taken for %s", text, &d)
		}
	}
}
