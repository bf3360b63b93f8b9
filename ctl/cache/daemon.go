// Package cache calls a host's KV cache daemon, and explains why it does not answer.
package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/kvcached"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// Variable is the environment variable of the cache's socket, as in the configuration of
// cgn-kvcached.
const Variable = "CGN_KVCACHED_SOCK"

// ErrNoBlock means that the cache has no block of this name.
var ErrNoBlock = errors.New("there is no such block")

// deadline is the time limit of a short call.
const deadline = 10 * time.Second

// Daemon is one host's KV cache daemon, with the ways to reach it.
type Daemon struct {
	Sock, Address string
	files         pki.Files
	sockFlag      *pflag.Flag   // flag of Sock
	Limit         time.Duration // time limit of Soon; 0: 10 s
}

// Flags defines the flags for the cache's address.
func (d *Daemon) Flags(f *pflag.FlagSet, getenv func(string) string) {
	f.StringVar(&d.Sock, "sock", cli.FirstSet(getenv, "", Variable),
		"the cache's gRPC socket, a path or unix:///path (env "+Variable+"); default: kv.sock in /run/cognitora, else "+
			"in the daemon's default data directory")
	d.sockFlag = f.Lookup("sock")
	f.StringVar(&d.Address, "address", "", "HOST:PORT of the [grpc] listener of a cache, of this host or another, "+
		"instead of --sock, with the three --tls flags")
	f.StringVar(&d.files.CA, "tls-ca", "", "PEM file of the fleet's CA, for --address")
	f.StringVar(&d.files.Cert, "tls-cert", "", "own certificate, for --address: that of the role ctl may do everything")
	f.StringVar(&d.files.Key, "tls-key", "", "key of the certificate")
}

// leaseSock is the file name of every daemon's lease socket.
const leaseSock = "kv-lease.sock"

// usualSock is the socket of a daemon under systemd.
const usualSock = "/run/cognitora/kv.sock"

// Name returns the called cache's name for messages.
func (d *Daemon) Name() string {
	if d.Address != "" {
		return "the cache daemon at " + d.Address
	}
	return "the cache daemon at " + d.Path()
}

// Ambiguous refuses two flags that each name a cache. The environment counts only if no flag is
// given.
func (d *Daemon) Ambiguous() error {
	if d.Address != "" && d.sockFlag != nil && d.sockFlag.Changed {
		return cli.Misused(errors.New("--sock and --address both say which cache is meant: give one of them"))
	}
	return nil
}

// Path returns the socket to call.
func (d *Daemon) Path() string {
	if d.Sock != "" {
		return strings.TrimPrefix(d.Sock, "unix://")
	}
	if exists(usualSock) {
		return usualSock
	}
	var c kvcached.Config
	if config.Defaults(&c) != nil {
		return usualSock
	}
	if sock := filepath.Join(c.Daemon.Data, filepath.Base(usualSock)); exists(sock) {
		return sock
	}
	sock, _ := c.Sockets()
	return sock
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// silence ends a call that watches a daemon that hangs, or that cannot be reached any more.
var silence = grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second})

// dial returns a connection and its target.
func (d *Daemon) dial() (conn *grpc.ClientConn, where string, err error) {
	if d.Address == "" {
		if d.files != (pki.Files{}) {
			return nil, "", cli.Misused(errors.New("--tls-ca, --tls-cert and --tls-key go with --address HOST:PORT; " +
				"a socket needs none"))
		}
		where = d.Path()
		conn, err = grpc.NewClient("unix:"+where, grpc.WithTransportCredentials(insecure.NewCredentials()), silence)
		return conn, where, err
	}
	host, _, err := net.SplitHostPort(d.Address)
	switch {
	case d.Ambiguous() != nil:
		return nil, "", d.Ambiguous()
	case err != nil || host == "" || strings.HasPrefix(d.Address, "unix:"):
		return nil, "", cli.Misused(fmt.Errorf("--address %q: give HOST:PORT, as the cache's [grpc] section has it; "+
			"a socket goes with --sock", d.Address))
	case d.files.CA == "" || d.files.Cert == "" || d.files.Key == "":
		return nil, "", cli.Misused(cli.WithHint(
			fmt.Errorf("--address %s: needs --tls-ca, --tls-cert and --tls-key", d.Address),
			"cgn-ctl pki bootstrap makes them: ca.crt, ctl.crt and ctl.key"))
	}
	conf, err := pki.ClientConfig(d.files, host, pki.KVCached)
	if err != nil {
		return nil, "", fmt.Errorf("--tls-ca, --tls-cert, --tls-key: %w", err)
	}
	conf.NextProtos = []string{"h2"}
	conn, err = grpc.NewClient("passthrough:///"+d.Address, grpc.WithTransportCredentials(credentials.NewTLS(conf)),
		silence)
	return conn, d.Address, err
}

