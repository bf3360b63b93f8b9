package gateway

import "testing"

func TestArrival(t *testing.T) {
	for line, want := range map[string]string{
		"POST /v1/messages HTTP/1.1\r\nHost: x":   "POST messages",
		"POST /v1/messages?beta=true HTTP/1.1":    "POST messages",
		"POST /v1/messages/count_tokens HTTP/1.1": "POST count_tokens", "GET /v1/models\r\n": "GET models",
		"POST /v1/responses": "POST responses", "": " other", "\x16\x03\x01 /v1/messages": " other",
		`{"a": /v1/messages`:                 " other",
		"NOSUCHMETHOD /v1/messages HTTP/1.1": " other", "POST": " other", "POST ": "POST other",
	} {
		var whole, bytewise arrival
		whole.arrived([]byte(line), nil)
		for i := range line {
			bytewise.arrived([]byte{line[i]}, nil)
		}
		for _, a := range []*arrival{&whole, &bytewise} {
			if method, _, name := a.asked(); method+" "+name != want {
				t.Errorf("%q: %s %s, want %s", line, method, name, want)
			}
			if a.next(); a.n != 0 || a.Came(0) != 0 || !a.began.IsZero() {
				t.Errorf("%q goes on", line)
			}
		}
	}
}
