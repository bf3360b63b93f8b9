package oidc

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/router/trust"
)

// TestRememberedAllocatesNothing holds a token that is remembered to no allocation.
func TestRememberedAllocatesNothing(t *testing.T) {
	v := ready(t, options(provide()))
	token := []byte(good())
	if n := testing.AllocsPerRun(100, func() {
		if who, _ := v.Identify(token, time.Now()); who == nil {
			t.Fatal("refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestCacheIsBounded fills a cache with more verdicts than it has room for.
func TestCacheIsBounded(t *testing.T) {
	c, now := newCache(64), time.Now()
	last := digest{}
	for i := range 1000 {
		last = digest{byte(i), byte(i >> 8), 8: byte(i)}
		c.put(&verdict{of: last, generation: 1, until: now.Add(time.Minute)}, now)
		if c.get(&last, 1, now) == nil {
			t.Fatal("the latest verdict is not there")
		}
	}
	held := 0
	for i := range c.places {
		if c.places[i].Load() != nil {
			held++
		}
	}
	if held > 64 || c.get(&last, 2, now) != nil || c.get(&last, 1, now.Add(time.Minute)) != nil {
		t.Errorf("%d verdicts, or some of other keys, or some that are over", held)
	}
}

// TestTogether lets many clients ask with few tokens, while the keys change.
func TestTogether(t *testing.T) {
	s := provide()
	v := ready(t, options(s))
	tokens := make([][]byte, 32)
	for i := range tokens {
		tokens[i] = []byte(good(object{"sub": fmt.Sprint(i)}))
	}
	var asking sync.WaitGroup
	for range 8 {
		asking.Go(func() {
			for i := range 2000 {
				at := i % len(tokens)
				if who, why := v.Identify(tokens[at], time.Now()); why != None || who.ID != fmt.Sprint("oidc:", at) {
					t.Errorf("%v, %v", who, why)
					return
				}
			}
		})
	}
	for range 3 {
		now := *v.keys.Load()
		now.generation++
		v.keys.Store(&now)
	}
	asking.Wait()
}

// FuzzIdentify checks that no text makes the check fail, and that nothing counts but what the
// provider has signed.
func FuzzIdentify(f *testing.F) {
	f.Add(good())
	for _, a := range attacks() {
		if len(a.token) <= maxToken {
			f.Add(a.token)
		}
	}
	v := ready(f, options(provide()))
	signed := map[string]bool{}
	f.Fuzz(func(t *testing.T, token string) {
		v.mu.Lock()
		v.began = time.Now() // the keys are not read again
		v.mu.Unlock()
		who, why := v.Identify([]byte(token), time.Now())
		if (who != nil) != (why == None) {
			t.Fatalf("%v, %v", who, why)
		}
		if who == nil {
			return
		}
		part := strings.Split(token, ".")
		signed[part[0]+part[1]] = true
		if len(signed) > 1 || who.ID != "oidc:anna" || who.Scopes != trust.Inference {
			t.Fatalf("%q counts: %+v", token, who)
		}
	})
}

func BenchmarkRemembered(b *testing.B) {
	v := ready(b, options(provide()))
	for _, groups := range []int{1, 20} {
		names := []string{"ml"}
		for i := range groups - 1 {
			names = append(names, fmt.Sprintf("another-group-%02d", i))
		}
		token := []byte(good(object{"groups": names}))
		b.Run(fmt.Sprintf("%d bytes", len(token)), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, why := v.Identify(token, time.Now()); why != None {
					b.Fatal(why)
				}
			}
		})
	}
}

func BenchmarkFirst(b *testing.B) {
	v := ready(b, options(provide()))
	for what, token := range map[string]string{
		"RS256": good(), "ES256": sign(header(object{"alg": "ES256", "kid": "e1"}), payload(), ecKey()),
	} {
		b.Run(what, func(b *testing.B) {
			for b.Loop() {
				if _, _, why := v.check([]byte(token), v.keys.Load(), time.Now()); why != None {
					b.Fatal(why)
				}
			}
		})
	}
}
