package kvcached

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/internal/rights"
	"github.com/cognitora/dataplane/kvcached/purge"
	"github.com/cognitora/dataplane/kvcached/ram"
	"github.com/cognitora/dataplane/kvcached/ssd"
)

// Examine checks the files, directories and devices that c names and returns an error for each
// problem. The error names the field and the fix. Examine reads files, binds no port and writes
// nothing. The [etcd] section has its own check. A start calls Examine before it opens a tier.
func (c *Config) Examine() error {
	var p problems
	usable := c.Daemon.Data != ""
	if usable {
		if err := rights.Makeable(c.Daemon.Data); err != nil {
			usable = false
			p.add("kvcached.data", "%v; name a directory that the daemon can make or write to with --data DIR", err)
		}
	}
	// Validate reports a size above ram.MaxArena.
	if err := hostMemory("/").check(c.Daemon.RAM); err != nil && c.Daemon.RAM <= ram.MaxArena {
		p = append(p, err)
	}
	c.examineDevices(&p)
	c.examineListeners(&p)
	c.examineFiles(&p, usable)
	c.examineCertificate(&p)
	return errors.Join(p...)
}

// Advise returns warnings about settings of c that may cause problems, and says whether a daemon
// runs in the data directory.
func (c *Config) Advise() []string {
	if c.Daemon.Data == "" {
		return c.advise()
	}
	return append(c.advise(), adviseLock(c.Daemon.Data)...)
}

// advise is Advise for a start, which locks the directory itself.
func (c *Config) advise() []string {
	notes := hostMemory("/").advise(c.Daemon.RAM)
	if c.onDisk() {
		notes = append(notes, adviseDisk(c.Daemon.Data, c.Daemon.SSD)...)
	} else if dir := filepath.Join(c.Daemon.Data, ssdDir); c.Daemon.Data != "" && diskUsed(dir) > 0 {
		notes = append(notes, fmt.Sprintf("kvcached.ssd: 0, and %s has the blocks of an earlier run; they stay there "+
			"unused, and the next start with an SSD tier drops them, because they may be deleted or replaced meanwhile; "+
			"remove that folder to free its %s", dir, gib(diskUsed(dir))))
	}
	if id := strconv.Itoa(c.Daemon.Group); c.Daemon.Group >= 0 {
		if _, err := user.LookupGroupId(id); err != nil {
			notes = append(notes, "kvcached.socket_group: this host has no group "+id+
				", so perhaps nobody but the daemon's user can use the sockets; getent group lists the groups")
		}
	}
	return append(append(notes, c.adviseCertificate()...), c.adviseRDMA()...)
}

// adviseCertificate warns of a certificate for this host alone, once.
func (c *Config) adviseCertificate() []string {
	for _, l := range c.listeners() {
		if l.field == "kvcached.admin" || l.address == "" || listen.Loopback(l.address) {
			continue
		}
		if note := pki.AdviseHosts("tls.cert", c.TLS.Cert, l.field, l.address); note != "" {
			return []string{note}
		}
	}
	return nil
}

func (c *Config) examineListeners(p *problems) {
	for _, l := range c.listeners() {
		if l.address == "" || listen.Check(l.address) != nil {
			continue // Validate reports this
		}
		if path, ok := strings.CutPrefix(l.address, "unix://"); ok && c.inNewData(path) {
			continue
		}
		if err := listen.Examine(l.address); err != nil {
			p.add(l.field, "%v", err)
		}
	}
	if sock, _ := c.Sockets(); c.Daemon.Sock != "" && !c.inData(sock) {
		if err := listen.Examine("unix://" + sock); err != nil {
			p.add("kvcached.sock", "%v", err)
		}
	}
}

// inData tells whether a file lies directly in the data directory, which a start makes.
func (c *Config) inData(file string) bool {
	data, err := filepath.Abs(c.Daemon.Data)
	return err == nil && c.Daemon.Data != "" && filepath.Dir(file) == data
}

// inNewData tells whether a file lies directly in a data directory that does not exist yet.
func (c *Config) inNewData(file string) bool {
	_, err := os.Stat(c.Daemon.Data)
	return errors.Is(err, fs.ErrNotExist) && c.inData(filepath.Clean(file))
}

