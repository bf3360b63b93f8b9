package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kvcached"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// usualSock is where the socket is of a daemon that systemd runs.
const usualSock = "/run/cognitora/kv.sock"

// daemon names the cache that is called.
func (k *kv) daemon() string {
	if k.address != "" {
		return "the cache daemon at " + k.address
	}
	return "the cache daemon at " + k.path()
}

// ambiguous refuses two flags that each say which cache is meant. The environment says it only
// where no flag does.
func (k *kv) ambiguous() error {
	if k.address != "" && k.sockFlag != nil && k.sockFlag.Changed {
		return errors.New("--sock and --address both say which cache is meant: give one of them")
	}
	return nil
}

// path is the socket to call.
func (k *kv) path() string {
	if k.sock != "" {
		return strings.TrimPrefix(k.sock, "unix://")
	}
	if _, err := os.Stat(usualSock); err == nil {
		return usualSock
	}
	var c kvcached.Config
	if config.Defaults(&c) != nil {
		return usualSock
	}
	sock, _ := c.Sockets()
	return sock
}

// dial returns a connection, and where it goes to.
func (k *kv) dial() (conn *grpc.ClientConn, where string, err error) {
	if k.address == "" {
		if k.files != (pki.Files{}) {
			return nil, "", errors.New("--tls-ca, --tls-cert and --tls-key go with --address HOST:PORT; a socket " +
				"needs none")
		}
		where = k.path()
		conn, err = grpc.NewClient("unix:"+where, grpc.WithTransportCredentials(insecure.NewCredentials()))
		return conn, where, err
	}
	host, _, err := net.SplitHostPort(k.address)
	switch {
	case k.ambiguous() != nil:
		return nil, "", k.ambiguous()
	case err != nil || host == "" || strings.HasPrefix(k.address, "unix:"):
		return nil, "", fmt.Errorf("--address %q: give HOST:PORT, as the cache's [grpc] section has it; a socket "+
			"goes with --sock", k.address)
	case k.files.CA == "" || k.files.Cert == "" || k.files.Key == "":
		return nil, "", hinted{fmt.Errorf("--address %s: needs --tls-ca, --tls-cert and --tls-key", k.address),
			"cgn-ctl pki bootstrap makes them: ca.crt, ctl.crt and ctl.key"}
	}
	conf, err := pki.ClientConfig(k.files, host, pki.KVCached)
	if err != nil {
		return nil, "", fmt.Errorf("--tls-ca, --tls-cert, --tls-key: %w", err)
	}
	conf.NextProtos = []string{"h2"}
	conn, err = grpc.NewClient("passthrough:///"+k.address, grpc.WithTransportCredentials(credentials.NewTLS(conf)))
	return conn, k.address, err
}

// call runs fn with a client, and explains a daemon that does not answer.
func (k *kv) call(ctx context.Context, fn func(ctx context.Context, c pb.KvClient) error) error {
	conn, where, err := k.dial()
	if err != nil {
		return err
	}
	defer conn.Close()
	err = fn(ctx, pb.NewKvClient(conn))
	s, ours := status.FromError(err)
	switch {
	case err == nil || !ours:
		return err
	case s.Code() == codes.Unavailable && !strings.HasPrefix(s.Message(), "the cache"):
		return k.unavailable(where, s.Message())
	case s.Code() == codes.DeadlineExceeded:
		return hinted{fmt.Errorf("the cache daemon at %s does not answer in time", where),
			"it may hang, or wait for a disk: look into its log, and at /readyz and /debug/pprof on its admin port"}
	case s.Code() == codes.NotFound:
		return errors.New("there is no such block")
	default:
		return errors.New(s.Message())
	}
}

// cause is what a message of gRPC says about a connection, without how gRPC came to know of it.
func cause(message string) string {
	before, quoted, found := strings.Cut(message, "connection error: desc = ")
	if !found {
		return message
	}
	prefix, err := strconv.QuotedPrefix(quoted)
	if err != nil {
		return message
	}
	text, _ := strconv.Unquote(prefix)
	for _, layer := range []string{"transport: ", "Error while dialing: ", "authentication handshake failed: "} {
		text = strings.TrimPrefix(text, layer)
	}
	return strings.TrimSuffix(before, "last connection error: ") + text + strings.TrimPrefix(quoted, prefix)
}

// unavailable says what to look at where nobody answers.
func (k *kv) unavailable(where, why string) error {
	why = cause(why)
	if k.address == "" && strings.HasSuffix(why, syscall.EACCES.Error()) {
		return hinted{fmt.Errorf("the socket of the cache daemon, %s: %w", where, syscall.EACCES),
			"it is for the daemon's user and group: ask as one of them, or have kvcached.socket_group name a group " +
				"of yours"}
	}
	err := fmt.Errorf("no cache daemon answers at %s: %s", where, why)
	if k.address != "" {
		return hinted{err, "is that the address of the cache's [grpc] listener, and are the certificates of its CA?"}
	}
	if _, statErr := os.Stat(where); errors.Is(statErr, syscall.ENOENT) && k.sock == "" {
		return hinted{err, "a daemon started with --data DIR has its socket there: give --sock DIR/kv.sock (its log " +
			"says where, as part=grpc-sock, and so does cgn-ctl up)"}
	}
	return hinted{err, "is cgn-kvcached running? Say where that is with --sock PATH: a daemon started with --data " +
		"DIR has it as DIR/kv.sock (cgn-ctl up prints its own)."}
}

// soon is call with a deadline.
func (k *kv) soon(ctx context.Context, fn func(ctx context.Context, c pb.KvClient) error) error {
	limit := k.limit
	if limit == 0 {
		limit = kvDeadline
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return k.call(ctx, fn)
}
