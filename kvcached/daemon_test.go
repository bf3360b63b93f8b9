package kvcached

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/kv/accesses"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv("CGN_TEST_DAEMON"); dir != "" {
		childDaemon(dir)
	}
	goleak.VerifyTestMain(m)
}

// logText is a log that tests read while it is written.
type logText struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// settings returns the configuration of a daemon in dir, on free ports.
func settings(t testing.TB, dir string, change func(*Config)) (Config, *logText) {
	t.Helper()
	var c Config
	if err := config.Defaults(&c); err != nil {
		t.Fatal(err)
	}
	log := &logText{}
	c.Daemon.Data, c.Daemon.Sock, c.Daemon.RAM, c.Daemon.SSD = dir, filepath.Join(dir, "kv.sock"), 32<<20, 128<<20
	c.Daemon.Admin, c.RESP.Listen, c.S3.Listen = "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	c.QUIC.Listen, c.GRPC.Listen = "127.0.0.1:0", "127.0.0.1:0"
	c.Logger = slog.New(slog.NewTextHandler(log, nil))
	if change != nil {
		change(&c)
	}
	return c, log
}

// begin runs a daemon. stop drains the daemon and returns Run's error.
func begin(t testing.TB, c Config) (d *Daemon, stop func() error) {
	t.Helper()
	d, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx, context.Background()) }()
	var once sync.Once
	stop = func() (err error) {
		once.Do(func() {
			cancel()
			err = <-ended
			http.DefaultClient.CloseIdleConnections()
		})
		return err
	}
	t.Cleanup(func() { _ = stop() })
	return d, stop
}

// redis sends commands, one per line. redis returns the first line of each reply and the content of
// bulk strings.
func redis(t *testing.T, at string, commands ...string) []string {
	t.Helper()
	replies, err := redisAsked(at, commands...)
	if err != nil {
		t.Fatal(err)
	}
	return replies
}

// redisAsked is redis for any goroutine: it returns its error.
func redisAsked(at string, commands ...string) (replies []string, err error) {
	conn, err := net.Dial("tcp", at)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	in := bufio.NewReader(conn)
	for _, command := range commands {
		fmt.Fprintf(conn, "%s\r\n", command)
		line, err := in.ReadString('\n')
		if err != nil {
			return nil, err
		}
		line = strings.TrimSpace(line)
		if n := 0; line != "$-1" && strings.HasPrefix(line, "$") {
			fmt.Sscanf(line, "$%d", &n)
			value := make([]byte, n+2)
			if _, err := io.ReadFull(in, value); err != nil {
				return nil, err
			}
			line = string(value[:n])
		}
		replies = append(replies, line)
	}
	return replies, nil
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

func TestServesAndDrains(t *testing.T) {
	dir := t.TempDir()
	c, log := settings(t, dir, nil)
	d, stop := begin(t, c)
	if got := redis(t, d.At("resp"), "SET a hello", "GET a", "GET b", "PING"); strings.Join(got,
		" ") != "+OK hello $-1 +PONG" {
		t.Errorf("resp: %q", got)
	}
	request, _ := http.NewRequest("PUT", "http://"+d.At("s3")+"/bucket/key", strings.NewReader("value"))
	if r, err := http.DefaultClient.Do(request); err != nil || r.StatusCode != 200 {
		t.Fatalf("s3: %v %v", r, err)
	} else {
		r.Body.Close()
	}
	if code, body := get(t, "http://"+d.At("s3")+"/bucket/key"); code != 200 || body != "value" {
		t.Errorf("s3: %d %q", code, body)
	}
	code, body := get(t, "http://"+d.AdminAddr().String()+"/readyz")
	var s status
	if err := json.Unmarshal([]byte(body), &s); err != nil || code != 200 || !s.Ready || s.RAM.Blocks != 2 ||
		len(s.Serves) < 3 {
		t.Errorf("%d %s", code, body)
	}
	if _, err := New(c); err == nil || !strings.Contains(err.Error(), "--data") {
		t.Errorf("a second daemon: %v", err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"cache daemon runs", "part=resp", "part=s3", "part=lease", `step="finish resp"`,
		`step="close the stores"`, "took="} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %q in the log:\n%s", want, log)
		}
	}
	if l, err := LockDir(dir); err != nil {
		t.Errorf("the directory is still locked: %v", err)
	} else {
		_ = l.Close()
	}
}

