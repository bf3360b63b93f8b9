package cache

import (
	"strings"
	"syscall"
	"testing"
)

// TestSocketThatMayNotBeUsed: the error for a socket that the user may not use differs from the
// error for a socket without a listener.
func TestSocketThatMayNotBeUsed(t *testing.T) {
	d := &Daemon{Sock: "/x/kv.sock"}
	denied := d.unavailable("/x/kv.sock",
		`connection error: desc = "transport: Error while dialing: dial unix /x/kv.sock: connect: permission denied"`)
	if text := denied.Error(); strings.Contains(text, "no cache daemon") ||
		!strings.HasSuffix(text, syscall.EACCES.Error()) {
		t.Error(text)
	}
}
