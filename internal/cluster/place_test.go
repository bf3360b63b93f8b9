package cluster

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestPlaces(t *testing.T) {
	for at, want := range map[string]bool{
		"": true, "h:1": true, "10.0.0.1:65535": true, "[::1]:80": true, "unix:///run/x": true,
		"h": false, ":1": false, "h:": false, "h:http": false, "h:0": false, "h:65536": false, "h:-1": false,
		"h:1:2": false, "::1:80": false,
		"unix://": false, "unix:///": false, "unix://run/x": false, "http://h:1": false,
		strings.Repeat("h", 600) + ":1": false, "unix:///" + strings.Repeat("h", 600): false,
	} {
		if err := CheckPlace("push_address", at); (err == nil) != want ||
			err != nil && !strings.HasPrefix(err.Error(), "push_address ") {
			t.Errorf("%.40q: %v", at, err)
		}
		if err := checkHostPort("quic", at); (err == nil) != (want && !strings.HasPrefix(at, "unix:")) {
			t.Errorf("%.40q as host:port: %v", at, err)
		}
	}
	for _, field := range []string{"push_address", "kv_events", "kv_address"} {
		at := map[string]string{field: "h:notaport"}
		h := NodeHealth{NodeID: "n", Address: "http://h:1", PushAddress: at["push_address"], KVEvents: at["kv_events"],
			KVAddress: at["kv_address"]}
		if err := h.Check(); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
		value, err := json.Marshal(h)
		if err != nil {
			t.Fatal(err)
		}
		read, err := ParseNodeHealth("n", value)
		if err != nil || read.PushAddress+read.KVEvents+read.KVAddress != "" || read.LeftOut == nil ||
			!strings.Contains(read.LeftOut.Error(), field) || read.Check() != nil {
			t.Errorf("%s is read: %+v, %v", field, read, err)
		}
	}
}
