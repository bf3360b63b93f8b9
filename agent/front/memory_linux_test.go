package front

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"strings"
	"sync"
	"testing"

	"github.com/cognitora/dataplane/internal/intake"
)

// resting returns resident after freed memory was given back to the kernel.
func resting(t *testing.T) (bytes int) {
	t.Helper()
	debug.FreeOSMemory()
	return resident(t)
}

// resident returns the memory of this process, in bytes.
func resident(t *testing.T) (bytes int) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Fatal(err)
	}
	var all, here int
	if _, err := fmt.Sscan(string(text), &all, &here); err != nil {
		t.Fatal(err)
	}
	return here * os.Getpagesize()
}

// TestAnnouncedBodiesTakeNoMemory: only received bytes of a body take memory, not its announced
// length.
func TestAnnouncedBodiesTakeNoMemory(t *testing.T) {
	o := testOptions(t)
	o.Limits.MaxBody, o.Limits.MaxBodyTotal = 64<<20, 1<<30
	s, url, _ := serve(t, o)
	const connections, size, most = 31, 32<<20 + 1, 64 << 20
	before := resting(t)
	for round := range 4 {
		var conns []net.Conn
		for range connections {
			c := begin(t, url, fmt.Sprint("Content-Length: ", size))
			io.WriteString(c, `{"model":"m"} `)
			conns = append(conns, c)
		}
		eventually(t, "room is set aside", func() bool { return s.bodies.Held() == connections*size })
		if took := resident(t) - before; took > most {
			t.Errorf("round %d: %d MiB for %d connections that announce %d bytes and send 14", round, took>>20,
				connections, size)
		}
		for _, c := range conns {
			c.Close()
		}
		eventually(t, "room is given back", func() bool { return s.bodies.Held() == 0 })
	}
}

// TestMemoryOfBodiesIsGivenBack: the memory of a body is released when the body ends, complete or
// not.
func TestMemoryOfBodiesIsGivenBack(t *testing.T) {
	const size, bodies = 16 << 20, 6
	chunk := fmt.Sprintf("%x\r\n%s\r\n", size/4, strings.Repeat("x", size/4))
	for name, request := range map[string]struct{ framing, body string }{
		"cut":            {fmt.Sprint("Content-Length: ", size), strings.Repeat("x", size-1)},
		"between chunks": {"Transfer-Encoding: chunked", strings.Repeat(chunk, 4)},
		"in a chunk":     {"Transfer-Encoding: chunked", strings.Repeat(chunk, 4)[:4*len(chunk)-10]},
	} {
		o := testOptions(t)
		o.Limits.MaxBody, o.Limits.MaxBodyTotal = 64<<20, 1<<30
		_, url, _ := serve(t, o)
		body := []byte(request.body)
		before := resting(t)
		var conns []net.Conn
		for range bodies {
			c := begin(t, url, request.framing)
			c.Write(body)
			conns = append(conns, c)
		}
		eventually(t, name+": they have come", func() bool { return resident(t)-before > bodies*(size-1<<20) })
		for _, c := range conns {
			c.Close()
		}
		eventually(t, name+": their memory is free", func() bool { return resident(t)-before < bodies*size/2 })
	}
}

// TestBodiesDoNotMix: concurrent bodies do not mix, whatever memory they are read into.
func TestBodiesDoNotMix(t *testing.T) {
	o := testOptions(t)
	o.Limits.MaxBodyTotal = 64 << 20
	engineOf(t, &o, func(w http.ResponseWriter, r *http.Request) {
		h := sha256.New()
		io.Copy(h, r.Body)
		io.WriteString(w, hex.EncodeToString(h.Sum(nil)))
	})
	s, url, client := serve(t, o)
	var clients sync.WaitGroup
	for i := range 8 {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(i)))
			for range 30 {
				b := make([]byte, 1+random.IntN([]int{200, 2 * intake.SmallBody, o.Limits.MaxBody}[random.IntN(3)]))
				for i := range b {
					b[i] = byte(random.Uint32())
				}
				var body io.Reader = strings.NewReader(string(b))
				if random.IntN(2) == 0 {
					body = io.MultiReader(body) // a body of unknown length
				}
				resp, err := client.Post(url+"/v1/completions", "application/json", body)
				if err != nil {
					t.Error(err)
					return
				}
				got, err := io.ReadAll(resp.Body)
				resp.Body.Close()
				if sum := sha256.Sum256(b); resp.StatusCode != 200 || string(got) != hex.EncodeToString(sum[:]) ||
					err != nil {
					t.Errorf("%d bytes: %d, another body or %v", len(b), resp.StatusCode, err)
				}
			}
		})
	}
	clients.Wait()
	eventually(t, "nothing held", func() bool { return s.bodies.Held() == 0 })
}
