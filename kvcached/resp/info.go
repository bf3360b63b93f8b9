package resp

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/buildinfo"
)

// section is a section of INFO.
type section struct {
	name  string
	write func(*conn, *strings.Builder)
}

// sections are the sections before Keyspace, which needs the store.
var sections = []section{
	{"Server", (*conn).infoServer},
	{"Clients", (*conn).infoClients},
	{"Memory", (*conn).infoMemory},
	{"Persistence", (*conn).infoPersistence},
	{"Stats", (*conn).infoStats},
	{"Replication", (*conn).infoReplication},
	{"Cluster", (*conn).infoCluster},
}

// info replies the requested sections. ioredis waits for loading:0 among them.
func (c *conn) info() {
	wanted := func(name string) bool {
		return len(c.args) == 1 || slices.ContainsFunc(c.args[1:], func(a []byte) bool {
			return slices.ContainsFunc([]string{name, "all", "default", "everything"},
				func(s string) bool { return bytes.EqualFold(a, []byte(s)) })
		})
	}
	var b strings.Builder
	begin := func(name string) bool {
		if !wanted(name) {
			return false
		}
		if b.Len() > 0 {
			b.WriteString("\r\n")
		}
		fmt.Fprintf(&b, "# %s\r\n", name)
		return true
	}
	for _, s := range sections {
		if begin(s.name) {
			s.write(c, &b)
		}
	}
	if begin("Keyspace") {
		if err := c.infoKeyspace(&b); err != nil {
			c.fail(c.storeError(err))
			return
		}
	}
	c.verbatim(b.String())
}

func (c *conn) infoServer(b *strings.Builder) {
	up := time.Since(c.server.began)
	fmt.Fprintf(b, "redis_version:%s\r\nredis_mode:standalone\r\nos:%s "+
		"%s\r\narch_bits:%d\r\ncgn_kvcached_version:%s\r\nprocess_id:%d\r\n"+
		"uptime_in_seconds:%d\r\nuptime_in_days:%d\r\n", RedisVersion, runtime.GOOS, runtime.GOARCH, 32<<(^uint(0)>>63),
		buildinfo.Version(), os.Getpid(), int(up.Seconds()), int(up.Hours()/24))
}

func (c *conn) infoClients(b *strings.Builder) {
	fmt.Fprintf(b, "connected_clients:%d\r\nmaxclients:%d\r\nblocked_clients:0\r\n", c.server.Stats().Connections,
		c.server.o.maxClients)
}

func (c *conn) infoMemory(b *strings.Builder) {
	used, limit := c.server.o.Memory()
	fmt.Fprintf(b, "used_memory:%d\r\nmaxmemory:%d\r\nmaxmemory_policy:allkeys-lru\r\n", used, limit)
}

func (c *conn) infoPersistence(b *strings.Builder) {
	b.WriteString("loading:0\r\nasync_loading:0\r\nrdb_bgsave_in_progress:0\r\naof_enabled:0\r\n")
}

func (c *conn) infoStats(b *strings.Builder) {
	s := c.server.Stats()
	fmt.Fprintf(b, "total_connections_received:%d\r\ntotal_commands_processed:%d\r\nrejected_connections:%d\r\n"+
		"keyspace_hits:%d\r\nkeyspace_misses:%d\r\ntotal_error_replies:%d\r\n",
		s.Accepted, s.Commands, s.Refused, s.Hits, s.Misses, s.Errors)
}

func (c *conn) infoReplication(b *strings.Builder) {
	b.WriteString("role:master\r\nconnected_slaves:0\r\n")
}

func (c *conn) infoCluster(b *strings.Builder) { b.WriteString("cluster_enabled:0\r\n") }

// infoKeyspace lists the databases of the client's tenant.
func (c *conn) infoKeyspace(b *strings.Builder) error {
	blocks, err := c.server.o.Store.Count(c.server.ctx)
	for db := range Databases {
		if n := blocks[c.namespaceOf(db)]; n > 0 {
			fmt.Fprintf(b, "db%d:keys=%d,expires=0,avg_ttl=0\r\n", db, n)
		}
	}
	return err
}
