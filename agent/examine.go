package agent

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/cognitora/dataplane/internal/address"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/internal/rights"
)

// Examine says what a start would trip over in what c names, each with its field
// and the fix. It reads files and binds and writes nothing. The [engine] and
// [etcd] sections examine themselves.
func (c *Config) Examine() error {
	var p problems
	for _, l := range []struct{ field, address string }{{"agent.listen", c.Agent.Listen}, {"agent.admin", c.Agent.Admin}, {"agent.push", c.pushListen()}, {"kv_events.listen", c.Events.Listen}} {
		if l.address == "" || listen.Check(l.address) != nil {
			continue // Validate says so
		}
		if err := listen.Examine(l.address); err != nil {
			p.add(l.field, "%v", err)
		}
	}
	c.examineNames(&p)
	c.examineState(&p)
	c.Telemetry.examine(&p)
	p = append(p, pki.Files{CA: c.TLS.CA, Cert: c.TLS.Cert, Key: c.TLS.Key}.Examine("tls.ca", "tls.cert", "tls.key"))
	return errors.Join(p...)
}

// examineNames checks what is made of the host's name.
func (c *Config) examineNames(p *problems) {
	var at net.Addr = &net.TCPAddr{Port: 1}
	if path, ok := strings.CutPrefix(c.Agent.Listen, "unix://"); ok {
		at = &net.UnixAddr{Name: path, Net: "unix"}
	}
	if c.Agent.NodeID == "" {
		if err := cluster.CheckNodeID(c.nodeID(at)); err != nil {
			p.add("agent.node_id", "empty, and what listen and the host's name give is none: %v; set it", err)
		}
	}
	if c.Agent.Advertise == "" {
		if _, err := address.Parse(c.advertised(at)); err != nil {
			p.add("agent.advertise", "empty, and what listen and the host's name give is none: %v; set it", err)
		}
	}
}

func (c *Config) examineState(p *problems) {
	dir := c.Agent.StateDir
	if dir == "" {
		return
	}
	file := filepath.Join(dir, cluster.TokenFile)
	err := rights.Readable(file)
	if _, statErr := os.Stat(file); errors.Is(statErr, fs.ErrNotExist) {
		err = rights.Makeable(dir)
	}
	if err != nil {
		p.add("agent.state_dir", "%v; name a directory that the agent can make or write to, or leave it out", err)
	}
}
