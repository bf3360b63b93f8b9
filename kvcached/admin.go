package kvcached

import (
	"encoding/json"
	"net/http"
	"net/http/pprof"

	"github.com/cognitora/dataplane/internal/adminport"
)

// status is the answer of /readyz.
type status struct {
	Ready    bool       `json:"ready"`
	Reason   string     `json:"reason,omitempty"` // the daemon starts, stops or has not joined its fleet
	Cache    string     `json:"cache"`            // the cache's name in the fleet
	Draining bool       `json:"draining"`
	Etcd     string     `json:"etcd"`                    // off, connecting, connected, lost or left
	Members  int64      `json:"fleet_members,omitempty"` // caches in the fleet including this one; 0: no fleet
	Serves   []Endpoint `json:"serves"`
	RAM      tierStatus `json:"ram"`
	SSD      *ssdStatus `json:"ssd,omitempty"`
}

type tierStatus struct {
	Bytes  int64 `json:"bytes"` // size of the tier
	Used   int64 `json:"used_bytes"`
	Blocks int64 `json:"blocks"`
}

// admin serves the endpoints for operators and probes.
func (d *Daemon) admin() *adminport.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.HandleFunc("GET /readyz", d.readyz)
	mux.Handle("GET /metrics", d.metrics.set.Handler())
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	guarded := adminport.Audited(d.audit, adminport.Changes{}, d.config.AdminTLS.Guard(d.config.Daemon.Admin, mux))
	return adminport.New(guarded, d.adminTLS, d.log)
}

func (d *Daemon) readyz(w http.ResponseWriter, _ *http.Request) {
	s := d.status()
	w.Header().Set("Content-Type", "application/json")
	if !s.Ready {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
	_ = json.NewEncoder(w).Encode(s)
}
