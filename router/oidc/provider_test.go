package oidc

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
)

// running runs test with a verifier that follows the site's keys, in virtual time.
func running(t *testing.T, s *site, test func(t *testing.T, v *Verifier)) {
	t.Helper()
	rsaKey()
	otherRSA() // made outside, because it takes long
	synctest.Test(t, func(t *testing.T) {
		v := New(options(s))
		ctx, stop := context.WithCancel(t.Context())
		var run sync.WaitGroup
		run.Go(func() { v.Run(ctx) })
		synctest.Wait()
		test(t, v)
		stop()
		run.Wait()
	})
}

func (v *Verifier) verdict(token string) Refusal {
	_, why := v.Identify([]byte(token), time.Now())
	return why
}

// minted returns a valid token whose time is the bubble's.
func minted(kid string, changes ...object) string {
	return sign(header(object{"kid": kid}), payload(changes...), rsaKey())
}

// TestUnknownKids (attack 9): a flood of random kids reads the keys every 10 s at most, and tokens
// with a known kid go on.
func TestUnknownKids(t *testing.T) {
	s := provide()
	running(t, s, func(t *testing.T, v *Verifier) {
		began := time.Now()
		verdicts := map[Refusal]int{}
		for i := range 600 {
			verdicts[v.verdict(sign(header(object{"kid": fmt.Sprint("kid-", i)}), payload(), []byte("x")))]++
			time.Sleep(100 * time.Millisecond)
			if i%100 == 0 && v.verdict(minted("r1")) != None {
				t.Error("a good token is refused")
			}
		}
		most := 1 + int64(time.Since(began)/readAgain)
		if n := s.visits.Load(); n > most || n < 5 {
			t.Errorf("%d visits of the provider in %v", n, time.Since(began))
		}
		if verdicts[UnknownKey] == 0 || verdicts[Pending] == 0 || verdicts[UnknownKey]+verdicts[Pending] != 600 {
			t.Errorf("%v", verdicts)
		}
	})
}

// TestBadSignatures (attack 10): a flood of bad signatures with a known kid never reads the keys,
// and displaces no good token.
func TestBadSignatures(t *testing.T) {
	s := provide()
	running(t, s, func(t *testing.T, v *Verifier) {
		time.Sleep(time.Minute)
		token := minted("r1")
		if why := v.verdict(token); why != None {
			t.Fatal(why)
		}
		for i := range maxRefused + maxRefused/4 {
			if why := v.verdict(sign(header(), payload(object{"jti": i}), make([]byte, 256))); why != Signature {
				t.Fatal(why)
			}
		}
		bad := sign(header(), payload(object{"jti": "again"}), make([]byte, 256))
		v.verdict(bad)
		known := digest(sha256.Sum256([]byte(bad)))
		if v.bad.get(&known, 1, time.Now()) == nil || v.bad.get(&known, 1, time.Now().Add(refusedFor)) != nil {
			t.Error("a bad signature is not remembered for 10 s")
		}
		if n := s.visits.Load(); n != 1 {
			t.Errorf("%d visits of the provider", n)
		}
		sum, hits := digest(sha256.Sum256([]byte(token))), v.Hits()
		for i := range byte(4 * ways) { // refusals whose place would be that of the good token
			near := sum
			near[8], near[9] = i, ^sum[9]
			v.bad.put(&verdict{of: near, generation: 1, until: time.Now().Add(refusedFor), why: Signature}, time.Now())
		}
		if why := v.verdict(token); why != None || v.Hits() != hits+1 {
			t.Errorf("the good token: %v, remembered %v", why, v.Hits() > hits)
		}
	})
}

// TestRotation (attack 20): a token of a new key counts at once, even if many ask, and one of a
// removed key ends with the next reading, though it was remembered.
func TestRotation(t *testing.T) {
	s := provide()
	running(t, s, func(t *testing.T, v *Verifier) {
		time.Sleep(time.Minute)
		old := minted("r1", object{"exp": time.Now().Add(time.Hour).Unix()})
		if why := v.verdict(old); why != None {
			t.Fatal(why)
		}
		s.set(func() { s.keys = append(s.keys, jose.JSONWebKey{Key: rsaKey().Public(), KeyID: "r2"}) })
		var asking sync.WaitGroup
		for range 16 {
			asking.Go(func() {
				if why := v.verdict(minted("r2")); why != None {
					t.Error(why)
				}
			})
		}
		asking.Wait()
		if n := s.visits.Load(); n != 2 {
			t.Errorf("%d visits of the provider", n)
		}
		s.set(func() { s.keys = s.keys[1:] })
		if why := v.verdict(old); why != None {
			t.Errorf("before the keys are read: %v", why)
		}
		time.Sleep(readAgain)
		v.verdict(minted("r9")) // makes the router read the keys, long before it would forget the token
		if why := v.verdict(old); why != Pending {
			t.Errorf("once the key is gone: %v", why)
		}
		time.Sleep(readAgain)
		for _, when := range []string{"later", "again"} {
			if why := v.verdict(old); why != UnknownKey {
				t.Errorf("%s: %v", when, why)
			}
		}
	})
}

