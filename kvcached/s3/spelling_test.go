package s3

import "testing"

// TestRespelled: another spelling of a path names the same path. An encoded slash does not end a
// segment.
func TestRespelled(t *testing.T) {
	for raw, want := range map[string]string{
		"/b/a b+c": "/b/a%20b%2Bc", "/b/%c3%a9~": "/b/%C3%A9~", "/b/a%2Fb": "/b/a%2Fb", "/b/a%2fb/c": "/b/a%2Fb/c",
		"/b//x/": "/b//x/", "/": "/",
	} {
		if got, ok := respelled(raw); !ok || got != want {
			t.Errorf("%s is respelled %s, want %s", raw, got, want)
		}
	}
	if _, ok := respelled("/b/%zz"); ok {
		t.Error("what is no encoding was taken for one")
	}
}
