package trust

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/cognitora/dataplane/router/keys"
)

// Times after which a change of a key counts, and how much later it may on a busy machine.
const (
	byFile = 5 * time.Second
	byEtcd = time.Second
	slack  = 4 * time.Second
)

// sources names where the routers have their keys from.
var sources = []string{"file", "etcd"}

// limit is the time after which a change counts at a router, on a machine that stands still as long
// as this one has.
func (s *site) limit(router int) time.Duration {
	return []time.Duration{byFile, byEtcd}[router] + slack + 5*s.stalls.longest()
}

// graveyard has the keys that do not count any more.
type graveyard struct {
	mu      sync.Mutex
	dead    [2][]string
	file    sync.Mutex // held while the file of keys is changed or damaged
	damages int
}

func (g *graveyard) bury(router int, text string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dead[router] = append(g.dead[router], text)
}

// any returns one of the dead keys.
func (g *graveyard) any(router int) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.dead[router]) == 0 {
		text, _ := keys.Generate()
		return text
	}
	return g.dead[router][rand.IntN(len(g.dead[router]))]
}

// changing keeps the keys of a router from being damaged, and etcd from a restart, until done.
func (s *site) changing(router int) (done func()) {
	which := []*sync.Mutex{&s.graveyard.file, &s.etcdMu}[router]
	which.Lock()
	return which.Unlock
}

// key runs a command for the keys of a router. The caller has called changing.
func (s *site) key(router int, command string, args ...string) (id, text string) {
	flags := []string{"--keys-file", s.keysFile()}
	if router == 1 {
		flags = s.etcdFlags()
	}
	out, err := s.ctl("key", slices.Concat([]string{command}, args, flags, []string{"-o", "json"})...)
	var made struct{ ID, Key string }
	if err == nil {
		err = json.Unmarshal(out, &made)
	}
	if err != nil {
		s.books.broken("%v", err)
	}
	return made.ID, made.Key
}

// create makes a key, and waits until its router lets it in.
func (s *site) create(router int, args ...string) (id, text string) {
	defer s.changing(router)()
	id, text = s.key(router, "create", args...)
	by := s.connections(&client{})
	defer by.CloseIdleConnections()
	s.await(router, by, "new key in "+sources[router], time.Now(), text, 200)
	return id, text
}

// list is a client that lists models with a key.
func list(kind, text string, may ...int) *client {
	return &client{kind: kind, tenant: "victims", method: "GET", path: "/v1/models", key: func() string { return text },
		may: may}
}

// await asks with a key until the status comes, and then whether it stays. await complains if the
// status comes too late after a moment, and of a status that is neither 200 nor 401. Of a key that
// may not list models 403 stands for 200.
func (s *site) await(router int, by *http.Client, what string, from time.Time, text string, status int) {
	other := 601 - status // 401 or 200
	last := from
	for {
		a := s.ask(by, router, list(what, text, 200, 401, 403), nil)
		s.judge(a)
		if a.status == status || status == 200 && a.status == 403 {
			status = a.status
			break
		}
		last = a.sent
		if a.status != other || a.sent.Sub(from) > s.limit(router) {
			s.books.broken("too late: %s: not after %v: %v", what, a.sent.Sub(from), a)
			return
		}
		time.Sleep(25 * time.Millisecond)
	}
	s.books.took(what, max(last.Sub(from), 0))
	for range 5 {
		s.judge(s.ask(by, router, list(what+", afterwards", text, status), nil))
	}
}

// victims makes keys at a router, and ends each in some way, until ctx ends.
func (s *site) victims(ctx context.Context, router int) {
	ways := []func(*victim){(*victim).revoke, (*victim).rotate, (*victim).revoke}
	if router == 0 {
		ways = append(ways, (*victim).remove)
	}
	for turn := 0; pause(ctx, time.Second); turn++ {
		v := &victim{site: s, router: router, by: s.connections(&client{})}
		ways[turn%len(ways)](v)
		v.streams.Wait()
		v.by.CloseIdleConnections()
	}
}

// expiring makes keys at a router that expire, one after the other, until ctx ends.
func (s *site) expiring(ctx context.Context, router int) {
	for pause(ctx, time.Second) {
		v := &victim{site: s, router: router, by: s.connections(&client{})}
		v.expire()
		v.by.CloseIdleConnections()
	}
}

// victim is a key that ends.
type victim struct {
	*site
	router   int
	by       *http.Client
	id, text string
	streams  sync.WaitGroup
}

func (v *victim) source() string { return sources[v.router] }

func (v *victim) make(args ...string) {
	v.id, v.text = v.create(v.router, append([]string{"--tenant", "victims", "--model", "spare"}, args...)...)
}