// examineFiles checks the files that c names. The files in the data directory are checked too if
// usable is set.
func (c *Config) examineFiles(p *problems, usable bool) {
	if name, err := filepath.Abs(c.Daemon.Trace); c.Daemon.Trace != "" && (err != nil || !c.inData(name)) {
		if err := rights.Appendable(c.Daemon.Trace); err != nil {
			p.add("kvcached.trace", "%v; name a file in a directory that the daemon can write to", err)
		}
	}
	for i, u := range c.RESP.Users {
		examineSecret(p, fmt.Sprintf("resp.users[%d].password_file", i), u.PasswordFile)
	}
	for i, k := range c.S3.Keys {
		examineSecret(p, fmt.Sprintf("s3.keys[%d].secret_file", i), k.SecretFile)
	}
	if usable {
		c.examinePurges(p)
	}
	key, err := c.sealingKey()
	switch {
	case err != nil:
		*p = append(*p, err)
	case c.onDisk() && usable:
		if err := ssd.Examine(filepath.Join(c.Daemon.Data, ssdDir), key); err != nil {
			*p = append(*p, storeError(c, err))
		}
	}
}

// examinePurges checks the list of purges in the data directory, which a start reads.
func (c *Config) examinePurges(p *problems) {
	name := filepath.Join(c.Daemon.Data, purge.File)
	err := purge.Examine(name)
	var unread *fs.PathError
	switch {
	case err == nil:
	case errors.As(err, &unread):
		*p = append(*p, storeError(c, err))
	default:
		p.add("kvcached.data", "%s is no list of purges: %v; put it back from a copy, or remove it and the folder %s "+
			"beside it: without the list, purged blocks could be served", name, err, ssdDir)
	}
}

// otherData is the fix if the SSD tier cannot be opened.
const otherData = "another --data DIR, or remove its folder " + ssdDir + " and lose what is there"

func examineSecret(p *problems, field, name string) {
	if name == "" {
		return // Validate reports this
	}
	if _, err := secret(field, name); err != nil {
		*p = append(*p, err)
	}
}

// examineCertificate checks the daemon's certificate as other hosts do: the certificate must chain
// to tls.ca and have the role kvcached. Without tls.ca only engines see the certificate, and any CA
// may have issued it.
func (c *Config) examineCertificate(p *problems) {
	files := pki.Files{CA: c.TLS.CA, Cert: c.TLS.Cert, Key: c.TLS.Key}
	if err := files.Examine("tls.ca", "tls.cert", "tls.key"); err != nil {
		*p = append(*p, err)
		return
	}
	if files.CA == "" || files.Cert == "" {
		return
	}
	if err := files.CheckOwn(pki.KVCached); err != nil {
		p.add("tls.cert", "%v; cgn-ctl pki bootstrap or join, with --role %s, makes one", err, pki.KVCached)
	}
}

// tooMuch is the share of the memory, in percent, above which advise warns about the size of the
// RAM tier.
const tooMuch = 80

// check returns an error if a RAM tier of that size is impossible.
func (m memory) check(ram config.Size) error {
	if m.limit > 0 && ram > m.limit {
		return fmt.Errorf("kvcached.ram: %s is more than %s, which is %s; give less with --ram, and leave room for "+
			"the programs of the host", given(ram), gib(m.limit), m.source)
	}
	return nil
}

// advise warns if a RAM tier of that size is dangerous.
func (m memory) advise(ram config.Size) []string {
	for _, bound := range []struct {
		bytes  config.Size
		source string
	}{{m.limit, m.source}, {m.available, "available now"}} {
		if bound.bytes > 0 && ram > bound.bytes/100*tooMuch {
			return []string{fmt.Sprintf("kvcached.ram: %s is more than %d %% of %s, %s; as it fills, the kernel may "+
				"kill this daemon or other programs", given(ram), tooMuch, gib(bound.bytes), bound.source)}
		}
	}
	return nil
}

// given writes a size of the configuration. A size in a decimal unit is also written as gib does,
// for comparison.
func given(n config.Size) string {
	if text := n.String(); strings.HasSuffix(text, "iB") {
		return text
	}
	return fmt.Sprintf("%s (%s)", n, gib(n))
}

// gib writes a size in GiB, or in MiB below one GiB.
func gib(n config.Size) string {
	if n < 1<<30 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}