// Call runs fn with a client, and explains the error if the daemon does not answer.
func (d *Daemon) Call(ctx context.Context, fn func(ctx context.Context, c pb.KvClient) error) error {
	conn, where, err := d.dial()
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
		return d.unavailable(where, s.Message())
	case s.Code() == codes.DeadlineExceeded:
		return cli.WithHint(fmt.Errorf("the cache daemon at %s does not answer in time", where),
			"it may hang, or wait for a disk: look into its log, and at /readyz and /debug/pprof on its admin port")
	case s.Code() == codes.NotFound:
		return ErrNoBlock
	default:
		return errors.New(s.Message())
	}
}

// unavailable returns an error with a hint for a daemon that does not answer.
func (d *Daemon) unavailable(where, why string) error {
	why = cli.Cause(why)
	if d.Address == "" && strings.HasSuffix(why, syscall.EACCES.Error()) {
		return cli.WithHint(fmt.Errorf("the socket of the cache daemon, %s: %w", where, syscall.EACCES),
			"it is for the daemon's user and group: ask as one of them, or have kvcached.socket_group name a group "+
				"of yours")
	}
	if d.Address == "" && filepath.Base(where) == leaseSock && accepts(where) {
		return cli.WithHint(fmt.Errorf("%s is the lease socket of a cache daemon, for engines", where),
			"give --sock "+filepath.Join(filepath.Dir(where), "kv.sock")+", the socket beside it (the daemon's log "+
				"says where, as part=grpc-sock)")
	}
	err := fmt.Errorf("no cache daemon answers at %s: %s", where, why)
	if strings.Contains(why, "keepalive") {
		return cli.WithHint(err, "it may hang, or wait for a disk, or the path to it is broken")
	}
	if d.Address != "" {
		return cli.WithHint(err,
			"is that the address of the cache's [grpc] listener, and are the certificates of its CA?")
	}
	if d.Address == "" && !strings.HasSuffix(why, syscall.ECONNREFUSED.Error()) && accepts(where) {
		return cli.WithHint(err, "the daemon has closed the connection: most likely it serves its own user, root and the "+
			"members of kvcached.socket_group, whatever the file's mode allows; its log says so")
	}
	if _, statErr := os.Stat(where); errors.Is(statErr, syscall.ENOENT) && d.Sock == "" {
		return cli.WithHint(err, "a daemon started with --data DIR has its socket there: give --sock DIR/kv.sock "+
			"(its log says where, as part=grpc-sock, and so does cgn-ctl up)")
	}
	return cli.WithHint(err, "is cgn-kvcached running? Say where that is with --sock PATH: a daemon started with "+
		"--data DIR has it as DIR/kv.sock (cgn-ctl up prints its own).")
}

// accepts says whether somebody accepts connections at a Unix socket.
func accepts(path string) bool {
	c, err := net.Dial("unix", strings.TrimPrefix(path, "unix://"))
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

// Soon is Call with a time limit.
func (d *Daemon) Soon(ctx context.Context, fn func(ctx context.Context, c pb.KvClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(d.Limit, deadline))
	defer cancel()
	return d.Call(ctx, fn)
}
