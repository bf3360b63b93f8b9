package trust

import (
	"bufio"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// maxComplaints is how many are printed; the others are counted.
const maxComplaints = 20

// books have all answers, and what follows from them.
type books struct {
	site *site

	mu         sync.Mutex
	answers    map[string]*answer // of the serving ports, by id
	sums       counts             // tokens of counted answers, by subject as in counts
	rows       map[string]*tally
	delays     map[string]*delay
	away       []*answer // 503 limits_unavailable
	slow       int       // of these, because the machine stood still
	complaints int
	most       int64 // requests of the tenant narrow at once, while Redis was there
	audits     audits
}

// tally counts the answers of one kind of client.
type tally struct {
	asked    int
	statuses map[int]int
}

// delay is how long a change took to count.
type delay struct {
	n     int
	worst time.Duration
}

// audits count the comparisons with Redis.
type audits struct{ exact, bounded, slow int }

// unavailable keeps an answer that says that Redis does not answer, until judgeUnavailable.
func (b *books) unavailable(a *answer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.away = append(b.away, a)
}

// judgeUnavailable complains of each answer that says that Redis is away, unless the test had
// stopped Redis, or the machine stood still about as long as a router waits for Redis.
func (s *site) judgeUnavailable() {
	for _, a := range s.books.away {
		switch {
		case s.redis.away(a.sent, a.ended):
		case s.stalls.within(a.sent, a.ended):
			s.books.slow++
		default:
			s.books.broken("refused, although Redis answers: %v", a)
		}
	}
}

// broken records that a rule is broken.
func (b *books) broken(format string, args ...any) {
	b.mu.Lock()
	b.complaints++
	n := b.complaints
	b.mu.Unlock()
	if n <= maxComplaints {
		b.site.t.Errorf(time.Now().UTC().Format("15:04:05.000 ")+format, args...)
	} else {
		b.site.t.Fail()
	}
}

func (b *books) enter(a *answer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.rows == nil {
		b.rows, b.answers, b.sums = map[string]*tally{}, map[string]*answer{}, counts{}
	}
	row := b.rows[a.client.kind]
	if row == nil {
		row = &tally{statuses: map[int]int{}}
		b.rows[a.client.kind] = row
	}
	row.asked++
	row.statuses[a.status]++
	if !a.client.admin && a.status != 0 {
		b.answers[a.id] = a
	}
	if a.client.counted && a.status == 200 {
		b.sums[a.client.tenant] += a.prompt + a.completion
		b.sums["model "+a.client.model] += a.prompt + a.completion
		b.sums["answers of "+a.client.tenant]++
	}
}

// took records how long a change took to count.
func (b *books) took(what string, d time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.delays == nil {
		b.delays = map[string]*delay{}
	}
	if b.delays[what] == nil {
		b.delays[what] = &delay{}
	}
	is := b.delays[what]
	is.n++
	is.worst = max(is.worst, d)
}

func (b *books) copySums() counts {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.sums)
}

// mark is what all count at a moment at which no counted request runs.
type mark struct {
	at    time.Time
	sums  counts // as clients count
	used  counts // as Redis counts
	alone float64
}

// mark waits until no counted request runs and Redis knows all that was used, and reads all counts.
// The caller holds the gate.
func (s *site) mark() (m mark) {
	m.sums = s.books.copySums()
	held := counts{}
	s.eventually("Redis holds nothing for requests that have ended", patience, func() bool {
		if s.both("cgn_router_shared_limits_unsettled") > 0 {
			return false
		}
		var err error
		if m.used, held, err = readCounts(s.redis.db, maps.Keys(m.sums)); err != nil {
			s.books.broken("Redis does not tell what it counts: %v", err)
			return true
		}
		maps.DeleteFunc(held, func(_ string, n int64) bool { return n == 0 })
		if len(held) > 0 {
			time.Sleep(200 * time.Millisecond)
		}
		return len(held) == 0
	})
	if len(held) > 0 {
		s.books.broken("counts: Redis holds %v", held)
	}
	m.at = time.Now()
	m.alone = s.both("cgn_router_shared_limits_alone_total", `on_failure="local"`)
	if n := s.both("cgn_router_shared_limits_dropped_total"); n > 0 {
		s.books.broken("counts: routers have not told Redis of %v requests", n)
	}
	return m
}

// compare compares what Redis has counted since a mark with what clients have seen. lost says that
// Redis has lost its data since.
func (s *site) compare(from, to mark, calm, lost bool) {
	alone := int64(to.alone - from.alone)
	stood := s.stalls.within(from.at, to.at)
	missing := int64(0)
	for name := range to.sums {
		if strings.HasPrefix(name, "answers of ") || name == "model small" || name == "model slim" {
			continue // Redis does not count them
		}
		seen, counted := to.sums[name]-from.sums[name], to.used[name]-from.used[name]
		if lost {
			counted = to.used[name]
		}
		if counted > seen || calm && !stood && counted < seen {
			s.books.broken("counts: Redis has counted %d tokens of %q, its clients have seen %d (calm %v, stood still %v, "+
				"emptied %v, %d requests without Redis)", counted, name, seen, calm, stood, lost, alone)
		}
		if !strings.HasPrefix(name, "model ") {
			missing += seen - counted
		}
	}
	if most := alone * maxTokens; !lost && missing > most {
		s.books.broken("counts: Redis has not counted %d tokens, and %d requests were decided without it", missing, alone)
	}
	b := &s.books
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case calm && !stood || !lost && alone == 0:
		b.audits.exact++
	case calm:
		b.audits.slow++
	default:
		b.audits.bounded++
	}
}