// TestTokenEnds: a token that is remembered ends at its exp, with the leeway, and is checked again
// after 5 minutes.
func TestTokenEnds(t *testing.T) {
	running(t, provide(), func(t *testing.T, v *Verifier) {
		now := time.Now()
		short, long := minted("r1", object{"exp": now.Unix() + 60}), minted("r1", object{"exp": now.Unix() + 3600})
		for _, token := range []string{short, long} {
			if why := v.verdict(token); why != None {
				t.Fatal(why)
			}
		}
		time.Sleep(time.Until(time.Unix(now.Unix()+90, 0)) - 1)
		if why := v.verdict(short); why != None || v.Hits() != 1 {
			t.Errorf("just before the end: %v", why)
		}
		time.Sleep(time.Nanosecond)
		if why := v.verdict(short); why != Expired {
			t.Errorf("at the end: %v", why)
		}
		time.Sleep(cachedFor)
		if why := v.verdict(long); why != None || v.checks[None].Load() != 3 {
			t.Errorf("after 5 minutes: %v, %d checks", why, v.checks[None].Load())
		}
	})
}

// TestProviderAway (attack 21): with a provider that is down from the start tokens get a verdict
// within the stated time, and count once it is up. While it is down later, its keys count on.
func TestProviderAway(t *testing.T) {
	s := provide()
	s.down = true
	running(t, s, func(t *testing.T, v *Verifier) {
		began := time.Now()
		if why := v.verdict(minted("r1")); why != Pending || time.Since(began) > askWait {
			t.Errorf("%v after %v", why, time.Since(began))
		}
		if v.Known() || !strings.Contains(v.Problem(), "no route to id.test") {
			t.Errorf("known %v, problem %q", v.Known(), v.Problem())
		}
		s.set(func() { s.down = false })
		time.Sleep(readAgain)
		if why := v.verdict(minted("r1")); why != None || !v.Known() || v.Problem() != "" {
			t.Errorf("%v, known %v, problem %q", why, v.Known(), v.Problem())
		}
		s.set(func() { s.down = true })
		time.Sleep(time.Hour)
		if why := v.verdict(minted("r1")); why != None {
			t.Errorf("the keys read last: %v", why)
		}
		_, failed := v.Readings()
		if n, age, _ := v.Keys(time.Now()); n != 3 || age < time.Hour-readEvery || failed < 300 || failed > 361 {
			t.Errorf("%d keys of %v ago, %d readings failed", n, age, failed)
		}
		if why := v.verdict(minted("r9")); why != Pending {
			t.Errorf("an unknown key: %v", why)
		}
	})
}

// TestBadProviders (attack 21): what a provider answers cannot hang the router, fill its memory,
// lead it elsewhere or take its keys away.
func TestBadProviders(t *testing.T) {
	doc := func(w http.ResponseWriter, keys string) { fmt.Fprintf(w, `{"issuer":%q,"jwks_uri":%q}`, issuer, keys) }
	to := func(place string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, place, http.StatusFound) }
	}
	onKeys := func(answer http.HandlerFunc) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/keys" {
				doc(w, issuer+"/keys")
				return
			}
			answer(w, r)
		}
	}
	for what, c := range map[string]struct {
		serve http.HandlerFunc
		want  string
	}{
		"slow":           {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, "deadline exceeded"},
		"huge":           {onKeys(func(w http.ResponseWriter, _ *http.Request) { w.Write(make([]byte, maxAnswer+1)) }), "more than"},
		"redirecting":    {to("https://evil.test/"), "another place"},
		"to plain HTTP":  {to("http://id.test/"), "another place"},
		"in circles":     {to("/"), "too often"},
		"failing":        {onKeys(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) }), "answers 500"},
		"another issuer": {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"issuer":"https://id.test/"}`) }, "of the issuer"},
		"keys in a file": {func(w http.ResponseWriter, _ *http.Request) { doc(w, "file:///etc/passwd") }, "no URL of a host"},
		"keys by HTTP":   {func(w http.ResponseWriter, _ *http.Request) { doc(w, "http://id.test/keys") }, "neither https"},
		"no JSON":        {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }, "no discovery document"},
		"no keys":        {onKeys(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"keys":[]}`) }), "no key with a kid"},
		"no JWK Set":     {onKeys(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `[]`) }), "no JWK Set"},
		"countless keys": {onKeys(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprintf(w, `{"keys":[%s{}]}`, strings.Repeat("{},", maxKeys))
		}), "at most 256"},
	} {
		t.Run(what, func(t *testing.T) {
			s := provide()
			running(t, s, func(t *testing.T, v *Verifier) {
				s.set(func() { s.serve = c.serve })
				time.Sleep(readEvery + readWithin)
				if !strings.Contains(v.Problem(), c.want) {
					t.Errorf("the problem is %q", v.Problem())
				}
				if why := v.verdict(minted("r1")); why != None {
					t.Errorf("a token of the keys read last: %v", why)
				}
			})
		})
	}
}

