package top

import (
	"encoding/json"
	"errors"
	"testing"

	"github.com/cognitora/dataplane/ctl/ctltest"
)

func TestTop(t *testing.T) {
	url, _, _ := ctltest.AdminPort(t, map[string]string{"/debug/fleet": ctltest.FleetPage,
		"/metrics": ctltest.MetricsPage})
	out, err := ctl(t, nil, "top", "--admin", url)
	if err != nil {
		t.Fatal(err)
	}
	ctltest.Want(t, out, "2 nodes, 5 requests in flight, 9 blocks indexed; STALE", "7 requests",
		"40 % of prompt tokens cached", "2/64", "3/-", "+0.125", "refused")
	out, err = ctl(t, nil, "top", "--admin", url, "-o", "json")
	var l Look
	if err := errors.Join(err, json.Unmarshal([]byte(out), &l)); err != nil || l.Router.Requests != 7 ||
		len(l.Fleet.Nodes) != 2 {
		t.Errorf("%v in\n%s", err, out)
	}
}

func TestRatesBetweenTwoLooks(t *testing.T) {
	before := counters{Requests: 100, Completion: 50}
	if d := (counters{Requests: 130, Completion: 10}).minus(before); d.Requests != 30 || d.Completion != 10 {
		t.Errorf("got %+v; a counter that went back was reset", d)
	}
}
