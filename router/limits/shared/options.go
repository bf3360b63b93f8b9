package shared

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/cognitora/dataplane/internal/rights"
)

// What a limiter does while Redis does not answer.
const (
	Local  = "local"  // each router bounds its share: the limit by the routers that Redis last knew
	Open   = "open"   // everything is admitted
	Closed = "closed" // everything is Unavailable
)

// withoutRedis says what becomes of requests with limits while Redis does not answer.
var withoutRedis = map[string]string{
	Local:  "each router holds requests to its part of the limits",
	Open:   "each router holds requests to the limits by its own count only",
	Closed: "requests with limits get 503",
}

// Options say where Redis is, and how the limiter uses it.
type Options struct {
	Addresses []string // host:port of Redis, or of the sentinels if Master is set
	Master    string   // name of the master that sentinels watch; empty: no sentinels

	Username             string
	PasswordFile         string // read at each new connection; empty: no password
	SentinelPasswordFile string // read once; empty: no password
	DB                   int

	// TLS returns how to speak TLS with a host; nil: plain TCP.
	TLS func(host string) *tls.Config

	Exact     bool          // each request asks Redis
	OnFailure string        // Local (or empty), Open or Closed
	Timeout   time.Duration // most that a request waits for Redis; 0: 50 ms
	PoolSize  int           // most connections; 0: 64

	look time.Duration // how often keeper looks after leases; 0: a second
}

func (o Options) withDefaults() Options {
	o.OnFailure = cmp.Or(o.OnFailure, Local)
	o.Timeout = cmp.Or(o.Timeout, 50*time.Millisecond)
	o.look = cmp.Or(o.look, time.Second)
	o.PoolSize = cmp.Or(o.PoolSize, 64)
	return o
}

// dial returns a client. It connects when it is used.
func (o *Options) dial() (redis.UniversalClient, error) {
	if len(o.Addresses) == 0 {
		return nil, fmt.Errorf("no address of Redis")
	}
	quiet()
	if o.Master == "" {
		return redis.NewClient(&redis.Options{
			Addr: o.Addresses[0], DB: o.DB, CredentialsProviderContext: o.credentials, Dialer: o.dialer(),
			MaxRetries: -1, DialerRetries: 1, DialTimeout: o.Timeout, ReadTimeout: o.Timeout, WriteTimeout: o.Timeout,
			PoolTimeout: o.Timeout, PoolSize: o.PoolSize, ContextTimeoutEnabled: true,
			MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		}), nil
	}
	sentinelPassword, err := readPassword(o.SentinelPasswordFile)
	if err != nil {
		return nil, err
	}
	return redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: o.Master, SentinelAddrs: o.Addresses, SentinelPassword: sentinelPassword,
		DB: o.DB, CredentialsProviderContext: o.credentials, Dialer: o.dialer(),
		MaxRetries: -1, DialerRetries: 1, DialTimeout: o.Timeout, ReadTimeout: o.Timeout, WriteTimeout: o.Timeout,
		PoolTimeout: o.Timeout, PoolSize: o.PoolSize, ContextTimeoutEnabled: true,
	}), nil
}

// dialer returns what dials with TLS, or nil for plain TCP.
func (o *Options) dialer() func(ctx context.Context, network, address string) (net.Conn, error) {
	if o.TLS == nil {
		return nil
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		d := tls.Dialer{NetDialer: &net.Dialer{Timeout: o.Timeout}, Config: o.TLS(host)}
		ctx, cancel := context.WithTimeout(ctx, o.Timeout)
		defer cancel()
		return d.DialContext(ctx, network, address)
	}
}

// credentials are read for each connection, so that a changed password needs no restart.
func (o *Options) credentials(context.Context) (username, password string, err error) {
	password, err = readPassword(o.PasswordFile)
	return o.Username, password, err
}

// explain adds to an error that is about the password the settings that have it.
func (o *Options) explain(err error) error {
	for _, said := range []string{"NOAUTH", "WRONGPASS", "AUTH failed", "invalid password", "without any password"} {
		switch {
		case !strings.Contains(err.Error(), said):
		case o.Master != "":
			return fmt.Errorf("%w; check ratelimit.password_file, and ratelimit.sentinel_password_file", err)
		default:
			return fmt.Errorf("%w; check ratelimit.password_file and ratelimit.username", err)
		}
	}
	return err
}

// quiet keeps go-redis from writing to stderr. The limiter logs when Redis goes and comes.
var quiet = sync.OnceFunc(func() { redis.SetLogger(silent{}) })

type silent struct{}

// Printf does nothing.
func (silent) Printf(context.Context, string, ...any) {}

// maxPassword bounds a file with a password, in bytes.
const maxPassword = 4096

// readPassword returns the first line of a file; "" without a name.
func readPassword(name string) (string, error) {
	if name == "" {
		return "", nil
	}
	text, err := rights.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("password of Redis: %w", err)
	}
	if len(text) > maxPassword {
		return "", fmt.Errorf("password of Redis: %s has %d bytes, at most %d", name, len(text), maxPassword)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	return strings.TrimRight(line, "\r"), nil
}
