package keys

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/router/limits"
	"github.com/cognitora/dataplane/router/trust"
)

// key makes a key of the tenant acme.
func key(t testing.TB) (*Record, string) {
	t.Helper()
	text, id := Generate()
	r := &Record{ID: id, Tenant: "acme", Scopes: []string{"inference"}, Created: time.Now()}
	r.SHA256, _ = Hash(text)
	if err := r.Check(); err != nil {
		t.Fatal(err)
	}
	return r, text
}

func find(t testing.TB, s *Set, text string, at time.Time) Refusal {
	t.Helper()
	sum, _, ok := Parse([]byte(text))
	if !ok {
		t.Fatalf("%q is no key", text)
	}
	who, why := s.Find(sum, func() time.Time { return at })
	if (who == nil) != (why != None) {
		t.Fatalf("%v, %v", who, why)
	}
	return why
}

func TestSet(t *testing.T) {
	now := time.Now()
	var s Set
	a, textA := key(t)
	b, textB := key(t)
	if why := find(t, &s, textA, now); why != Unknown {
		t.Errorf("an empty set: %v", why)
	}
	if err := s.Put([]*Record{a, b}); err != nil {
		t.Fatal(err)
	}
	sum, _, _ := Parse([]byte(textA))
	who, _ := s.Find(sum, func() time.Time { return now })
	same := *a
	later := now.Add(time.Hour)
	ending := *b
	ending.Expires = &later
	if err := s.Put([]*Record{&same, &ending}); err != nil {
		t.Fatal(err)
	}
	if again, _ := s.Find(sum, func() time.Time { return now }); again != who {
		t.Error("the principal of an unchanged key is another one")
	}
	if before, after := find(t, &s, textB, now), find(t, &s, textB, later); before != None || after != Expired {
		t.Errorf("a key that expires: %v, %v", before, after)
	}
	ended := same
	ended.Revoked = &now
	if err := s.Put([]*Record{&ended}); err != nil {
		t.Fatal(err)
	}
	if why := find(t, &s, textA, now); why != Revoked || !who.Revoked() {
		t.Errorf("a revoked key: %v, its requests end: %v", why, who.Revoked())
	}
	if why := find(t, &s, textB, now); why != Unknown {
		t.Errorf("a key that is gone: %v", why)
	}
}

func TestRotate(t *testing.T) {
	now := time.Now()
	r, was := key(t)
	var s Set
	text := r.Rotate(now, time.Minute)
	if err := s.Put([]*Record{r}); err != nil {
		t.Fatal(err)
	}
	end := now.Add(time.Minute)
	a, b, c := find(t, &s, text, end), find(t, &s, was, now), find(t, &s, was, end)
	if a != None || b != None || c != Expired {
		t.Errorf("new %v, former %v, former later %v", a, b, c)
	}
	text = r.Rotate(now, 0)
	if err := s.Put([]*Record{r}); err != nil || find(t, &s, was, now) != Unknown || find(t, &s, text, now) != None {
		t.Errorf("without grace the former text counts, %v", err)
	}
}

// TestTwice: two records of one id, or of one text, are refused, and change nothing.
func TestTwice(t *testing.T) {
	a, textA := key(t)
	b, _ := key(t)
	var s Set
	if err := s.Put([]*Record{a}); err != nil {
		t.Fatal(err)
	}
	sameID, sameText := *b, *b
	sameID.ID, sameText.SHA256 = a.ID, a.SHA256
	for _, other := range []*Record{&sameID, &sameText} {
		if err := s.Put([]*Record{a, other}); err == nil || !strings.Contains(err.Error(), a.ID) {
			t.Errorf("%v", err)
		}
	}
	if why := find(t, &s, textA, time.Now()); why != None || s.Len() != 1 {
		t.Errorf("%v, %d keys", why, s.Len())
	}
}

