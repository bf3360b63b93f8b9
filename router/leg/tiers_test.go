package leg

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/usage"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/holdings"
)

// TestTokensByTier: the tokens that an engine did not compute count for the nearest tiers that were
// believed to have them, and all of them count once.
func TestTokensByTier(t *testing.T) {
	warm := holdings.Reach{Device: 10, Host: 50, Disk: 60, Shared: 100}
	type answer struct {
		reach  holdings.Reach
		report usage.Counts
		handed bool   // another answer follows, to a prompt that another node has computed
		want   string // tokens by tier, believed/found
	}
	for name, c := range map[string]answer{
		"all that was believed":   {warm, reported(6400, 1600), false, "device 160/160 host 640/640 disk 160/160 shared 640/640"},
		"less":                    {warm, reported(6400, 816), false, "device 160/160 host 640/640 disk 160/16 shared 640/0"},
		"nothing":                 {warm, reported(6400, 0), false, "device 160/0 host 640/0 disk 160/0 shared 640/0"},
		"more":                    {holdings.Reach{Host: 50}, reported(6400, 1000), false, "host 800/800 unknown /200"},
		"a tier that adds none":   {holdings.Reach{Device: 50, Host: 50, Disk: 50}, reported(6400, 800), false, "device 800/800"},
		"twice as many tokens":    {holdings.Reach{Host: 50}, reported(12800, 1600), false, "host 1600/1600"},
		"handed over":             {holdings.Reach{Host: 50}, reported(6400, 800), true, "host 800/800 prefill /800"},
		"no prompt in the report": {warm, usage.Counts{}, false, ""},
		"no cached tokens in it":  {warm, usage.Counts{Prompt: 6400, HasPrompt: true}, false, ""},
	} {
		d := still(t, Options{}, twoNodes()...)
		r, err := d.Rehearse(Piece{Keys: newKeys(400), Warm: func(*fleet.Node) holdings.Reach { return c.reach }},
			time.Now())
		if err != nil {
			t.Fatal(err)
		}
		r.l.countTiers(r.l.now, &c.report)
		if n := testing.AllocsPerRun(10, func() { r.l.countTiers(r.l.now, &usage.Counts{}) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
		if c.handed {
			r.l.now.split = true
			r.l.countTiers(r.l.now, &c.report)
			r.l.now.split = false
		}
		r.Finish(c.report, time.Now())
		page := httptest.NewRecorder()
		d.metrics.Set.Handler().ServeHTTP(page, httptest.NewRequest("GET", "/metrics", nil))
		of := func(metric, tier string) string {
			for line := range strings.Lines(page.Body.String()) {
				if strings.HasPrefix(line, metric+`{`) && strings.Contains(line, `tier="`+tier+`"`) {
					return strings.TrimSpace(line[strings.LastIndex(line, " "):])
				}
			}
			return ""
		}
		var got []string
		for _, tier := range []string{"device", "host", "disk", "shared", "prefill", "unknown"} {
			pair := of("cgn_router_tier_believed_tokens_total", tier) + "/" +
				of("cgn_router_tier_cached_tokens_total", tier)
			if pair != "0/0" && pair != "/0" {
				got = append(got, tier+" "+pair)
			}
		}
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%s: %s, want %s", name, text, c.want)
		}
	}
}
