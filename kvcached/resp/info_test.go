package resp

import (
	"strings"
	"testing"
)

// TestHelpOfSubcommands: what the error of an unknown one says to try.
func TestHelpOfSubcommands(t *testing.T) {
	addr, _, _ := start(t, Options{})
	p := dial(t, "tcp", addr)
	p.want("*5\r\n+OBJECT <subcommand> [<arg> [value] [opt] ...]. Subcommands "+
		"are:\r\n+ENCODING\r\n+REFCOUNT\r\n+HELP\r\n+    Print this help.\r\n", "OBJECT", "help")
	for _, name := range []string{"CLIENT", "COMMAND", "CONFIG", "MEMORY"} {
		p.send(encode(name, "HELP"))
		if r, err := p.reply(); err != nil || !strings.Contains(r, name+" <subcommand>") {
			t.Errorf("%s HELP: %q, %v", name, r, err)
		}
	}
	p.want("-ERR unknown subcommand 'HELP'. Try OBJECT HELP.\r\n", "OBJECT", "HELP", "more")
}

// TestInfoTellsOfNoTraffic: bytes on the wire are not counted, and payload alone is not what redis
// means by them.
func TestInfoTellsOfNoTraffic(t *testing.T) {
	addr, _, _ := start(t, Options{})
	p := dial(t, "tcp", addr)
	p.send(encode("INFO", "stats"))
	if r, err := p.reply(); err != nil || !strings.Contains(r, "keyspace_hits:") || strings.Contains(r, "_net_") {
		t.Errorf("%q, %v", r, err)
	}
}
