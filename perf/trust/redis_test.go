package trust

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cognitora/dataplane/internal/freeport"
	"github.com/cognitora/dataplane/router/limits"
	"github.com/cognitora/dataplane/router/limits/shared"
)

// fault is what befalls Redis.
type fault int

const (
	stopped fault = iota // SIGSTOP, later SIGCONT
	killed               // SIGKILL, and back with its data
	emptied              // SIGKILL, and back without
	faults
)

func (f fault) String() string { return [...]string{"stopped", "killed", "killed and emptied"}[f] }

// silent is a log of go-redis that nobody reads.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// redisServer is a redis-server with TLS, whose data outlives its process.
type redisServer struct {
	s       *site
	at, dir string
	db      *redis.Client
	cmd     *exec.Cmd

	busy    sync.Mutex // held while the server is away
	mu      sync.Mutex
	outages []span // guarded by mu
	count   [faults]int
}

type span struct{ from, to time.Time }

func (r *redisServer) start(s *site) {
	r.s, r.at, r.dir = s, freeport.Address(s.t), filepath.Join(s.dir, "redis.data")
	if err := os.Mkdir(r.dir, 0o700); err != nil {
		s.t.Fatal(err)
	}
	redis.SetLogger(silent{})
	r.db = redis.NewClient(&redis.Options{Addr: r.at, TLSConfig: s.wires.outside("ctl"), MaxRetries: -1,
		DialerRetries: 1})
	if err := r.begin(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { r.db.Close(); _ = r.cmd.Process.Kill(); _ = r.cmd.Wait() })
}

// begin starts the process, and waits until it answers.
func (r *redisServer) begin() error {
	f := r.s.wires.files("redis")
	host, port, _ := net.SplitHostPort(r.at)
	r.cmd = exec.Command("redis-server", "--port", "0", "--tls-port", port, "--bind", host, "--save", "",
		"--appendonly", "yes", "--dir", r.dir, "--tls-cert-file", f.Cert, "--tls-key-file", f.Key,
		"--tls-ca-cert-file", f.CA)
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := r.cmd.Start(); err != nil {
		return err
	}
	r.s.eventually("Redis answers", patience, func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		return r.db.Ping(ctx).Err() == nil
	})
	return nil
}

// takeFiles has the server use the certificates that its files have now.
func (r *redisServer) takeFiles() {
	r.busy.Lock()
	defer r.busy.Unlock()
	f := r.s.wires.files("redis")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := r.db.Do(ctx, "CONFIG", "SET", "tls-cert-file", f.Cert, "tls-key-file", f.Key, "tls-ca-cert-file",
		f.CA).Err(); err != nil {
		r.s.books.broken("Redis takes no certificates: %v", err)
	}
}

// suffer lets a fault last, and waits until both routers have Redis again.
func (r *redisServer) suffer(what fault, lasts time.Duration) {
	r.busy.Lock()
	r.mu.Lock()
	r.outages = append(r.outages, span{from: time.Now()})
	r.mu.Unlock()
	r.count[what]++
	if what == stopped {
		_ = r.cmd.Process.Signal(syscall.SIGSTOP)
		time.Sleep(lasts)
		_ = r.cmd.Process.Signal(syscall.SIGCONT)
	} else {
		_ = r.cmd.Process.Kill()
		_ = r.cmd.Wait()
		time.Sleep(lasts)
		if what == emptied {
			_ = os.RemoveAll(filepath.Join(r.dir, "appendonlydir"))
		}
		if err := r.begin(); err != nil {
			r.s.books.broken("Redis does not start: %v", err)
		}
	}
	r.busy.Unlock()
	time.Sleep(4 * time.Second) // a request that waits for Redis has given up
	for _, at := range r.s.routers {
		r.s.eventually("router "+at.name+" has Redis again", patience, func() bool {
			up, ok := r.s.metric(at, "cgn_router_shared_limits_up")
			return ok && up == 1
		})
	}
	r.mu.Lock()
	r.outages[len(r.outages)-1].to = time.Now()
	r.mu.Unlock()
}

// away says whether Redis was away at some time between two.
func (r *redisServer) away(from, to time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.outages {
		if to.After(o.from) && (o.to.IsZero() || from.Before(o.to)) {
			return true
		}
	}
	return false
}

// counts are units of budgets by subject: "acme" of a tenant, "model large" of a model.
type counts map[string]int64

// readCounts returns what Redis counts as used and as held by these subjects. It counts 0 of those
// that it does not know.
func readCounts(db *redis.Client, names iter.Seq[string]) (used, held counts, err error) {
	used, held = counts{}, counts{}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for name := range names {
		tenant, of := name, limits.OfTenant.String()+"/"
		if model, is := strings.CutPrefix(name, "model "); is {
			tenant, of = "", limits.OfModel.String()+"/"+model
		}
		field, err := db.HGet(ctx, shared.SubjectKey(tenant, of), "budget").Bytes()
		if errors.Is(err, redis.Nil) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		is, err := shared.ParseStored(field)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		used[name], held[name] = int64(is.Used), int64(is.Held)
	}
	return used, held, nil
}
