package leg

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/router/trust"
)

// TestClientsAskForNoHandoverThroughCaches checks that engines get a client's kv_transfer_params
// only without the members of the connector kvcached.
func TestClientsAskForNoHandoverThroughCaches(t *testing.T) {
	d := start(t, 1)
	for params, goes := range map[string]bool{
		`{"cgn_tokens":1e9,"cgn_wait_ms":10000}`: true, `{"cgn_store":true}`: true,
		`{"x":1,"cgn_sp\u0061ce":null}`:              true,
		`{"do_remote_prefill":true,"cgn_wait_ms":1}`: true, `{"do_remote_prefill":true}`: false, `{}`: false,
		`{"x":{"cgn_tokens":1}}`: false, `null`: false, `["cgn_tokens"]`: false, `"cgn_tokens"`: false,
	} {
		for _, name := range []string{"kv_transfer_params", `kv\u005ftransfer_params`} {
			body := fmt.Sprintf(`{"model":"sim","messages":[],"%s":%s}`, name, params)
			l := wanted(t, d, asked(t, d, []byte(body)))
			at, fail := l.first()
			if fail != nil {
				t.Fatal(fail)
			}
			a := l.spare()
			a.member = l.pool.members[at]
			out, err := l.prepare(a)
			if err != nil {
				t.Fatal(err)
			}
			want := body
			if goes {
				want = `{"model":"sim","messages":[]}`
			}
			if got := string(bytes.Join(out.Body, nil)); got != want {
				t.Errorf("%s: the engine gets %s", body, got)
			}
			l.Finish(relay.ClientGone)
		}
	}
}

// TestPriorityForTheEngine checks that a key needs a priority or the scope route.pin before an
// engine gets the priority of its requests.
func TestPriorityForTheEngine(t *testing.T) {
	d := start(t, 1)
	for _, c := range []struct {
		who  *trust.Principal
		gets bool
	}{
		{nil, true}, {&trust.Principal{Tenant: "default"}, true}, {&trust.Principal{ID: "a"}, false},
		{&trust.Principal{ID: "a", Priority: 1}, true}, {&trust.Principal{ID: "a", Scopes: trust.Pin}, true},
		{&trust.Principal{ID: "a", Scopes: trust.Inference | trust.Models | trust.ActAs}, false},
	} {
		for _, member := range []string{`"priority":-9`, `"pri\u006frity":"-9"`, `"priority":0,"x":1,"priority":-9`} {
			body := `{"model":"sim","messages":[],` + member + `}`
			r := asked(t, d, []byte(body))
			r.Who = c.who
			l := wanted(t, d, r)
			at, fail := l.first()
			if fail != nil {
				t.Fatal(fail)
			}
			a := l.spare()
			a.member = l.pool.members[at]
			out, err := l.prepare(a)
			if err != nil {
				t.Fatal(err)
			}
			got := string(bytes.Join(out.Body, nil))
			if gets := got == body; gets != c.gets || !gets && strings.Contains(got, "rity") {
				t.Errorf("%+v, %s: the engine gets %s", c.who, body, got)
			}
			l.Finish(relay.ClientGone)
		}
	}
}