// maxTokens bounds the tokens of a counted request.
const maxTokens = 200

// line is what the access log says of a request.
type line struct {
	ID         string
	Tenant     string
	Status     int
	End        string
	Prompt     int64 `json:"prompt_tokens"`
	Completion int64 `json:"completion_tokens"`
}

// logs compares the access logs with what clients have seen.
func (s *site) logs() (lines int) {
	of := make([]map[string]line, len(s.routers))
	for i, r := range s.routers {
		s.eventually("router "+r.name+" has logged all requests", patience, func() bool {
			of[i] = s.readLog(r)
			for _, a := range s.books.answers {
				if _, has := of[i][a.id]; !has && a.router == i {
					time.Sleep(time.Second)
					return false
				}
			}
			return true
		})
		if n, _ := s.metric(r, "cgn_router_access_log_dropped_total"); n > 0 {
			s.books.broken("counts: router %s has dropped %v lines of its access log", r.name, n)
		}
		lines += len(of[i])
	}
	for _, a := range s.books.answers {
		l := of[a.router][a.id]
		if l.Status != a.status {
			s.books.broken("counts: the access log has status %d: %v", l.Status, a)
		}
		if c := a.client; a.status == 200 && c.counted && (l.Tenant != c.tenant || l.Prompt != a.prompt ||
			l.Completion != a.completion) {
			s.books.broken("counts: %v has seen %d+%d tokens of %s, the access log has %+v", a, a.prompt, a.completion,
				c.tenant, l)
		}
	}
	for i := range of {
		for id, l := range of[i] {
			if s.books.answers[id] == nil && l.Status < 300 {
				s.books.broken("counts: no client has seen %+v", l)
			}
		}
	}
	return lines
}

func (s *site) readLog(r *router) map[string]line {
	f, err := os.Open(r.log)
	if err != nil {
		s.books.broken("%v", err)
		return nil
	}
	defer f.Close()
	all := map[string]line{}
	for text := bufio.NewScanner(f); text.Scan(); {
		var l line
		if err := json.Unmarshal(text.Bytes(), &l); err != nil {
			continue // the last line is being written
		}
		if _, twice := all[l.ID]; twice && l.ID != "" {
			s.books.broken("counts: the access log of %s has %s twice", r.name, l.ID)
		}
		all[l.ID] = l
	}
	return all
}

// engineCounts compares what engines have served with what clients have seen.
func (s *site) engineCounts(before []engineStats) {
	for i, m := range models[:3] {
		is := s.stats(i)
		got := is.Prompt + is.Generated - before[i].Prompt - before[i].Generated
		if want := s.books.sums["model "+m]; got != want {
			s.books.broken("counts: the engine of %s has served %d tokens, clients have seen %d", m, got, want)
		}
	}
}

// report returns the table of the part.
func (s *site) report(lines int) string {
	b := &s.books
	var out strings.Builder
	p := func(format string, args ...any) { fmt.Fprintf(&out, format+"\n", args...) }
	p("\nmode %s, on_failure %s", s.mode, s.on)
	p("%-44s %8s  %s", "who", "asked", "answers by status (0: no connection)")
	for _, kind := range slices.Sorted(maps.Keys(b.rows)) {
		row, text := b.rows[kind], ""
		for _, status := range slices.Sorted(maps.Keys(row.statuses)) {
			text += fmt.Sprintf("%d: %d  ", status, row.statuses[status])
		}
		p("%-44s %8d  %s", kind, row.asked, text)
	}
	p("%-44s %8s  %s", "what counts after", "times", "worst")
	for _, what := range slices.Sorted(maps.Keys(b.delays)) {
		p("%-44s %8d  %v", what, b.delays[what].n, b.delays[what].worst.Round(time.Millisecond))
	}
	p("faults: %d certificates and %d CAs replaced, etcd killed %d times, Redis stopped %d, killed %d, killed and emptied "+
		"%d times, keys file damaged %d times, %d reloads", s.wires.pairs, s.wires.replaced, s.restarts,
		s.redis.count[stopped], s.redis.count[killed], s.redis.count[emptied], s.graveyard.damages, s.sighups)
	tokens := int64(0)
	for name, n := range b.sums {
		if !strings.HasPrefix(name, "model ") && !strings.HasPrefix(name, "answers ") {
			tokens += n
		}
	}
	p("counts: %d tokens, equal at clients, engines and in %d lines of access logs; Redis %d times exact, %d times within "+
		"bounds after a fault, %d times because the machine stood still; %d requests refused because it did", tokens,
		lines, b.audits.exact, b.audits.bounded, b.audits.slow, b.slow)
	p("the machine stood still for %v at most", s.stalls.longest().Round(time.Millisecond))
	p("rules broken: %d; most requests at once of the tenant with a limit, while Redis answered: %d of %d", b.complaints,
		b.most, atOnce)
	return out.String()
}
