package engine

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// childConfig is an environment variable with a Config in JSON. childConfig makes the test binary
// an engine process, so that the engine's CPU time is separate from its clients'.
const childConfig = "TEST_ENGINE_CONFIG"

func TestMain(m *testing.M) {
	if doc := os.Getenv(childConfig); doc != "" {
		if err := beChild([]byte(doc)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// beChild serves until SIGTERM. The engine's first line of output is the engine's URL.
func beChild(doc []byte) error {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	var cfg Config
	if err := json.Unmarshal(doc, &cfg); err != nil {
		return err
	}
	e, err := New(cfg)
	if err != nil {
		return err
	}
	defer e.Close()
	fmt.Println(e.URL())
	<-ctx.Done()
	return nil
}

// child starts an engine process and returns its address. stop ends the process and returns its CPU
// time.
func child(b testing.TB, cfg Config) (addr string, stop func() time.Duration) {
	b.Helper()
	doc, err := json.Marshal(cfg)
	if err != nil {
		b.Fatal(err)
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childConfig+"="+string(doc))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return strings.TrimPrefix(strings.TrimSpace(url), "http://"), func() time.Duration {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
}

// BenchmarkStreams runs 2,000 streams at 20 tokens/s each. The benchmark reports the engine's CPU
// time per token and the number of busy cores.
func BenchmarkStreams(b *testing.B) {
	const streams, tokens = 2000, 100
	for b.Loop() {
		addr, stop := child(b, Config{DecodeStep: 50 * time.Millisecond, MaxSeqs: streams,
			PrefillTokensPerSecond: 1000000})
		begun := time.Now()
		var clients sync.WaitGroup
		for range streams {
			clients.Go(func() { drain(b, addr, tokens) })
		}
		clients.Wait()
		wall := time.Since(begun)
		cpu := stop()
		b.ReportMetric(float64(cpu.Microseconds())/(streams*tokens), "cpu-us/token")
		b.ReportMetric(cpu.Seconds()/wall.Seconds(), "cores")
		b.ReportMetric(streams*tokens/wall.Seconds(), "tokens/s")
	}
}

// drain reads one stream over a connection of its own, as cheaply as possible.
func drain(b testing.TB, addr string, tokens int) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		b.Error(err)
		return
	}
	defer conn.Close()
	body := fmt.Sprintf(`{"messages":[{"role":"user","content":"hello"}],"stream":true,"max_tokens":%d}`, tokens)
	fmt.Fprintf(conn, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: "+
		"%d\r\n\r\n%s", len(body), body)
	if n, err := io.Copy(io.Discard, conn); err != nil || n < int64(tokens)*100 {
		b.Errorf("%d bytes, %v", n, err)
	}
}

// BenchmarkShortChat measures one request with an answer of one token.
func BenchmarkShortChat(b *testing.B) {
	for _, size := range []int{2 << 10, 220 << 10} {
		b.Run(fmt.Sprintf("prompt=%dKiB", size>>10), func(b *testing.B) {
			e := start(b, func(c *Config) { c.Speed = 1e6 })
			body := chatBody(strings.Repeat("word", size/4), `,"max_tokens":1`)
			b.ReportAllocs()
			for b.Loop() {
				object(b, post(b, e, "/v1/chat/completions", body), 200)
			}
		})
	}
}