// TestRevokeAfterAChange checks that a revocation ends the requests from before a rotation or an
// edit, and that a key that counts again is not revoked.
func TestRevokeAfterAChange(t *testing.T) {
	now := time.Now()
	var s Set
	r, text := key(t)
	var all []*trust.Principal
	put := func(change func(*Record)) {
		t.Helper()
		next := *r
		change(&next)
		r = &next
		if err := s.Put([]*Record{r}); err != nil {
			t.Fatal(err)
		}
		sum, _, _ := Parse([]byte(text))
		if who, why := s.Find(sum, func() time.Time { return now }); why == None {
			all = append(all, who)
		}
	}
	put(func(*Record) {})
	put(func(r *Record) { text = r.Rotate(now, 0) })
	put(func(r *Record) { r.Models = []string{"m"} })
	for i, who := range all {
		if who.Revoked() {
			t.Errorf("a change has revoked principal %d", i)
		}
	}
	put(func(r *Record) { r.Revoked = &now })
	put(func(r *Record) { r.Revoked = nil })
	if len(all) != 4 || !all[0].Revoked() || !all[1].Revoked() || !all[2].Revoked() || all[3].Revoked() {
		t.Errorf("%d principals: %+v", len(all), all)
	}
}

// TestTimeWithoutText checks that a time that cannot be written is refused when it is read.
func TestTimeWithoutText(t *testing.T) {
	r, _ := key(t)
	doc, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"2030-01-01T00:00:00+24:00", "2030-01-01T00:00:00Z"} {
		_, err := ParseRecord(append(doc[:len(doc)-1:len(doc)-1], `,"expires":"`+at+`"}`...))
		if (err == nil) != strings.HasSuffix(at, "Z") {
			t.Errorf("%s: %v", at, err)
		}
	}
	far := *r
	at := time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
	if far.Expires = &at; far.Check() == nil || far.same(r) || far.same(&far) {
		t.Error("a time beyond the year 9999 is taken")
	}
}

func TestCheck(t *testing.T) {
	for want, change := range map[string]func(*Record){
		"id": func(r *Record) { r.ID = "short" }, "sha256": func(r *Record) { r.SHA256 = "00" },
		"previous.sha256":  func(r *Record) { r.Previous = &Previous{} },
		"tenant":           func(r *Record) { r.Tenant = "a b" },
		"name":             func(r *Record) { r.Name = "a\nb" },
		"scopes: \"all\"":  func(r *Record) { r.Scopes = []string{"all"} },
		"scopes are empty": func(r *Record) { r.Scopes = nil },
		"models":           func(r *Record) { r.Models = []string{"a*b"} },
	} {
		r, _ := key(t)
		change(r)
		if err := r.Check(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	for doc, want := range map[string]string{
		"": "ends too early", "{": "ends too early", "{}{}": "follows", `{"expire":1}`: "unknown field",
		"[]": "cannot unmarshal",
	} {
		if _, err := ParseRecord([]byte(doc)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", doc, err)
		}
	}
}

// TestLimitsOutliveChanges: what was used of a key's limits stays used when its record changes, and
// when it is revoked and counts again.
func TestLimitsOutliveChanges(t *testing.T) {
	now := time.Now()
	var s Set
	r, text := key(t)
	r.Limits = limits.Rates{RequestsPerDay: 4}
	sum, _, _ := Parse([]byte(text))
	put := func(change func(*Record)) {
		t.Helper()
		next := *r
		change(&next)
		if r = &next; r.Check() != nil {
			t.Fatal(r.Check())
		}
		if err := s.Put([]*Record{r}); err != nil {
			t.Fatal(err)
		}
	}
	remaining := func(want int64) {
		t.Helper()
		who, why := s.Find(sum, func() time.Time { return now })
		if why != None {
			t.Fatal(why)
		}
		var x limits.Reservation
		x.Add(who.Limits())
		if left, _ := x.Left(limits.Requests, now); left.Remaining != want {
			t.Errorf("%d requests are left, want %d", left.Remaining, want)
		}
	}
	put(func(*Record) {})
	who, _ := s.Find(sum, func() time.Time { return now })
	for range 2 {
		var x limits.Reservation
		x.Add(who.Limits())
		x.Reserve(limits.Use{Requests: 1}, now)
	}
	remaining(2)
	put(func(r *Record) { r.Scopes = []string{"models"} })
	remaining(2)
	put(func(r *Record) { r.Limits.RequestsPerDay = 10 })
	remaining(8)
	put(func(r *Record) { r.Revoked = &now })
	put(func(r *Record) { r.Revoked = nil })
	remaining(8)
	r.Limits.Concurrent = -1
	if err := r.Check(); err == nil || !strings.Contains(err.Error(), "limits: concurrent: -1") {
		t.Error(err)
	}
}
