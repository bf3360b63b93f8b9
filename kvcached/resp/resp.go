// Package resp serves blocks over RESP2 and RESP3, the protocols of redis clients.
//
// Each key is a block. Its namespace has the client's database and tenant. A key that begins with
// cgn: is the text form of a block address. Replies and values of a few KiB are copied. Larger
// values go straight between the socket and the store's arena. A connection holds at most one
// block, and the drafts of one command.
//
// In a fleet GET, STRLEN, EXISTS and TTL find keys of all hosts. SET, DEL and EXPIRE act on this
// host, which notifies the others. SET NX excludes only other clients of this host. FLUSHDB and
// FLUSHALL clear all hosts. KEYS, SCAN, DBSIZE and INFO cover this host.
package resp

import (
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/cognitora/dataplane/internal/audit"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/purge"
)

// MaxValue is the length of the longest value, in bytes. A longer one is a protocol error, as in
// redis with this proto-max-bulk-len.
const MaxValue = block.MaxPayload

// Databases is the number of databases that SELECT accepts.
const Databases = 16

// User is a client's login.
type User struct {
	Name     string // AUTH with only a password means the user "default"
	Password string
	Tenant   string // tenant of the user's keys; empty: keys without a tenant
	ReadOnly bool   // the user's writing commands are refused
}

// Options configure a Server.
type Options struct {
	Store Store
	// Purge carries out FLUSHDB and FLUSHALL. Nil: both are refused.
	Purge purge.Func
	// Users must authenticate. None: everybody who reaches the listener may do everything.
	Users []User
	// TLS encrypts the connections of every listener. Nil: plain TCP.
	TLS *tls.Config
	// Memory returns the bytes in use and their limit, for INFO. Nil: zeros.
	Memory func() (used, limit int64)
	// Stall bounds the time in which a command arrives once it has begun, and the time in which the
	// client takes a reply. A slower client's connection is closed. 0: 60 s.
	Stall time.Duration
	// Logger gets refused connections and failures of the store. Nil: slog.Default().
	Logger *slog.Logger
	// Audit gets a line for each FLUSHDB and FLUSHALL, and for each refused client. Nil: none.
	Audit *audit.Log

	// Bounds.
	maxClients  int   // open connections; one more is refused; 0: 16,384
	maxArgs     int   // arguments of a command; more are a protocol error; 0: 65,536
	maxQuery    int   // bytes of a command besides large values; more are an error reply; 0: 1 MiB
	maxBuffered int64 // bytes of all commands in progress besides large values; more are an error reply; 0: 256 MiB
	maxCommand  int64 // bytes of the values of one MSET; more are an error reply; 0: 256 MiB
	maxKeys     int   // keys of one reply to KEYS; more are an error reply; 0: 100,000
}

func (o Options) withDefaults() Options {
	o.maxClients = cmp.Or(o.maxClients, 16_384)
	o.maxArgs = cmp.Or(o.maxArgs, 65_536)
	o.maxQuery = cmp.Or(o.maxQuery, 1<<20)
	o.maxBuffered = cmp.Or(o.maxBuffered, 256<<20)
	o.maxCommand = cmp.Or(o.maxCommand, 256<<20)
	o.maxKeys = cmp.Or(o.maxKeys, 100_000)
	o.Stall = cmp.Or(o.Stall, time.Minute)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.Memory == nil {
		o.Memory = func() (used, limit int64) { return 0, 0 }
	}
	return o
}

// ErrOptions says that the options cannot be used.
var ErrOptions = errors.New("resp: bad options")

// account is a user with a digest of the password.
type account struct {
	User
	digest [sha256.Size]byte
}

func accounts(users []User) (map[string]*account, error) {
	m := make(map[string]*account, len(users))
	for _, u := range users {
		switch {
		case u.Name == "":
			return nil, fmt.Errorf("%w: a user has no name", ErrOptions)
		case u.Password == "":
			return nil, fmt.Errorf("%w: user %q has no password", ErrOptions, u.Name)
		case m[u.Name] != nil:
			return nil, fmt.Errorf("%w: user %q is there twice", ErrOptions, u.Name)
		}
		if err := (block.Namespace{Space: space(Databases - 1), Tenant: u.Tenant}).Check(); err != nil {
			return nil, fmt.Errorf("%w: user %q: %w", ErrOptions, u.Name, err)
		}
		a := &account{User: u, digest: sha256.Sum256([]byte(u.Password))}
		a.Password = ""
		m[u.Name] = a
	}
	return m, nil
}
