package leg

import (
	"bytes"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/isolation"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/router/trust"
)

// TestEnginesKeepClientsApart checks the body for an engine, which has the salt in place of what
// the client sent, and nothing by which a client could take another one's blocks.
func TestEnginesKeepClientsApart(t *testing.T) {
	salts := isolation.New(isolation.Tenant, bytes.Repeat([]byte("s"), isolation.SecretBytes))
	who := &trust.Principal{Tenant: "acme"}
	text := func(own []byte) string { s := salts.Of(who, own); return string(s[:]) }
	named := strings.NewReplacer("BASE", text(nil), "OF", text([]byte("x")), "AGAIN", text([]byte(text(nil))))
	for body, want := range map[string]string{
		`{"model":"sim","messages":[]}`:                            `{"cache_salt":"BASE","model":"sim","messages":[]}`,
		`{"model":"sim","messages":[],"cache_salt":"x"}`:           `{"model":"sim","messages":[],"cache_salt":"OF"}`,
		`{"model":"sim","nvext":{"cache_salt":"x"},"messages":[]}`: `{"cache_salt":"OF","model":"sim","messages":[]}`,
		`{"model":"sim","messages":[],"kv_transfer_params":{}}`:    `{"cache_salt":"BASE","model":"sim","messages":[]}`,
		`{"model":"sim","bootstrap_room":1,"messages":[]}`:         `{"cache_salt":"BASE","model":"sim","messages":[]}`,
		`{"model":"sim","messages":[],"disaggregated_params":{}}`:  `{"cache_salt":"BASE","model":"sim","messages":[]}`,
		`{"model":"sim","nvext":{"dp_rank":0},"messages":[]}`: `{"cache_salt":"BASE","model":"sim",` +
			`"nvext":{"dp_rank":0},"messages":[]}`,
		`{"model":"sim","messages":[],"cache_s\u0061lt":"BASE"}`: `{"model":"sim","messages":[],` +
			`"cache_s\u0061lt":"AGAIN"}`,
	} {
		body, want = named.Replace(body), named.Replace(want)
		d := start(t, 1)
		d.o.PassNvext = true
		r := request.New()
		r.API, r.Method, r.Who, r.Salts = scan.Chat, "POST", who, salts
		r.SetHead(request.Head{Method: []byte("POST"), Path: []byte("/v1/chat/completions")})
		r.Own([]byte(body), nil)
		if err := r.Read(nil, nil); err != nil {
			t.Fatal(err)
		}
		l := wanted(t, d, r)
		at, fail := l.first()
		if fail != nil {
			t.Fatal(fail)
		}
		a := l.spare()
		a.member = l.pool.members[at]
		for range 2 {
			out, err := l.prepare(a)
			if err != nil {
				t.Fatal(err)
			}
			if got := string(bytes.Join(out.Body, nil)); got != want {
				t.Errorf("%s\n got %s\nwant %s", body, got, want)
			}
		}
		a.member.node.salt.Store(7) // D has read too late once
		out, err := l.prepare(a)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(bytes.Join(out.Body, nil)); !strings.Contains(got, `":"cgn-7-`+string(r.Scan.CacheSalt)+`"`) {
			t.Errorf("%s: with the node's own salt: %s", body, got)
		}
		l.Finish(relay.ClientGone)
	}
}

// TestWhichRequestsAreSalted checks for which APIs engines get a salt.
func TestWhichRequestsAreSalted(t *testing.T) {
	for api, want := range map[scan.API][2]bool{
		scan.Chat: {true, true}, scan.Completions: {true, true}, scan.Responses: {true, false},
		scan.Messages: {true, false}, scan.Embeddings: {true, false}, scan.Rerank: {true, false},
		scan.Other: {true, false}, scan.Tokenize: {}, scan.Detokenize: {}, scan.CountTokens: {},
	} {
		for i, keeps := range []fleet.Apart{fleet.BySalt, fleet.BySaltOfChats} {
			if takesSalt(api, keeps) != want[i] {
				t.Errorf("%v: %v", api, !want[i])
			}
		}
		if takesSalt(api, fleet.Unproven) != want[0] {
			t.Errorf("%v, an engine of an unknown kind: %v", api, !want[0])
		}
	}
}
