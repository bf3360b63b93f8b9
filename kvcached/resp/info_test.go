package resp

import (
	"strings"
	"testing"
)

// TestHelpOfSubcommands checks the help that the error for an unknown subcommand names.
func TestHelpOfSubcommands(t *testing.T) {
	addr, _, _ := start(t, Options{})
	p := dial(t, "tcp", addr)
	for _, name := range []string{"CLIENT", "CONFIG"} {
		p.send(encode(name, "HELP"))
		if r, err := p.reply(); err != nil || !strings.Contains(r, name+" <subcommand>") {
			t.Errorf("%s HELP: %q, %v", name, r, err)
		}
	}
	p.want("-ERR unknown subcommand 'HELP'. Try CLIENT HELP.\r\n", "CLIENT", "HELP", "more")
}

// TestInfoTellsOfNoTraffic: INFO has no fields for traffic. Bytes on the wire are not counted, and
// redis' fields do not mean the payload alone.
func TestInfoTellsOfNoTraffic(t *testing.T) {
	addr, _, _ := start(t, Options{})
	p := dial(t, "tcp", addr)
	p.send(encode("INFO", "stats"))
	if r, err := p.reply(); err != nil || !strings.Contains(r, "keyspace_hits:") || strings.Contains(r, "_net_") {
		t.Errorf("%q, %v", r, err)
	}
}