// endless is a body without an end. It counts the bytes that were read.
type endless struct{ read int }

func (e *endless) Read(b []byte) (int, error) {
	e.read += len(b)
	if e.read > 1<<30 {
		return 0, io.ErrUnexpectedEOF
	}
	return len(b), nil
}

func (e *endless) Close() error { return nil }

// RoundTrip answers each request with e.
func (e *endless) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Body: e}, nil
}

// TestEndlessAnswer (attack 21): of an answer without an end the router reads no more than it
// keeps.
func TestEndlessAnswer(t *testing.T) {
	body, o := &endless{}, options(nil)
	o.Transport = body
	if err := New(o).look(t.Context()); err == nil || body.read > maxAnswer+64<<10 {
		t.Errorf("%d bytes were read, %v", body.read, err)
	}
}

// TestSlowProvider: a request with an unknown kid waits for a slow provider as long as stated, and
// one with a known kid does not wait.
func TestSlowProvider(t *testing.T) {
	s := provide()
	running(t, s, func(t *testing.T, v *Verifier) {
		time.Sleep(time.Minute)
		s.set(func() { s.serve = func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() } })
		began := time.Now()
		if why := v.verdict(minted("r9")); why != Pending || time.Since(began) != askWait {
			t.Errorf("%v after %v", why, time.Since(began))
		}
		began = time.Now()
		if why := v.verdict(minted("r1")); why != None || time.Since(began) != 0 {
			t.Errorf("%v after %v", why, time.Since(began))
		}
	})
}

// TestBusy: checks of signatures take turns, and a request waits 1 s for its turn. A token that is
// remembered needs none.
func TestBusy(t *testing.T) {
	running(t, provide(), func(t *testing.T, v *Verifier) {
		token := minted("r1")
		v.verdict(token)
		for range cap(v.slots) {
			v.slots <- struct{}{}
		}
		began := time.Now()
		if why := v.verdict(minted("r1", object{"jti": 1})); why != Busy || time.Since(began) != slotWait {
			t.Errorf("%v after %v", why, time.Since(began))
		}
		if why := v.verdict(token); why != None {
			t.Errorf("a token that is remembered: %v", why)
		}
		time.AfterFunc(slotWait/2, func() { <-v.slots })
		if why := v.verdict(minted("r1", object{"jti": 2})); why != None {
			t.Errorf("once a slot is free: %v", why)
		}
	})
}

func TestCheckURL(t *testing.T) {
	for at, good := range map[string]bool{
		"https://id.test": true, "https://id.test/a?p=c": true, "http://127.0.0.1:1/dex": true, "http://[::1]/": true,
		"http://localhost:1": true, "http://id.test": false, "https://": false, "": false, "id.test": false,
		"https://u:p@id.test": false, "file:///a": false, "http://127.0.0.1.id.test": false, "https://id.test#a": false,
	} {
		if err := CheckURL(at); (err == nil) != good {
			t.Errorf("%q: %v", at, err)
		}
	}
}

// TestHops: the router follows 3 redirects.
func TestHops(t *testing.T) {
	next := must(http.NewRequest("GET", issuer, nil))
	for n := 1; n <= maxHops+1; n++ {
		if err := checkRedirect(next, slices.Repeat([]*http.Request{next}, n)); (err == nil) != (n <= maxHops) {
			t.Errorf("%d: %v", n, err)
		}
	}
}

// TestWishIsFulfilled: a wish for a reading that comes as one begins makes no further one.
func TestWishIsFulfilled(t *testing.T) {
	v := New(options(provide()))
	v.wake <- struct{}{}
	if v.begin(); len(v.wake) != 0 {
		t.Error("the keys would be read twice in a row")
	}
}
