package shared

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/cognitora/dataplane/internal/redisserver"
)

// server is a redis-server, or a sentinel, and a client of it.
type server struct {
	*redisserver.Server
	t  testing.TB
	db *redis.Client
}

func startServer(t testing.TB, options ...string) *server {
	t.Helper()
	return withClient(t, redisserver.Start(t, options...))
}

func withClient(t testing.TB, s *redisserver.Server) *server {
	quiet()
	db := redis.NewClient(&redis.Options{Addr: s.At, MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { db.Close() })
	return &server{s, t, db}
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

// stored returns what Redis has of a bucket.
func stored(t testing.TB, s *server, b *Bucket) (is Stored) {
	t.Helper()
	text, err := s.db.HGet(context.Background(), b.subject.hash, b.field).Bytes()
	if errors.Is(err, redis.Nil) {
		return is
	}
	if err == nil {
		is, err = ParseStored(text)
	}
	if err != nil {
		t.Fatal(err)
	}
	return is
}

// counted returns how many units Redis counts as held and as used.
func counted(t testing.TB, s *server, b *Bucket) (held, used int64) {
	t.Helper()
	state := stored(t, s, b)
	if !b.timed() {
		return int64(state.Held), int64(state.Used)
	}
	clock, err := s.db.Time(context.Background()).Result()
	if err != nil {
		t.Fatal(err)
	}
	ahead := max(state.Used-max(float64(clock.UnixMicro())-state.Stamp, 0), 0)
	l := Limit{Bucket: b, Max: int64(state.Limit)}
	return int64(state.Held), l.units(time.Duration(ahead * 1e3))
}

// settled waits until Redis has seen all settlements.
func settled(t testing.TB, l *Limiter) {
	t.Helper()
	wait(t, "all are settled", func() bool { return l.pending.Load() == 0 })
}
