package shared

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// clocked returns the scripts with a clock that the test sets: a hash instead of the server's TIME.
func clocked() *scripts {
	with := strings.Replace(commonSource, "call('TIME')", "call('HMGET', 'clock', 's', 'us')", 1)
	if with == commonSource {
		panic("the scripts have another clock")
	}
	return &scripts{newScript(with + reserveSource), newScript(with + settleSource), newScript(with + renewSource)}
}

// model is what the scripts should do to one subject.
type model struct {
	now     float64 // us
	buckets map[*Bucket]*modelled
	expires map[string]float64 // holders
	marked  map[string]bool
	gone    map[string]bool
	serials map[string]int64 // the last of each holder
}

func newModel() *model {
	return &model{1.8e15, map[*Bucket]*modelled{}, map[string]float64{}, map[string]bool{}, map[string]bool{},
		map[string]int64{}}
}

type modelled struct {
	used, stamp float64
	held        map[string]int64
}

func (m *model) month() float64 {
	year, month, _ := time.UnixMicro(int64(m.now)).UTC().Date()
	return float64(year*12 + int(month) - 1)
}

// at returns a bucket, and what counts now. Reading changes nothing but that holders expire.
func (m *model) at(b *Bucket) (is *modelled, used, stamp float64, held int64) {
	for holder, at := range m.expires {
		if at <= m.now {
			delete(m.expires, holder)
			for _, is := range m.buckets {
				delete(is.held, holder)
			}
		}
	}
	if m.buckets[b] == nil {
		m.buckets[b] = &modelled{held: map[string]int64{}}
	}
	is = m.buckets[b]
	for _, n := range is.held {
		held += n
	}
	switch {
	case b.timed():
		return is, max(0, is.used-max(0, m.now-is.stamp)), m.now, held
	case b.window == Month:
		if month := m.month(); is.stamp != month && is.stamp != month+1 {
			return is, 0, month, held
		}
		return is, is.used, is.stamp, held
	}
	return is, 0, 0, held
}

// scale returns how much a unit counts, and how much there is room for.
func (l *Limit) scale() (unit, room float64) {
	if l.Bucket.timed() {
		w := float64(l.Bucket.window.Microseconds())
		return w / float64(l.Max), w
	}
	return 1, float64(l.Max)
}

func (m *model) use(l *Limit, units int64) {
	unit, room := l.scale()
	is, used, stamp, _ := m.at(l.Bucket)
	is.used, is.stamp = max(0, used+float64(float64(units)*unit)), stamp
	if l.Bucket.timed() {
		is.used = min(is.used, room+864e9)
	}
}

// keep renews a holder that may expire soon, or that a clock has made too old.
func (m *model) keep(holder string) {
	life := float64(holderLife.Microseconds())
	if at := m.expires[holder]; at < m.now+life*2/3 || at > m.now+life {
		m.expires[holder] = m.now + life
	}
}

// hold holds units more, or less. It also writes how much still counts as used.
func (m *model) hold(l *Limit, holder string, units int64) {
	if is, used, stamp, _ := m.at(l.Bucket); units != 0 {
		is.used, is.stamp = used, stamp
		is.held[holder] += units
	}
}

// reserve reserves for a request, or a lease if it has no id.
func (m *model) reserve(id, holder string, limits []Limit, wants []int64) (reply, given []int64) {
	given = make([]int64, len(limits))
	for i, l := range limits {
		_, used, _, held := m.at(l.Bucket)
		unit, room := l.scale()
		counts := used + float64(float64(held)*unit)
		over := counts + float64(float64(l.Units)*unit) - room
		if l.Units > 0 && over > room*1e-12 {
			return []int64{0, int64(i), int64(math.Ceil(counts)), int64(math.Ceil(over))}, given
		}
		given[i] = int64(max(0, min(float64(wants[i]), math.Floor(-over/unit/2))))
	}
	if m.gone[id] || m.marked[id] {
		return []int64{0, 0, 0, 0}, given
	}
	m.marked[id] = id != ""
	for i, l := range limits {
		if units := l.Units + given[i]; units > 0 && l.Bucket.atOnce && id != "" {
			m.use(&l, units)
		} else if units > 0 {
			m.hold(&l, holder, units)
			m.keep(holder)
		}
	}
	return []int64{1}, given
}

// end returns the end of the reply to a reservation.
func (m *model) end(limits []Limit, given []int64) (reply []int64) {
	for i, l := range limits {
		_, used, _, held := m.at(l.Bucket)
		unit, _ := l.scale()
		reply = append(reply, int64(math.Ceil(used+float64(float64(held)*unit))), given[i])
	}
	return reply
}

