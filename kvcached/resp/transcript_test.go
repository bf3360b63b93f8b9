package resp

import (
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/redisserver"
)

var record = flag.Bool("record", false, "write testdata/redis7.transcript from the redis-server that is installed")

// Scripts have a command per line, as inline commands are written; a line that begins with ! is
// sent as it is, with escapes. Each == begins a new connection to an empty server. A line that
// begins with ~ has a reply that is different each time: only its kind is compared.
const scriptFile = "testdata/script.txt"

type exchange struct{ line, reply string }

// volatile matches the parts of a reply that differ between any two servers.
var volatile = regexp.MustCompile(`(\$2\r\nid\r\n):\d+|(\$7\r\nversion\r\n)\$\d+\r\n[0-9.]+`)

// perform plays the script to a server and returns what it replies.
func perform(t *testing.T, network, addr string) []exchange {
	t.Helper()
	text, err := os.ReadFile(scriptFile)
	if err != nil {
		t.Fatal(err)
	}
	p := dial(t, network, addr)
	var all []exchange
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case line == "" || line[0] == '#':
			continue
		case strings.HasPrefix(line, "=="):
			p.conn.Close()
			p = dial(t, network, addr)
			p.do("FLUSHALL")
			continue
		}
		raw := encodeLine(t, strings.TrimPrefix(line, "~"))
		p.send(raw)
		reply := ""
		for {
			r, err := p.reply()
			reply += r
			if err == io.EOF {
				reply += "(end)"
			} else if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			if err != nil || line[0] != '!' {
				break
			}
		}
		if line[0] == '~' {
			reply = reply[:1]
		}
		if len(reply) < 1000 {
			reply = volatile.ReplaceAllString(reply, "$1$2")
		}
		all = append(all, exchange{line, reply})
	}
	return all
}

func encodeLine(t *testing.T, line string) string {
	if raw, ok := strings.CutPrefix(line, "!"); ok {
		s, err := strconv.Unquote(`"` + raw + `"`)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		return s
	}
	words, ok := splitWords([]byte(line), nil)
	if !ok {
		t.Fatalf("cannot read %s", line)
	}
	args := make([]string, len(words))
	for i, w := range words {
		args[i] = string(w)
		if n, ok := strings.CutPrefix(args[i], "repeat:"); ok { // a long value
			count, _ := strconv.Atoi(n)
			args[i] = strings.Repeat("0123456789abcdef", count/16)
		}
	}
	return encode(args...)
}

const transcriptFile = "testdata/redis7.transcript"

// TestAsRedis plays the script to this server and to a redis-server, and compares every byte. If no
// redis-server is installed, a recording of one takes its place.
func TestAsRedis(t *testing.T) {
	addr, _, _ := start(t, Options{maxClients: 10_000})
	ours := perform(t, "tcp", addr)
	var theirs []exchange
	if redisserver.Installed() {
		_, socket := startRedis(t)
		theirs = perform(t, "unix", socket)
		if *record {
			writeTranscript(t, theirs)
		}
	} else {
		t.Log("redis-server is not installed: comparing with the recording of one")
		theirs = readTranscript(t)
	}
	compare(t, ours, theirs)
}

// TestRecording holds the recording to the script.
func TestRecording(t *testing.T) {
	addr, _, _ := start(t, Options{maxClients: 10_000})
	compare(t, perform(t, "tcp", addr), readTranscript(t))
}

func compare(t *testing.T, ours, theirs []exchange) {
	t.Helper()
	if len(ours) != len(theirs) {
		t.Fatalf("%d exchanges, and %d with redis", len(ours), len(theirs))
	}
	for i := range ours {
		if ours[i] != theirs[i] {
			t.Errorf("%s\nwe reply    %.300q\nredis does  %.300q", ours[i].line, ours[i].reply, theirs[i].reply)
		}
	}
	t.Logf("%d exchanges", len(ours))
}

func writeTranscript(t *testing.T, all []exchange) {
	var b strings.Builder
	for _, e := range all {
		fmt.Fprintf(&b, "%s\n\t%s\n", e.line, strconv.Quote(shorten(e.reply)))
	}
	if err := os.WriteFile(transcriptFile, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// shorten keeps long values out of the recording.
func shorten(reply string) string {
	return regexp.MustCompile(`(0123456789abcdef){8,}`).ReplaceAllStringFunc(reply, func(s string) string {
		return fmt.Sprintf("(repeat:%d)", len(s))
	})
}

func readTranscript(t *testing.T) []exchange {
	text, err := os.ReadFile(transcriptFile)
	if err != nil {
		t.Fatal(err)
	}
	var all []exchange
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	for i := 0; i+1 < len(lines); i += 2 {
		reply, err := strconv.Unquote(strings.TrimPrefix(lines[i+1], "\t"))
		if err != nil {
			t.Fatalf("%s: %v", lines[i], err)
		}
		reply = regexp.MustCompile(`\(repeat:(\d+)\)`).ReplaceAllStringFunc(reply, func(s string) string {
			var n int
			fmt.Sscanf(s, "(repeat:%d)", &n)
			return strings.Repeat("0123456789abcdef", n/16)
		})
		all = append(all, exchange{lines[i], reply})
	}
	return all
}
