package cli

import "testing"

// TestCause: gRPC's messages are shown without its layers.
func TestCause(t *testing.T) {
	for message, want := range map[string]string{
		`connection error: desc = "transport: Error while dialing: dial unix /x/kv.sock: refused"`:                         "dial unix /x/kv.sock: refused",
		`last connection error: connection error: desc = "transport: authentication handshake failed: tls: \"x\" expired"`: `tls: "x" expired`,
		`etcd: latest balancer error: last connection error: connection error: desc = "transport: Error while dialing: y"`: "etcd: latest balancer error: y",
		"the cache is full":            "the cache is full",
		`connection error: desc = cut`: `connection error: desc = cut`,
	} {
		if got := Cause(message); got != want {
			t.Errorf("%s:\n%s", message, got)
		}
	}
}
