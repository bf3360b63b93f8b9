package router

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/cognitora/dataplane/internal/metric"
	"github.com/cognitora/dataplane/internal/rights"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/metrics"
	"github.com/cognitora/dataplane/router/tally"
)

// UsageConfig sets where the router adds up what clients use.
type UsageConfig struct {
	Dir      string `toml:"dir" default:"" flag:"usage-dir" help:"directory of the files with the requests and tokens of each day, tenant, key and model, which cgn-ctl usage reads; several routers may share it. Empty: use is not added up"`
	KeepDays int    `toml:"keep_days" default:"400" help:"age in days from which the router deletes files in dir, by its clock; 0: never"`
	Tenants  int    `toml:"metric_tenants" default:"100" help:"most tenants with metrics of their own (cgn_router_tenant_*), also without dir; all further ones count as (other), and so do those that only gateways name (act_as) beyond half of this number. 0: no such metrics"`
}

func (c *UsageConfig) validate(bad problem) {
	if c.KeepDays < 0 || c.KeepDays > 36500 {
		bad("usage.keep_days", "%d is not in 0..36500; leave it out for 400", c.KeepDays)
	}
	if c.Tenants < 0 || c.Tenants > 10000 {
		bad("usage.metric_tenants", "%d is not in 0..10000; leave it out for %d", c.Tenants, metrics.DefaultTenants)
	}
}

// examine checks that files can be made in the directory.
func (c *UsageConfig) examine() error {
	if c.Dir == "" {
		return nil
	}
	if err := rights.Writable(c.Dir); err != nil {
		return fmt.Errorf("usage.dir: %w; make a directory that the router can write to (--usage-dir DIR)", err)
	}
	return nil
}

// open returns the tally, or nil if it is off. open also sets how many tenants have metrics.
func (c *UsageConfig) open(r *Router) (*tally.Tally, error) {
	r.metrics.Tenants.Most = c.Tenants
	if c.Dir == "" {
		return nil, nil
	}
	if err := c.examine(); err != nil {
		return nil, err
	}
	return tally.New(tally.Options{Dir: c.Dir, KeepDays: c.KeepDays, Logger: r.log}), nil
}

// usageDefs are the metrics of use that is added up.
var usageDefs = []metric.Def{
	{
		Name: "cgn_router_usage_rows",
		Help: "Tenants, keys and models whose use is added up today ([usage]). All these metrics are missing without " +
			"usage.dir.",
	},
	{
		Name: "cgn_router_usage_folded_total", Kind: metric.Counter,
		Help: "Requests that count as key and model (other), since 10,000 others have a row today.",
	},
	{
		Name: "cgn_router_usage_unwritten",
		Help: "1 while the use of clients cannot be written to usage.dir. It stays in memory, for 8 days at most.",
	},
	{
		Name: "cgn_router_usage_lost_total", Kind: metric.Counter,
		Help: "Requests of days that could not be written for so long that the router forgot them.",
	},
}

func (s *records) readUsage(emit func(def int, value float64, labels ...string)) {
	if s.tally == nil {
		return
	}
	now := s.tally.Stats()
	emitter(emit).all([]float64{float64(now.Rows), float64(now.Folded), metric.Bool(now.Failing), float64(now.Lost)})
}

// maxUsage bounds the answer of usage, in bytes.
const maxUsage = 31 << 20

// usage answers with the files of a day (day=2026-11-29; today without it).
func (r *Router) usage(w http.ResponseWriter, req *http.Request) {
	day := tally.DayOf(time.Now())
	if text := req.URL.Query().Get("day"); text != "" {
		var err error
		if day, err = tally.ParseDay(text); err != nil {
			writeError(w, &apierror.Error{
				Status: 400, Code: "invalid_value", Param: "day", Message: "day: " + err.Error(),
			})
			return
		}
	}
	if r.records.tally == nil {
		writeError(w, &apierror.Error{
			Status: 404, Code: "usage_off", Message: "this router does not add up use; set usage.dir (--usage-dir DIR)",
		})
		return
	}
	answer := tally.Answer{Day: day}
	tooLarge := fmt.Sprintf("the files of %s are too large for one answer; read them with cgn-ctl usage DIR", day)
	var err error
	if answer.Files, err = r.records.tally.Files(day, maxUsage); errors.Is(err, tally.ErrTooLarge) {
		writeError(w, &apierror.Error{Status: 500, Code: "usage_too_large", Message: tooLarge})
		return
	}
	if err != nil {
		r.log.Error("usage not read", "error", err)
		writeError(w, &apierror.Error{Status: 500, Code: "usage_unreadable", Message: err.Error()})
		return
	}
	page, err := json.Marshal(&answer)
	if err == nil && len(page) > maxUsage {
		err = errors.New(tooLarge)
	}
	if err != nil {
		writeError(w, &apierror.Error{Status: 500, Code: "usage_too_large", Message: err.Error()})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(page)
}
