package agent

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/adminport"
	"github.com/cognitora/dataplane/internal/config"
)

// valid is the default configuration, attached to an engine, with one change.
func valid(change func(*Config)) *Config {
	c := &Config{}
	if err := config.Defaults(c); err != nil {
		panic(err)
	}
	c.Engine.URL = "http://127.0.0.1:8000"
	change(c)
	return c
}

func TestValidate(t *testing.T) {
	secure := func(c *Config) { c.TLS = TLSConfig{"ca", "cert", "key"} }
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   string // part of the error; "" means valid
	}{
		{"defaults", func(*Config) {}, ""},
		{"socket", func(c *Config) { c.Agent.Listen = "unix:///run/a.sock" }, ""},
		{"beyond loopback", func(c *Config) { c.Agent.Listen = "0.0.0.0:9081" }, "set tls.ca, tls.cert and tls.key (cgn-ctl pki bootstrap makes them), or insecure_listen"},
		{"beyond loopback, TLS alone", func(c *Config) { c.Agent.Listen, c.TLS.Cert, c.TLS.Key = ":9081", "c", "k" }, "agent.listen"},
		{"beyond loopback, client certificates", func(c *Config) { secure(c); c.Agent.Listen = ":9081" }, ""},
		{"beyond loopback, allowed", func(c *Config) { c.Agent.Listen, c.Agent.InsecureListen = ":9081", true }, ""},
		{"admin beyond loopback", func(c *Config) { secure(c); c.Agent.Admin = "10.0.0.1:9092" }, "agent.admin"},
		{"admin beyond loopback with certificates", func(c *Config) {
			c.Agent.Admin, c.AdminTLS = ":9092", adminport.TLS{Cert: "c", Key: "k", ClientCA: "a"}
		}, ""},
		{"admin beyond loopback with TLS alone", func(c *Config) {
			c.Agent.Admin, c.AdminTLS = ":9092", adminport.TLS{Cert: "c", Key: "k"}
		}, "admin_tls.client_ca"},
		{"admin beyond loopback, allowed for listen", func(c *Config) { c.Agent.Admin, c.Agent.InsecureListen = ":9092", true }, "--insecure-admin"},
		{"admin beyond loopback, allowed", func(c *Config) { c.Agent.Admin, c.Agent.InsecureAdmin = ":9092", true }, ""},
		{"bodies together below one", func(c *Config) { c.Limits.MaxBodyTotal = c.Limits.MaxBody - 1 }, "limits.max_body_total"},
		{"no port", func(c *Config) { c.Agent.Listen = "localhost" }, "use host:port"},
		{"forwarded keys over loopback", func(c *Config) { c.Agent.ForwardAuth = true }, ""},
		{"forwarded keys, client certificates", func(c *Config) {
			secure(c)
			c.Agent.Listen, c.Agent.ForwardAuth = ":9081", true
		}, ""},
		{"forwarded keys from anybody", func(c *Config) { c.Agent.Listen, c.Agent.InsecureListen, c.Agent.ForwardAuth = ":9081", true, true }, "agent.forward_auth: anybody"},
		{"forwarded keys, TLS alone", func(c *Config) {
			secure(c)
			c.TLS.CA, c.Agent.Listen, c.Agent.InsecureListen, c.Agent.ForwardAuth = "", ":9081", true, true
		}, "agent.forward_auth: anybody"},
		{"advertise", func(c *Config) { c.Agent.Advertise = "host:1" }, "agent.advertise"},
		{"node id", func(c *Config) { c.Agent.NodeID = "a/b" }, "agent.node_id"},
		{"heartbeat", func(c *Config) { c.Agent.Heartbeat = config.Duration(time.Millisecond) }, "agent.heartbeat"},
		{"rare heartbeat", func(c *Config) { c.Agent.Heartbeat = config.Duration(time.Hour) },
			"agent.heartbeat: 1h is too long; use 5m"},
		{"max_concurrent", func(c *Config) { c.Agent.MaxConcurrent = -1 }, "agent.max_concurrent"},
		{"tp", func(c *Config) { c.Agent.TP = -1 }, "agent.tp"},
		{"ca alone", func(c *Config) { c.TLS.CA = "ca" }, "tls.ca"},
		{"cert alone", func(c *Config) { c.TLS.Cert = "cert" }, "tls.cert"},
		{"etcd key alone", func(c *Config) { c.Etcd.Key = "key" }, "etcd.cert"},
		{"etcd user alone", func(c *Config) { c.Etcd.Username = "u" }, "etcd.username"},
		{"limit", func(c *Config) { c.Limits.Idle = 0 }, "limits.idle"},
		{"body limit", func(c *Config) { c.Limits.MaxBody = 1 }, "limits.max_body"},
		{"one address twice", func(c *Config) { c.Agent.Admin = c.Agent.Listen }, "agent.admin: \"127.0.0.1:9081\" cannot be listened on next to"},
		{"itself as engine", func(c *Config) { c.Engine.URL = "http://127.0.0.1:9081" }, "engine.url: 127.0.0.1:9081 is where the agent itself listens (agent.listen)"},
		{"engine on its port", func(c *Config) { c.Engine.URL, c.Engine.Model, c.Engine.Port = "", "m", 9092 }, "engine.port: 127.0.0.1:9092 is where"},
		{"engine with its API's path", func(c *Config) { c.Engine.URL = "http://127.0.0.1:8001/v1" }, "engine.url: \"http://127.0.0.1:8001/v1\" ends with /v1; give the server's root"},
		{"no such port", func(c *Config) { c.Agent.Listen = "127.0.0.1:70000" }, "is not a port"},
		{"etcd without a port", func(c *Config) { c.Etcd.Endpoints = []string{"etcd1"} }, "etcd.endpoints[0]"},
		{"engine", func(c *Config) { c.Engine.URL = "nowhere" }, "engine.url"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := config.Check(valid(c.change))
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestNamesOfTheNode(t *testing.T) {
	tcp := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 9081}
	sock := &net.UnixAddr{Name: "/run/a.sock", Net: "unix"}
	host := hostname()
	for _, c := range []struct {
		change  func(*Config)
		addr    net.Addr
		id, url string
	}{
		{func(*Config) {}, tcp, host + "-9081", "http://127.0.0.1:9081"},
		{func(c *Config) { c.Agent.Listen = ":0" }, tcp, host + "-9081", "http://" + host + ":9081"},
		{func(c *Config) { c.Agent.Listen, c.TLS.Cert = "[::]:9081", "c" }, tcp, host + "-9081", "https://" + host + ":9081"},
		{func(c *Config) { c.Agent.Listen = "[::1]:9081" }, tcp, host + "-9081", "http://[::1]:9081"},
		{func(c *Config) { c.Agent.Listen = "unix:///run/a.sock" }, sock, host + "-a.sock", "unix:///run/a.sock"},
		{func(c *Config) { c.Agent.NodeID, c.Agent.Advertise = "n", "https://n:1" }, tcp, "n", "https://n:1"},
	} {
		u := valid(c.change).units()[0]
		if id, url := u.nodeID(c.addr), u.advertised(c.addr); id != c.id || url != c.url {
			t.Errorf("%s, %s; want %s, %s", id, url, c.id, c.url)
		}
	}
}

func TestCPUMeter(t *testing.T) {
	file := filepath.Join(t.TempDir(), "stat")
	write := func(line string) {
		if err := os.WriteFile(file, []byte(line+"\ncpu0 1 2 3\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	m, now := &cpuMeter{file: file}, time.Now()
	write("cpu  100 0 100 800 0 0 0 0 0 0")
	if _, known := m.percent(now).Get(); known {
		t.Error("known after one sample")
	}
	write("cpu  150 0 125 875 40 5 5 0 77 0") // 85 busy of 200
	if v, _ := m.percent(now.Add(time.Second)).Get(); v != 42.5 {
		t.Errorf("%v %%, want 42.5", v)
	}
	write("cpu  999 0 125 875 40 5 5 0 77 0")
	if v, _ := m.percent(now.Add(time.Second + minSample/2)).Get(); v != 42.5 {
		t.Errorf("%v %% a moment later, want the same", v)
	}
	write("nonsense")
	if _, known := m.percent(now.Add(time.Minute)).Get(); known {
		t.Error("known from nonsense")
	}
	if v, known := newCPUMeter().percent(now).Get(); known {
		t.Errorf("%v at the first sample", v)
	}
}

func TestEventsAreChecked(t *testing.T) {
	with := func(e EventsConfig) error {
		return valid(func(c *Config) {
			e.MaxBlocks = 1 << 20
			c.Events = e
		}).Validate()
	}
	for _, e := range []EventsConfig{
		{}, {Endpoint: "tcp://127.0.0.1:5557", Report: "/run/kv.sock"}, {Endpoint: "@ipc:///run/events", Replay: "ipc:///run/replay", Report: "unix:///run/kv.sock"},
		{Endpoint: "tcp://127.0.0.1:5557", Listen: "unix:///run/watch.sock"},
	} {
		if err := with(e); err != nil {
			t.Errorf("%+v: %v", e, err)
		}
	}
	for want, e := range map[string]EventsConfig{
		"kv_events.replay: is for":  {Replay: "tcp://127.0.0.1:5558"},
		"kv_events.report: routers": {Endpoint: "tcp://127.0.0.1:5557"},
		"set either kv_events.report (--kv-report), or kv_events.listen": {Endpoint: "tcp://127.0.0.1:5557",
			Report: "/x", Listen: "unix:///y"},
		"kv_events.endpoint:":    {Endpoint: "tcp://*:5557", Report: "/x"},
		"leave the @ out":        {Endpoint: "tcp://127.0.0.1:5557", Replay: "@ipc:///x", Report: "/x"},
		"no absolute path":       {Endpoint: "tcp://127.0.0.1:5557", Report: "x"},
		"with certificates only": {Endpoint: "tcp://127.0.0.1:5557", Listen: "127.0.0.1:9083"},
	} {
		if err := with(e); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", e, err)
		}
	}
}
