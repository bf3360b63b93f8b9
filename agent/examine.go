package agent

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cognitora/dataplane/internal/address"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/internal/rights"
)

// Examine reports the files, addresses and rights that would make a start fail. Each problem names
// the configuration's field and the fix. Validate checks the configuration's own text. Examine
// reads files, binds addresses and writes nothing. [engine], [[engine]] and [etcd] examine
// themselves.
func (c *Config) Examine() error {
	var p problems
	units := c.units()
	// the push address is opened only with etcd, and is examined below
	places := slices.DeleteFunc(c.places(units), func(l place) bool { return l.field == "agent.push" })
	for _, l := range append(places, place{"agent.push", c.pushListen(units[0])}) {
		if l.address == "" || listen.Check(l.address) != nil {
			continue // Validate reports an invalid address
		}
		if err := listen.Examine(l.address); err != nil {
			p.add(l.field, "%v", err)
		}
	}
	for _, u := range units {
		u.examineNames(&p)
	}
	c.examineState(&p)
	c.Telemetry.examine(&p)
	p = append(p, pki.Files{CA: c.TLS.CA, Cert: c.TLS.Cert, Key: c.TLS.Key}.Examine("tls.ca", "tls.cert", "tls.key"))
	return errors.Join(p...)
}

// examineNames checks the names that are made from the host's name.
func (u *unit) examineNames(p *problems) {
	var at net.Addr = &net.TCPAddr{Port: 1}
	if path, ok := strings.CutPrefix(u.Listen, "unix://"); ok {
		at = &net.UnixAddr{Name: path, Net: "unix"}
	}
	if u.element != "" || u.config.Agent.NodeID == "" {
		if err := cluster.CheckNodeID(u.nodeID(at)); err != nil {
			if u.ID == "" {
				p.add(u.name("id"), "empty, and what listen and the host's name give is none: %v; set it", err)
			} else {
				p.add(u.name("id"), "%q makes no node id with agent.node_id, or the host's name, before it: %v", u.ID,
					err)
			}
		}
	}
	if u.Advertise == "" {
		if _, err := address.Parse(u.advertised(at)); err != nil {
			p.add(u.name("advertise"), "empty, and what listen and the host's name give is none: %v; set it", err)
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
