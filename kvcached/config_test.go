package kvcached

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/adminport"
	"github.com/cognitora/dataplane/internal/config"
)

// valid returns the default configuration with one change, in a directory of its own.
func valid(change func(*Config)) *Config {
	c := &Config{}
	if err := config.Defaults(c); err != nil {
		panic(err)
	}
	c.Daemon.Data, c.Daemon.Sock = "/tmp/data", "/tmp/kv.sock"
	change(c)
	return c
}

// change is one change of a valid configuration.
type change struct {
	name   string
	change func(*Config)
	want   string // part of the error; empty: the configuration is valid
}

// validates checks the result of Validate for each change.
func validates(t *testing.T, changes []change) {
	t.Helper()
	for _, c := range changes {
		err := valid(c.change).Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestValidateListeners(t *testing.T) {
	secure := func(c *Config) { c.TLS = TLSConfig{"ca", "cert", "key"} }
	users := func(c *Config) { c.RESP.Users = []UserConfig{{Name: "default", PasswordFile: "f"}} }
	keys := func(c *Config) { c.S3.Keys = []KeyConfig{{Access: "a", SecretFile: "f"}} }
	validates(t, []change{
		{"defaults", func(*Config) {}, ""},
		{"all on loopback", func(c *Config) {
			c.RESP.Listen, c.S3.Listen, c.QUIC.Listen, c.GRPC.Listen = "127.0.0.1:6380", "localhost:9000", "[::1]:7072",
				"127.0.0.1:7071"
		}, ""},
		{"sockets", func(c *Config) { c.RESP.Listen = "unix:///tmp/resp.sock" }, ""},
		{"resp beyond loopback", func(c *Config) { c.RESP.Listen = ":6380" }, "add [[resp.users]] with a password_file, and resp.tls = true"},
		{"resp with users", func(c *Config) { users(c); c.RESP.Listen = ":6380" }, "--insecure-listen"},
		{"resp insecure without users", func(c *Config) { c.RESP.Listen, c.Daemon.Insecure = ":6380", true }, "[[resp.users]]"},
		{"resp with users, insecure", func(c *Config) {
			users(c)
			c.RESP.Listen, c.Daemon.Insecure = ":6380", true
		}, ""},
		{"resp with users and TLS", func(c *Config) {
			users(c)
			secure(c)
			c.RESP.Listen, c.RESP.TLS = ":6380", true
		}, ""},
		{"admin beyond loopback", func(c *Config) { c.Daemon.Admin = ":9093" }, "admin_tls.client_ca"},
		{"admin beyond loopback with certificates", func(c *Config) {
			c.Daemon.Admin, c.AdminTLS = ":9093", adminport.TLS{Cert: "c", Key: "k", ClientCA: "a"}
		}, ""},
		{"s3 beyond loopback", func(c *Config) { c.S3.Listen = "10.0.0.1:9000" }, "[[s3.keys]] with a secret_file"},
		{"s3 with keys and TLS", func(c *Config) { keys(c); secure(c); c.S3.Listen, c.S3.TLS = ":9000", true }, ""},
		{"quic beyond loopback", func(c *Config) { c.QUIC.Listen = ":7072" }, "cgn-ctl pki bootstrap"},
		{"quic with certificates", func(c *Config) { secure(c); c.QUIC.Listen = ":7072" }, ""},
		{"sock is the lease socket", func(c *Config) { c.Daemon.Sock = "/tmp/kv-lease.sock" }, "is the name of the lease socket"},
		{"quic on a socket", func(c *Config) { c.QUIC.Listen = "unix:///tmp/q" }, "is not host:port"},
		{"TLS lane on a socket", func(c *Config) { c.QUIC.TLSListen = "unix:///tmp/q" }, "quic.tls_listen: \"unix:///tmp/q\" is not host:port"},
		{"grpc on a socket", func(c *Config) { c.GRPC.Listen = "unix:///tmp/q" }, "grpc.listen: \"unix:///tmp/q\" is not host:port"},
		{"s3 on a socket", func(c *Config) { c.S3.Listen = "unix:///tmp/q" }, ""},
		{"nothing listened on but admin", func(c *Config) {
			c.RESP.Listen, c.S3.Listen, c.QUIC.Listen, c.QUIC.TLSListen, c.GRPC.Listen = "", "", "", "", ""
		}, ""},
		{"quic and the TLS lane on one number", func(c *Config) { c.QUIC.Listen, c.QUIC.TLSListen = "127.0.0.1:7072", "127.0.0.1:7072" }, ""},
		{"grpc beyond loopback", func(c *Config) { c.GRPC.Listen = "0.0.0.0:7071" }, "set tls.ca"},
		{"insecure does not lift certificates", func(c *Config) { c.GRPC.Listen, c.Daemon.Insecure = "0.0.0.0:7071", true }, "set tls.ca"},
		{"admin beyond loopback", func(c *Config) { c.Daemon.Admin = ":9093" }, "--insecure-admin"},
		{"admin allowed", func(c *Config) { c.Daemon.Admin, c.Daemon.InsecureAdmin = ":9093", true }, ""},
		{"no admin", func(c *Config) { c.Daemon.Admin = "" }, "kvcached.admin: empty"},
		{"one port twice", func(c *Config) { c.RESP.Listen, c.S3.Listen = "127.0.0.1:1", "127.0.0.1:1" }, "next to resp.listen"},
		{"no stripe", func(c *Config) { c.QUIC.Stripes = 0 }, "quic.stripes"},
		{"too many stripes", func(c *Config) { c.QUIC.Stripes = maxStripes + 1 }, "quic.stripes"},
	})
}

func TestValidate(t *testing.T) {
	validates(t, []change{
		{"tls without cert", func(c *Config) { c.S3.TLS = true }, "s3.tls: needs tls.cert"},
		{"cert alone", func(c *Config) { c.TLS.Cert = "c" }, "tls.cert: goes together"},
		{"ca alone", func(c *Config) { c.TLS.CA = "c" }, "tls.ca: needs"},
		{"peers without ca", func(c *Config) { c.TLS.Cert, c.TLS.Key, c.QUIC.Listen = "c", "k", "127.0.0.1:1" }, "tls.ca: empty"},
		{"no data", func(c *Config) { c.Daemon.Data = "" }, "kvcached.data: empty"},
		{"no data, no disk", func(c *Config) { c.Daemon.Data, c.Daemon.SSD = "", 0 }, ""},
		{"little ram", func(c *Config) { c.Daemon.RAM = 4096 }, "kvcached.ram"},
		{"little ssd", func(c *Config) { c.Daemon.SSD = 4096 }, "kvcached.ssd"},
		{"no ssd", func(c *Config) { c.Daemon.SSD = 0 }, ""},
		{"group 0", func(c *Config) { c.Daemon.Group = 0 }, ""},
		{"the last group", func(c *Config) { c.Daemon.Group = 1<<32 - 2 }, ""},
		{"no group", func(c *Config) { c.Daemon.Group = 1<<32 - 1 }, "kvcached.socket_group: 4294967295: must be 0 to 4294967294"},
		{"a group of 33 bits", func(c *Config) { c.Daemon.Group = 1 << 32 }, "kvcached.socket_group"},
		{"a group below -1", func(c *Config) { c.Daemon.Group = -2 }, "kvcached.socket_group"},
		{"long socket", func(c *Config) { c.Daemon.Sock = "/" + strings.Repeat("x", 110) }, "too long for a socket"},
		{"cache id", func(c *Config) { c.Daemon.CacheID = "a/b" }, "kvcached.cache_id: cache id"},
		{"heartbeat", func(c *Config) { c.Daemon.Heartbeat = config.Duration(time.Millisecond) }, "kvcached.heartbeat"},
		{"user without a password", func(c *Config) { c.RESP.Users = []UserConfig{{Name: "x"}} }, "resp.users[0]"},
		{"key without a secret", func(c *Config) { c.S3.Keys = []KeyConfig{{Access: "x"}} }, "s3.keys[0]"},
		{"quota of nobody", func(c *Config) { c.Quotas = []QuotaConfig{{RAM: 1}} }, "quota[0]"},
		{"quota above the RAM", func(c *Config) { c.Quotas = []QuotaConfig{{Tenant: "a", RAM: 2 << 30}} }, "quota[0].ram: 2GiB is more than kvcached.ram, 1GiB"},
		{"quota above the SSD", func(c *Config) { c.Quotas = []QuotaConfig{{Tenant: "a", SSD: 5 << 30}} }, "quota[0].ssd: 5GiB is more than kvcached.ssd, 4GiB"},
		{"quota without a bound", func(c *Config) { c.Quotas = []QuotaConfig{{Tenant: "a"}} }, "quota[0]: bounds nothing; give ram or ssd"},
		{"quota that exempts", func(c *Config) { c.Quotas = []QuotaConfig{{Namespace: "key1;s3.b;a"}, {Tenant: "a", RAM: 1}} }, ""},
		{"quota of half a namespace", func(c *Config) { c.Quotas = []QuotaConfig{{Namespace: "key1;s3.bkt", RAM: 1}} }, "the last ; stays without a tenant"},
		{"a user twice", func(c *Config) {
			c.RESP.Users = []UserConfig{{Name: "a", PasswordFile: "f"}, {Name: "b", PasswordFile: "f"},
				{Name: "a", PasswordFile: "g"}}
		}, `resp.users[2].name: "a" is that of resp.users[0]`},
		{"a key twice", func(c *Config) {
			c.S3.Keys = []KeyConfig{{Access: "a", SecretFile: "f"}, {Access: "a", SecretFile: "g"}}
		}, `s3.keys[1].access: "a" is that of s3.keys[0]`},
		{"much ram", func(c *Config) { c.Daemon.RAM = 10 << 40 }, "kvcached.ram: 10TiB: must be 1MiB to 8TiB"},
		{"advertise a URL", func(c *Config) { c.Daemon.Advertise = "http://x:1" }, "kvcached.advertise"},
		{"advertise a port", func(c *Config) { c.Daemon.Advertise = "x:1" }, "without a port"},
		{"advertise a host", func(c *Config) { c.Daemon.Advertise = "gpu_1.example" }, ""},
		{"advertise an address", func(c *Config) { c.Daemon.Advertise = "fe80::1" }, ""},
		{"bound", func(c *Config) { c.RESP.Stall = 0 }, "resp.stall"},
	})
}

func TestSockets(t *testing.T) {
	grpc, lease := valid(func(c *Config) { c.Daemon.Sock = "/x/y.sock" }).Sockets()
	if grpc != "/x/y.sock" || lease != "/x/kv-lease.sock" {
		t.Errorf("%s, %s", grpc, lease)
	}
}

func TestQuotaIsTheFirstThatMatches(t *testing.T) {
	c := valid(func(c *Config) {
		c.Quotas = []QuotaConfig{{Tenant: "a", RAM: 1, SSD: 10}, {Namespace: "key1;resp.0;b", RAM: 2, SSD: 20},
			{Model: "m", RAM: 3, SSD: 30}}
	})
	for text, want := range map[string]int64{
		"key1;resp.0;a": 1, "key1;resp.0;b": 2, "key1;resp.1;b": 0, "kv1;m;r;bf16;l;16;1.0;1.0;": 3,
		"kv1;m;r;bf16;l;16;1.0;1.0;a": 1, "nonsense": 0,
	} {
		account, got := c.ramQuota(text)
		same, disk := c.ssdQuota(text)
		if got != want || disk != 10*want || same != account || (account == "") != (want == 0) {
			t.Errorf("%s: %q %d and %q %d, want %d", text, account, got, same, disk, want)
		}
	}
}

func TestLockDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	l, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LockDir(dir); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "--data") {
		t.Errorf("second: %v", err)
	}
	for name, mode := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, lockFile): 0o600} {
		if i, err := os.Stat(name); err != nil || i.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, i.Mode(), err)
		}
	}
	want := fmt.Sprintf("kvcached.data: %s is in use by process %d;", dir, os.Getpid())
	if notes := adviseLock(dir); len(notes) != 1 || !strings.HasPrefix(notes[0], want) {
		t.Errorf("%q, want %q", notes, want)
	}
	_ = l.Close()
	if notes := adviseLock(dir); len(notes) > 0 {
		t.Errorf("unlocked: %q", notes)
	}
	if l, err = LockDir(dir); err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
}

func TestSealingKey(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	c := valid(func(c *Config) { c.SSD.KeyFile = file })
	for text, ok := range map[string]bool{strings.Repeat("x", 32): true, strings.Repeat("0a", 32) + "\n": true,
		"short": false} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if key, err := c.sealingKey(); (err == nil && len(key) == 32) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
}