func TestMetricsAreThoseOfTheTable(t *testing.T) {
	c, _ := settings(t, t.TempDir(), newSite(t).join("a", func(c *Config) {
		c.Daemon.Trace = filepath.Join(c.Daemon.Data, "trace")
	}))
	d, _ := begin(t, c)
	_, page := get(t, "http://"+d.AdminAddr().String()+"/metrics")
	for _, def := range Metrics() {
		if ofDevice := strings.HasPrefix(def.Name, "cgn_kvcached_rdma_device_"); !ofDevice &&
			!strings.Contains(page, "\n"+def.Name) {
			t.Errorf("%s is not served", def.Name)
		}
		if counter := strings.HasSuffix(def.Name, "_total"); counter != (def.Kind == "counter") || def.Help == "" {
			t.Errorf("%s: %+v", def.Name, def)
		}
	}
	reference, err := os.ReadFile("../deploy/reference/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(page) {
		name, _, _ := strings.Cut(strings.FieldsFunc(line, func(r rune) bool { return r == ' ' || r == '{' })[0], " ")
		for _, part := range []string{"_bucket", "_sum", "_count"} { // suffixes of a histogram's samples
			if whole := strings.TrimSuffix(name, part); strings.HasSuffix(whole, "_seconds") {
				name = whole
			}
		}
		if strings.HasPrefix(name, "cgn_") && !strings.Contains(string(reference), "`"+name+"`") {
			t.Errorf("%s is in no table", name)
		}
	}
}

// TestAccessesAreRecorded checks that a second start continues the recording after a torn line. A
// file that is not a recording stays as it is.
func TestAccessesAreRecorded(t *testing.T) {
	file, dir := filepath.Join(t.TempDir(), "trace.jsonl"), t.TempDir()
	c, _ := settings(t, dir, func(c *Config) { c.Daemon.Trace = file })
	d, stop := begin(t, c)
	redis(t, d.At("resp"), "SET a hello", "GET a", "GET a", "GET b")
	awaitThat(t, "it is in the file while the daemon runs", func() bool {
		text, err := os.ReadFile(file)
		return err == nil && bytes.Count(text, []byte("\n")) == 4
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	write(t, file, string(text)+`{"timestamp":9,"ha`)
	d, stop = begin(t, c)
	redis(t, d.At("resp"), "GET c")
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	tr, err := accesses.Read(f)
	if err != nil || tr.Requests() != 5 || tr.Distinct() != 3 {
		t.Errorf("%v: %d requests, %d blocks", err, tr.Requests(), tr.Distinct())
	}
	write(t, file, "root:x:0:0\n")
	if _, err := New(c); err == nil || !strings.Contains(err.Error(), "is no recording") {
		t.Errorf("%v", err)
	}
}

func TestSecretsAreRead(t *testing.T) {
	dir := t.TempDir()
	password := filepath.Join(dir, "password")
	if err := os.WriteFile(password, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c, _ := settings(t, dir, func(c *Config) {
		c.RESP.Users = []UserConfig{{Name: "default", PasswordFile: password}}
		c.S3.Keys = []KeyConfig{{Access: "AK", SecretFile: password}}
	})
	d, _ := begin(t, c)
	got := redis(t, d.At("resp"), "GET a", "AUTH wrong", "AUTH secret", "GET a")
	if !strings.HasPrefix(got[0], "-NOAUTH") || !strings.HasPrefix(got[1], "-WRONGPASS") || got[2] != "+OK" ||
		got[3] != "$-1" {
		t.Errorf("%q", got)
	}
	if code, _ := get(t, "http://"+d.At("s3")+"/bucket/key"); code != 403 {
		t.Errorf("s3 without a signature: %d", code)
	}
	c.RESP.Users[0].PasswordFile = filepath.Join(dir, "none")
	c.Daemon.Data = t.TempDir()
	c.Daemon.Sock = filepath.Join(c.Daemon.Data, "kv.sock")
	if _, err := New(c); err == nil || !strings.Contains(err.Error(), "resp.users[0].password_file") {
		t.Errorf("%v", err)
	}
}

func TestAFailedStartGivesEverythingBack(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := t.TempDir()
	c, _ := settings(t, dir, func(c *Config) { c.S3.Listen = taken.Addr().String() })
	if _, err := New(c); err == nil || !strings.Contains(err.Error(), "--s3") {
		t.Fatalf("%v", err)
	}
	c.S3.Listen = ""
	_, stop := begin(t, c)
	if err := stop(); err != nil {
		t.Error(err)
	}
}
