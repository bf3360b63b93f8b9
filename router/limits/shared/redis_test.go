package shared

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cognitora/dataplane/internal/freeport"
)

// server is a real redis-server, or a sentinel, that a test can stop and start again.
type server struct {
	t       testing.TB
	program string
	at      string
	args    []string
	cmd     *exec.Cmd
	db      *redis.Client
}

// startServer starts a redis-server without persistence.
func startServer(t testing.TB, args ...string) *server {
	t.Helper()
	at := freeport.Address(t)
	host, port, _ := net.SplitHostPort(at)
	return startRedis(t, at, append([]string{"--port", port, "--bind", host, "--save", "", "--appendonly", "no",
		"--dir", t.TempDir(), "--enable-debug-command", "yes", "--repl-diskless-sync-delay", "0"}, args...)...)
}

// startRedis starts redis-server with args, which answers at an address.
func startRedis(t testing.TB, at string, args ...string) *server {
	t.Helper()
	program, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skip("needs redis-server")
	}
	s := &server{t: t, program: program, at: at, args: args}
	quiet()
	s.db = redis.NewClient(&redis.Options{Addr: at, MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { s.db.Close() })
	s.start()
	t.Cleanup(s.kill)
	return s
}

// start starts the process and waits until it answers.
func (s *server) start() {
	s.t.Helper()
	s.cmd = exec.Command(s.program, s.args...)
	if err := s.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	wait(s.t, s.at+" answers", func() bool {
		err := s.db.Ping(context.Background()).Err()
		return err == nil || redis.HasErrorPrefix(err, "NOAUTH")
	})
}

// kill ends the process without a goodbye.
func (s *server) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait()
}

// pause stops the process, which keeps its connections.
func (s *server) pause() { s.signal(syscall.SIGSTOP) }

func (s *server) proceed() { s.signal(syscall.SIGCONT) }

func (s *server) signal(is syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(is); err != nil {
		s.t.Fatal(err)
	}
}

// evalshas returns how many scripts the server has run by their hash.
func (s *server) evalshas() (n int64) {
	s.t.Helper()
	text, err := s.db.Info(context.Background(), "commandstats").Result()
	if err != nil {
		s.t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "cmdstat_evalsha:calls="); ok {
			_, _ = fmt.Sscanf(rest, "%d", &n)
		}
	}
	return n
}

// wait waits until ok.
func wait(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never: ", what)
		}
	}
}

// limiter returns a limiter that runs until the test ends, and what ends it before.
func limiter(t testing.TB, o Options) (l *Limiter, end func()) {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = 2 * time.Second // the machine is busy
	}
	l, err := New(o, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = l.Run(ctx) }()
	end = func() { cancel(); <-done }
	t.Cleanup(end)
	return l, end
}

// standard are the rules of test subjects.
var standard = []Rule{
	{Name: "rpm", Window: time.Minute, AtOnce: true}, {Name: "tpm", Window: time.Minute},
	{Name: "tpd", Window: 24 * time.Hour}, {Name: "at a time"}, {Name: "budget", Window: Month},
}

// places of the rules.
const (
	rpm = iota
	tpm
	tpd
	flight
	budget
)

func subject(l *Limiter, tenant, name string) *Subject { return l.Subject(tenant, name, standard...) }

// of returns a limit of a subject.
func (s *Subject) of(rule int, most, units int64) Limit { return Limit{s.Bucket(rule), most, units} }

// reserve reserves, and fails the test if the verdict is not as wanted.
func reserve(t testing.TB, l *Limiter, want Verdict, limits ...Limit) (*Reservation, Refusal) {
	t.Helper()
	r := new(Reservation)
	no, v := l.Reserve(r, limits)
	if v != want {
		t.Fatalf("verdict %d, not %d: %+v; %+v", v, want, no, l.Stats())
	}
	return r, no
}

// counted returns how many units Redis counts as held and as used.
func counted(t testing.TB, s *server, b *Bucket) (held, used int64) {
	t.Helper()
	ctx := context.Background()
	is, err := s.db.HGet(ctx, b.subject.hash, b.field).Bytes()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	var state struct{ Used, Stamp, Held float64 }
	_, _ = binary.Decode(is, binary.LittleEndian, &state)
	if !b.timed() {
		return int64(state.Held), int64(state.Used)
	}
	clock, err := s.db.Time(ctx).Result()
	if err != nil {
		t.Fatal(err)
	}
	ahead := max(state.Used-max(float64(clock.UnixMicro())-state.Stamp, 0), 0)
	l := Limit{Bucket: b, Max: b.limit.Load()}
	return int64(state.Held), l.units(time.Duration(ahead * 1e3))
}

// settled waits until Redis has seen all settlements.
func settled(t testing.TB, l *Limiter) {
	t.Helper()
	wait(t, "all are settled", func() bool { return l.pending.Load() == 0 })
}
