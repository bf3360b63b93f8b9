package auth

import (
	"bytes"
	"strings"
	"testing"

	"github.com/valyala/fasthttp"

	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/keys"
	"github.com/cognitora/dataplane/router/trust"
)

// FuzzIdentify checks who is let in by the headers of a request. KEY and GATEWAY in a value stand
// for the two keys that count, so that the fuzzer need not find them.
//
//   - Nobody is let in without one of the keys, word for word, and only its owner is.
//   - A request that shows two keys that differ is refused.
//   - Only a gateway has another tenant or a user. Both are the header's, if there is one of each.
//   - No error contains a key, or what was shown in its place.
func FuzzIdentify(f *testing.F) {
	for _, line := range [][4]string{
		{"Bearer KEY", "", "", ""}, {"", "KEY", "", ""}, {"bEARER KEY", "KEY", "acme", "u"}, {"Bearer KEY", "GATEWAY", "", ""},
		{"Bearer GATEWAY", "", "acme", "a@b"}, {"", "GATEWAY", "a\na", "u"}, {"Basic KEY", "", "", ""},
		{"Bearer KEY\nBearer GATEWAY", "", "", ""}, {"Bearer  KEY", "", "", ""}, {"", "KEY\nKEY", "a b", "u\nv"},
		{"Bearer KEY0", "GATEWAY ", "", "a,b"}, {"Bearer", "\x00", "\xff", "\x7f"}, {"", "cgn_01234567_", "", ""},
	} {
		f.Add(line[0], line[1], line[2], line[3])
	}
	var texts [2]string
	var ids [2]string
	var records []*keys.Record
	for i, scopes := range [][]string{{"inference"}, {"inference", "act_as"}} {
		texts[i], ids[i] = keys.Generate()
		r := &keys.Record{ID: ids[i], Tenant: "own", Scopes: scopes}
		r.SHA256, _ = keys.Hash(texts[i])
		records = append(records, r)
	}
	set := new(keys.Set)
	if err := set.Put(records); err != nil {
		f.Fatal(err)
	}
	d, spelled := &Door{Keys: set}, strings.NewReplacer("KEY", texts[0], "GATEWAY", texts[1])
	f.Fuzz(func(t *testing.T, authorization, key, tenant, user string) {
		h := new(fasthttp.RequestHeader)
		var sent [4][]string // the values of each header
		for i, lines := range []string{authorization, key, tenant, user} {
			if lines == "" {
				continue
			}
			for line := range strings.SplitSeq(lines, "\n") {
				sent[i] = append(sent[i], spelled.Replace(line))
				h.Add([]string{"Authorization", "x-api-key", headerTenant, headerUser}[i], spelled.Replace(line))
			}
		}
		shown := map[string]bool{}
		for _, line := range sent[0] {
			scheme, rest, _ := strings.Cut(line, " ")
			if !strings.EqualFold(scheme, "bearer") {
				rest = "" // counts for no key
			}
			shown[rest] = true
		}
		for _, line := range sent[1] {
			shown[line] = true
		}
		who, err := d.Identify(h, &Peer{Near: true, Certified: true})
		if (who == nil) == (err == nil) {
			t.Fatalf("%v, %v", who, err)
		}
		if err != nil {
			checkRefusal(t, err, texts[:], shown)
			return
		}
		owner := -1
		for i := range ids {
			if who.ID == ids[i] {
				owner = i
			}
		}
		if owner < 0 || len(shown) != 1 || !shown[texts[owner]] {
			t.Fatalf("%+v is let in by %q", who, sent)
		}
		checkActing(t, who, owner == 1, sent[2], sent[3])
	})
}

// checkRefusal checks that an error says nothing of what was shown.
func checkRefusal(t *testing.T, err *apierror.Error, texts []string, shown map[string]bool) {
	t.Helper()
	if err.Status != 401 && err.Status != 400 || err.Message == "" {
		t.Fatalf("%+v", err)
	}
	page := apierror.Body(nil, 0, err)
	for _, text := range texts {
		if bytes.Contains(page, []byte(text)) || strings.Contains(err.Reason+err.Param, text) {
			t.Fatalf("%s has a key", page)
		}
	}
	for text := range shown {
		if len(text) > 40 && bytes.Contains(page, []byte(text)) {
			t.Fatalf("%s has %q", page, text)
		}
	}
}

// checkActing checks for whom a principal acts who has sent these headers.
func checkActing(t *testing.T, who *trust.Principal, gateway bool, tenants, users []string) {
	t.Helper()
	tenant, user := "own", ""
	if gateway {
		if len(tenants) > 1 || len(users) > 1 {
			t.Fatalf("%q and %q name %+v", tenants, users, who)
		}
		if len(tenants) == 1 {
			tenant = tenants[0]
		}
		if len(users) == 1 {
			user = users[0]
		}
	}
	if who.Tenant != tenant || who.User != user || len(user) > maxUser || trust.CheckTenant(tenant) != nil ||
		strings.ContainsFunc(user, func(c rune) bool { return c <= ' ' || c > '~' || c == ',' }) {
		t.Fatalf("%+v is not %q, %q", who, tenant, user)
	}
}