// stream begins a long stream. over takes the moment from which on it may not go on for long.
func (v *victim) stream(what string) (over func(from time.Time)) {
	text, began, ended := v.text, make(chan struct{}), make(chan *answer, 1)
	c := &client{kind: "streams of " + what, tenant: "victims", model: "spare", key: func() string { return text },
		long: true, may: []int{200}}
	v.streams.Go(func() {
		for {
			once := sync.OnceFunc(func() { close(began) })
			a := v.ask(v.by, v.router, c, once)
			if !v.unavailable(a) {
				ended <- a
				break
			}
			v.judge(a)
			time.Sleep(time.Second)
		}
		select {
		case <-began:
		default:
			close(began)
		}
	})
	<-began
	return func(from time.Time) {
		a := <-ended
		v.books.enter(a)
		v.books.took("running stream of "+what, max(a.ended.Sub(from), 0))
		if a.broken != "key_revoked" && a.status == 200 || a.ended.Sub(from) > v.limit(v.router) {
			v.books.broken("let in: the stream of %s ended after %v: %v", what, a.ended.Sub(from), a)
		}
	}
}

func (v *victim) revoke() {
	what := "revoked key in " + v.source()
	v.make()
	over := v.stream(what)
	done := v.changing(v.router)
	v.key(v.router, "revoke", v.id)
	from := time.Now()
	v.await(v.router, v.by, what, from, v.text, 401)
	done()
	over(from)
	v.graveyard.bury(v.router, v.text)
}

// remove takes the key out of the file.
func (v *victim) remove() {
	what := "key taken out of the file"
	v.make()
	over := v.stream(what)
	done := v.changing(v.router)
	err := keys.Edit(v.keysFile(), func(all []*keys.Record) ([]*keys.Record, error) {
		return slices.DeleteFunc(all, func(r *keys.Record) bool { return r.ID == v.id }), nil
	})
	if err != nil {
		v.books.broken("%v", err)
	}
	from := time.Now()
	v.await(v.router, v.by, what, from, v.text, 401)
	done()
	over(from)
	v.graveyard.bury(v.router, v.text)
}

// rotate gives the key a new text. The former one counts for its grace, and no longer.
func (v *victim) rotate() {
	const grace = 15 * time.Second
	v.make()
	done := v.changing(v.router)
	former, began := v.text, time.Now()
	_, v.text = v.key(v.router, "rotate", v.id, "--grace", grace.String())
	rotated := time.Now()
	v.await(v.router, v.by, "rotated key in "+v.source(), rotated, v.text, 200)
	done()
	v.ends("former text of a rotated key", former, began.Add(grace), rotated.Add(grace))
	v.judge(v.ask(v.by, v.router, list("rotated key", v.text, 200), nil))
	v.graveyard.bury(v.router, former)
	defer v.changing(v.router)()
	v.key(v.router, "revoke", v.id)
	v.await(v.router, v.by, "revoked key in "+v.source(), time.Now(), v.text, 401)
	v.graveyard.bury(v.router, v.text)
}

func (v *victim) expire() {
	const lasts = time.Minute // no key lasts less
	began := time.Now()
	v.make("--expires", lasts.String())
	v.ends("expired key", v.text, began.Add(lasts), time.Now().Add(lasts))
	v.graveyard.bury(v.router, v.text)
}

// ends checks that a text counts until a time, and not after a later one. cgn-ctl rounds the end of
// a key down to seconds, and the end of a former text up.
func (v *victim) ends(what, text string, until, last time.Time) {
	until, last = until.Truncate(time.Second), last.Add(time.Second)
	for {
		a := v.ask(v.by, v.router, list(what, text, 200, 401), nil)
		v.judge(a)
		switch {
		case a.ended.Before(until) && a.status != 200:
			v.books.broken("refused: %v before its end: %v", until.Sub(a.ended), a)
			return
		case a.sent.After(last):
			if a.status != 401 {
				v.books.broken("let in: %v after its end: %v", a.sent.Sub(last), a)
			}
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// damage damages the file of keys, and makes it whole again, until ctx ends.
func (s *site) damage(ctx context.Context) {
	name := s.keysFile()
	for turn := 0; pause(ctx, 5*time.Second); turn++ {
		s.graveyard.file.Lock()
		whole, err := os.ReadFile(name)
		if err != nil {
			s.books.broken("%v", err)
		}
		switch turn % 6 {
		case 0:
			s.put(name, string(whole[:len(whole)/2]))
		case 1:
			s.put(name, "")
		case 2:
			s.put(name, fmt.Sprintf(`{"keys":[{"id":"%d"}]}`, turn))
		case 3:
			_ = os.Remove(name)
		case 4:
			_ = os.Chmod(name, 0o644)
		case 5:
			_ = os.WriteFile(name, append([]byte("\x00\xff"), whole...), 0o600) // in place
		}
		pause(ctx, keysSeen)
		s.put(name, string(whole))
		s.graveyard.damages++
		s.graveyard.file.Unlock()
	}
}

// keysSeen is in what a router has read the file of keys.
const keysSeen = 2500 * time.Millisecond
