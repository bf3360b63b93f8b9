package agent

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
)

// TestPowerIsAnnounced: the power that a BMC reports reaches etcd, the metrics and /readyz, with
// its source.
func TestPowerIsAnnounced(t *testing.T) {
	docs := map[string]string{
		"/redfish/v1":                              `{"Chassis":{"@odata.id":"/redfish/v1/Chassis"}}`,
		"/redfish/v1/Chassis":                      `{"Members":[{"@odata.id":"/redfish/v1/Chassis/1"}]}`,
		"/redfish/v1/Chassis/1":                    `{"Id":"1","EnvironmentMetrics":{"@odata.id":"/redfish/v1/Chassis/1/EnvironmentMetrics"}}`,
		"/redfish/v1/Chassis/1/EnvironmentMetrics": `{"PowerWatts":{"Reading":374}}`,
	}
	bmc := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, docs[strings.TrimSuffix(r.URL.Path, "/")])
	}))
	defer bmc.Close()
	e := newFakeEngine(t)
	c := testConfig(t, e.URL)
	c.Power.Redfish.Address, c.Power.BMCInterval = bmc.URL, config.Duration(time.Second)
	a, etcd := startAgent(t, c), dialEtcd(t, shared.url)
	eventually(t, "watts in etcd", func() bool {
		h := announced(t, etcd, a.NodeID())
		return h != nil && h.Watts.Or(0) == 374 && h.WattsAvg30.Or(0) == 374 && h.PowerSource == "redfish" &&
			h.SMPct.IsZero()
	})
	_, page := get(t, "http://"+a.AdminAddr().String()+"/metrics")
	for _, want := range []string{
		`cgn_power_watts{component="node",source="redfish"} 374`,
		`cgn_power_watts{component="chassis",source="redfish"} 374`,
		`cgn_power_average_watts{component="node",source="redfish"} 37`,
		`cgn_power_age_seconds{component="node",source="redfish"}`,
		`cgn_agent_power_readings_total{result="failed",source="redfish"} 0`,
	} {
		if !strings.Contains(page, "\n"+want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
	_, text := get(t, "http://"+a.AdminAddr().String()+"/readyz")
	var s status
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatal(err)
	}
	if s.Power.Watts != 374 || s.Power.Source != "redfish" || s.Power.Sources["redfish"] != "ok" ||
		s.Power.Sources["rapl"] != "off" || s.GPU != "off" {
		t.Errorf("%+v, GPU %s", s.Power, s.GPU)
	}
	if err := a.stop(t); err != nil {
		t.Error(err)
	}
}
