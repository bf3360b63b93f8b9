package shared

import (
	"cmp"
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

var (
	//go:embed common.lua
	commonSource string
	//go:embed reserve.lua
	reserveSource string
	//go:embed settle.lua
	settleSource string
	//go:embed renew.lua
	renewSource string
)

// script is one that Redis knows by its hash once it is loaded.
type script struct{ source, hash string }

func newScript(source string) *script {
	sum := sha1.Sum([]byte(source))
	return &script{source, hex.EncodeToString(sum[:])}
}

// scripts are what Redis runs.
type scripts struct{ reserve, settle, renew *script }

func newScripts() *scripts {
	return &scripts{newScript(commonSource + reserveSource), newScript(commonSource + settleSource),
		newScript(commonSource + renewSource)}
}

// Lives of what is in Redis.
const (
	holderLife = 30 * time.Second // of a router's leases, or its running requests, unless renewed
	routerLife = 15 * time.Second // of a router that is not heard of
	markLife   = 24 * time.Hour   // of a reservation that is never settled
)

// call is one run of a script.
type call struct {
	script *script
	keys   []string
	args   []any
	done   func(reply []int64, err error) // nil: nobody waits
	// ordered says that the call must not run after later ones: it sets what a holder holds, and
	// would take from it what they have added.
	ordered bool
}

var errLate = errors.New("the server did not know the script in its turn")

// bucket adds a bucket, with numbers for the script.
func (c *call) bucket(l *Limit, rest ...int64) {
	b := l.Bucket
	place := slices.Index(c.keys, b.subject.hash) + 1 // as Lua counts
	if place == 0 {
		c.keys = append(c.keys, b.subject.hash)
		place = len(c.keys)
	}
	window := b.window.Microseconds()
	if b.window == Month {
		window = -1
	}
	numbers := make([]byte, 0, 8*(3+len(rest)))
	numbers = packed(packed(numbers, int64(place), l.Max, window), rest...)
	c.args = append(c.args, b.field, b.subject.holder, numbers)
}

// packed appends numbers as a script reads them: as Lua's own, which are exact up to 2^53.
func packed(to []byte, all ...int64) []byte {
	for _, n := range all {
		to = binary.LittleEndian.AppendUint64(to, math.Float64bits(float64(n)))
	}
	return to
}

// newRequests reserves for requests for the same limits, for each with a mark.
func (s *scripts) newRequests(all []*request) *call {
	c := &call{script: s.reserve, args: []any{len(all), markLife.Milliseconds(), holderLife.Microseconds()}}
	for _, x := range all {
		c.keys = append(c.keys, markOf(x.limits, x.id))
	}
	for i := range all[0].limits {
		limit := &all[0].limits[i]
		numbers := make([]int64, 2, 2+len(all))
		if limit.Bucket.atOnce {
			numbers[1] = 1
		}
		for _, x := range all {
			numbers = append(numbers, x.limits[i].Units)
		}
		c.bucket(limit, numbers...)
	}
	return c
}

// newLease begins a reservation for a lease. mark is a key in the subject's slot.
func (s *scripts) newLease(mark string) *call {
	return &call{script: s.reserve, keys: []string{mark}, args: []any{1, 0, holderLife.Microseconds()}}
}

// lease adds a bucket to a lease: units that a request needs, and units wanted beyond.
func (c *call) lease(l *Limit, need, want int64) { c.bucket(l, want, 0, need) }

// newReport begins a report of what a holder holds, and of what was used of it. mark is the key of
// the holder's serials. What was used with a serial counts once; 0: nothing was used.
func (s *scripts) newReport(mark string, serial int64) *call {
	return &call{script: s.settle, keys: []string{mark}, args: []any{0, holderLife.Microseconds(), serial},
		ordered: true}
}

// report adds a bucket to a report.
func (c *call) report(l *Limit, held, used int64) { c.bucket(l, held, used) }

// rows says whether a report has a bucket.
func (c *call) rows() bool { return len(c.args) > 3 }

// newSettle settles reservations of the same limits.
func (s *scripts) newSettle(all []*settlement) *call {
	c := &call{script: s.settle, args: []any{len(all), holderLife.Microseconds(), 0}}
	for _, x := range all {
		c.keys = append(c.keys, x.mark)
	}
	for i := range all[0].limits {
		numbers := make([]int64, 2, 2+2*len(all))
		for _, x := range all {
			numbers = append(numbers, x.held[i], x.used[i])
			numbers[0] += x.held[i]
			numbers[1] += x.used[i]
		}
		c.bucket(&all[0].limits[i], numbers...)
	}
	return c
}

// newRenew renews a holder of a subject.
func (s *scripts) newRenew(of *Subject) *call {
	return &call{script: s.renew, keys: []string{of.hash},
		args: []any{holderLife.Microseconds(), of.holder}}
}

// newHear makes a router known.
func (s *scripts) newHear(router string) *call {
	return &call{script: s.renew, keys: []string{routersKey}, args: []any{routerLife.Microseconds(), router, 1}}
}

// noScript says whether the server does not know the script: it has restarted, or is another one.
func noScript(err error) bool { return redis.HasErrorPrefix(err, "NOSCRIPT") }

// run runs one call. A server that does not know the script gets its text.
func (s *scripts) run(ctx context.Context, c redis.UniversalClient, k *call) ([]int64, error) {
	reply, err := c.EvalSha(ctx, k.script.hash, k.keys, k.args...).Int64Slice()
	if noScript(err) {
		reply, err = c.Eval(ctx, k.script.source, k.keys, k.args...).Int64Slice()
	}
	return reply, err
}

// runAll runs calls in one round trip, and tells each what became of it. Calls whose script the
// server does not know take a second one, with the scripts' texts, but for ordered ones, which
// fail. The error is that of the first call that has failed for another reason.
func (s *scripts) runAll(ctx context.Context, c redis.UniversalClient, calls []*call) error {
	unknown, err := s.pipeline(ctx, c, calls, func(p redis.Pipeliner, k *call) *redis.Cmd {
		return p.EvalSha(ctx, k.script.hash, k.keys, k.args...)
	})
	unknown = slices.DeleteFunc(unknown, func(k *call) bool {
		if k.ordered {
			k.tell(nil, cmp.Or(c.ScriptLoad(ctx, k.script.source).Err(), errLate))
		}
		return k.ordered
	})
	if len(unknown) > 0 {
		_, again := s.pipeline(ctx, c, unknown, func(p redis.Pipeliner, k *call) *redis.Cmd {
			return p.Eval(ctx, k.script.source, k.keys, k.args...)
		})
		err = cmp.Or(err, again)
	}
	return err
}

// pipeline runs calls, and returns those whose script the server does not know.
func (s *scripts) pipeline(ctx context.Context, c redis.UniversalClient, calls []*call,
	add func(redis.Pipeliner, *call) *redis.Cmd) (unknown []*call, err error) {
	pipe := c.Pipeline()
	replies := make([]*redis.Cmd, len(calls))
	for i, k := range calls {
		replies[i] = add(pipe, k)
	}
	_, refused := pipe.Exec(ctx) // each call has its own error, unless the server takes none
	for i, k := range calls {
		reply, failed := replies[i].Int64Slice()
		if failed != nil && replies[i].Err() == nil {
			failed = cmp.Or(refused, failed)
		}
		if noScript(failed) {
			unknown = append(unknown, k)
			continue
		}
		if failed != nil && err == nil {
			err = failed
		}
		k.tell(reply, failed)
	}
	return unknown, err
}

func (k *call) tell(reply []int64, err error) {
	if k.done != nil {
		k.done(reply, err)
	}
}

// escape makes a part of a key out of a name, so that different names make different keys.
func escape(name string) string {
	var b strings.Builder
	for i := range len(name) {
		switch c := name[i]; c {
		case '{', '}', ':', '%':
			const digits = "0123456789abcdef"
			b.Write([]byte{'%', digits[c>>4], digits[c&15]})
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}
