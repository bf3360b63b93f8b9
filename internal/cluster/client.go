package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/internal/pki"
)

// Config holds the settings of the connection to etcd.
type Config struct {
	Endpoints      []string      // host:port or URLs; at least one
	TLS            *pki.Identity // follows its files; nil: plain text, or the system's CAs for https
	Username       string        // empty: no authentication
	Password       string        //
	RequestTimeout time.Duration // time limit of one request; 0: 3 s
}

// Client is a connection to the fleet's etcd. The client reconnects by itself. A Client is safe for
// concurrent use.
type Client struct {
	etcd    *clientv3.Client
	timeout time.Duration
	tls     *pki.Identity // nil: plain text, or the system's CAs for https
}

// reconnect bounds the wait before reconnecting after a long outage of etcd. gRPC's default is
// minutes, but nodes are kept only for a grace period.
var reconnect = grpc.ConnectParams{
	Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2,
		MaxDelay: 2 * time.Second},
	MinConnectTimeout: 3 * time.Second,
}

// window is how many bytes etcd may send before the client has read them.
const window = 1 << 20

// Dial prepares a client. Dial does not wait for etcd, because a fleet may start before its etcd
// does. With a user name, however, Dial must authenticate immediately, and fails if etcd is not
// there.
func Dial(cfg Config) (*Client, error) {
	if len(cfg.Endpoints) == 0 {
		return nil, errors.New("etcd: no endpoint given, for example 127.0.0.1:2379")
	}
	cfg.RequestTimeout = cmp.Or(cfg.RequestTimeout, 3*time.Second)
	options := []grpc.DialOption{grpc.WithConnectParams(reconnect), grpc.WithInitialWindowSize(window),
		grpc.WithInitialConnWindowSize(window)}
	// The first endpoint says whether etcd's client speaks TLS with all of them.
	if cfg.TLS != nil && !strings.HasPrefix(cfg.Endpoints[0], "http://") {
		options = append(options, grpc.WithTransportCredentials(newFollowing(cfg.TLS)))
	}
	etcd, err := clientv3.New(clientv3.Config{
		Endpoints:   cfg.Endpoints,
		Username:    cfg.Username,
		Password:    cfg.Password,
		DialTimeout: cfg.RequestTimeout,
		// A host that vanished silently is noticed within 2 x 3 s.
		DialKeepAliveTime:    3 * time.Second,
		DialKeepAliveTimeout: 3 * time.Second,
		BackoffWaitBetween:   50 * time.Millisecond,
		// Windows are fixed, because with dynamic ones each answer would cause a ping that measures
		// the round trip.
		DialOptions: options,
		Logger:      zap.NewNop(),
	})
	if err != nil {
		return nil, fmt.Errorf("etcd at %v: %w", cfg.Endpoints, why(context.Background(), cfg.Endpoints, cfg.TLS, err))
	}
	return &Client{etcd: etcd, timeout: cfg.RequestTimeout, tls: cfg.TLS}, nil
}

// redialEvery is the wait between two attempts of Connect.
const redialEvery = time.Second

// Connect is Dial with retries every second while an etcd that requires authentication is not
// there. Connect logs the first failure. Connect fails only if the configuration is wrong or ctx
// has ended.
func Connect(ctx context.Context, cfg Config, log *slog.Logger) (*Client, error) {
	for logged := false; ; logged = true {
		client, err := Dial(cfg)
		if err == nil {
			return client, nil
		}
		if cfg.Username == "" || len(cfg.Endpoints) == 0 {
			return nil, err
		}
		if !logged {
			log.Warn("etcd not reached, trying on", "endpoints", cfg.Endpoints, "error", err)
		}
		if !await.For(ctx, redialEvery) {
			return nil, ctx.Err()
		}
	}
}

// Endpoints returns the configured addresses.
func (c *Client) Endpoints() []string { return c.etcd.Endpoints() }

// Close closes the connection and ends everything that uses it.
func (c *Client) Close() error {
	if err := c.etcd.Close(); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// bounded returns the context of one request.
func (c *Client) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, c.timeout)
}

func (c *Client) get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	resp, err := c.etcd.Get(ctx, key, opts...)
	if err != nil {
		return nil, fmt.Errorf("etcd get %s: %w", key, err)
	}
	return resp, nil
}

func (c *Client) put(ctx context.Context, key string, value []byte) error {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	if _, err := c.etcd.Put(ctx, key, string(value)); err != nil {
		return fmt.Errorf("etcd put %s: %w", key, err)
	}
	return nil
}

func (c *Client) remove(ctx context.Context, key string) (existed bool, err error) {
	ctx, cancel := c.bounded(ctx)
	defer cancel()
	resp, err := c.etcd.Delete(ctx, key)
	if err != nil {
		return false, fmt.Errorf("etcd delete %s: %w", key, err)
	}
	return resp.Deleted > 0, nil
}