// settle settles reservations with the same limits and use, or tells what a holder holds and has
// used if there are none.
func (m *model) settle(ids []string, holder string, serial int64, limits []Limit, helds, useds []int64) []int64 {
	again := ids == nil && serial <= m.serials[holder]
	if ids == nil {
		m.serials[holder] = max(serial, m.serials[holder])
	}
	known, some := make([]int64, len(ids)), int64(0)
	for i, id := range ids {
		if m.marked[id] {
			known[i] = 1
			some++
		} else {
			m.gone[id] = true
		}
		delete(m.marked, id)
	}
	if ids != nil && some == 0 {
		return known
	}
	for i, l := range limits {
		is, _, _, _ := m.at(l.Bucket)
		used := useds[i]
		if ids != nil {
			m.hold(&l, holder, -min(some*helds[i], is.held[holder]))
			used *= some
		} else {
			m.hold(&l, holder, helds[i]-is.held[holder])
		}
		if used != 0 && !again {
			m.use(&l, used)
		}
		if ids == nil && helds[i] > 0 {
			m.keep(holder)
		}
	}
	return known
}

// TestScriptsFollowTheModel compares the scripts in a real Redis with a model in Go, step by step,
// also while the server's clock jumps and holders expire. What the scripts keep must end by itself.
func TestScriptsFollowTheModel(t *testing.T) {
	server := startServer(t)
	of := clocked()
	ctx := context.Background()
	rapid.Check(t, func(t *rapid.T) {
		if err := server.db.FlushAll(ctx).Err(); err != nil {
			t.Fatal(err)
		}
		m := newModel()
		k := (&Limiter{id: "x"}).Subject("a}{:%", "k", standard...)
		var most [budget + 1]int64
		for i := range most {
			most[i] = rapid.OneOf(rapid.Int64Range(1, 50), rapid.Int64Range(1, 1e12)).Draw(t, "limit")
		}
		same := func(c *call, want []int64) {
			t.Helper()
			got, err := of.run(ctx, server.db, c)
			if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("%v, %v; the model: %v", got, err, want)
			}
		}
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			m.now += float64(rapid.OneOf(rapid.Int64Range(0, 5e6), rapid.Int64Range(-4e9, 9e10),
				rapid.Int64Range(-6e12, 9e12)).Draw(t, "passes"))
			if err := server.db.HSet(ctx, "clock", "s", int64(m.now)/1e6, "us", int64(m.now)%1e6).Err(); err != nil {
				t.Fatal(err)
			}
			id := []string{"a", "b", "c", "other"}[rapid.IntRange(0, 3).Draw(t, "id")]
			k.holder = rapid.SampledFrom([]string{"a", "b-1", "c#"}).Draw(t, "holder")
			all, a, b := draw(t, k, most[:])
			if len(all) == 0 {
				continue
			}
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0:
				requests, replies := m.several(t, id, k.holder, all)
				same(of.newRequests(requests), replies)
			case 3:
				c := of.newLease(k.mark)
				for i := range all {
					c.lease(&all[i], all[i].Units, a[i])
				}
				reply, given := m.reserve("", k.holder, all, a)
				same(c, append(reply, m.end(all, given)...))
			case 1:
				b = still(all, b)
				ids := []string{id, "other"}[:rapid.IntRange(1, 2).Draw(t, "reservations")]
				var settle []*settlement
				for _, id := range ids {
					settle = append(settle, &settlement{mark: k.mark + id, limits: all, held: a, used: b})
				}
				same(of.newSettle(settle), m.settle(ids, k.holder, 0, all, a, b))
			case 2:
				serial := rapid.Int64Range(0, 12).Draw(t, "serial")
				c := of.newReport(k.mark+"by "+k.holder, serial)
				b = still(all, b)
				for i := range all {
					c.report(&all[i], a[i], b[i])
				}
				same(c, m.settle(nil, k.holder, serial, all, a, b))
			}
			if server.db.PTTL(ctx, k.hash).Val() == -1 {
				t.Fatal("the hash lives for ever")
			}
		}
	})
}

// several reserves for requests for the same limits, and returns them with the reply to all.
func (m *model) several(t *rapid.T, id, holder string, limits []Limit) (all []*request, replies []int64) {
	none := make([]int64, len(limits))
	for n := range rapid.IntRange(1, 4).Draw(t, "requests") {
		x := &request{id: id, limits: slices.Clone(limits)}
		if n > 0 {
			x.id = rapid.SampledFrom([]string{"a", "d", "e", "f"}).Draw(t, "another id")
			for i := range x.limits {
				x.limits[i].Units = rapid.Int64Range(0, x.limits[i].Max/2).Draw(t, "units")
			}
		}
		reply, _ := m.reserve(x.id, holder, x.limits, none)
		all, replies = append(all, x), append(replies, reply...)
	}
	return all, append(replies, m.end(limits, none)...)
}

// draw draws limits of a request and two numbers for each.
func draw(t *rapid.T, k *Subject, most []int64) (all []Limit, a, b []int64) {
	for i := range most {
		if !rapid.Bool().Draw(t, "has") {
			continue
		}
		n := rapid.Int64Range(0, most[i]+most[i]/8+1)
		all = append(all, k.of(i, most[i], n.Draw(t, "units")))
		a, b = append(a, n.Draw(t, "a")), append(b, n.Draw(t, "b"))
	}
	return all, a, b
}

// still makes requests at a time use nothing.
func still(all []Limit, used []int64) []int64 {
	for i := range all {
		if all[i].Bucket.window == 0 {
			used[i] = 0
		}
	}
	return used
}
