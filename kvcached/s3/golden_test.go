package s3

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// message is a request or an answer of a recording.
type message struct {
	connection string
	request    bool
	first      string
	header     http.Header
	length     int
}

var (
	messageLine = regexp.MustCompile(`^\[(c\d+)([<>])\] (.*)$`)
	bodyLine    = regexp.MustCompile(`^    <body (\d+)>$`)
)

// recording reads the messages of a file in testdata/lmcache: [cN>] requests and [cN<] answers, of
// connection N.
func recording(t *testing.T, path string) []message {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var all []message
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := lines.Text()
		if m := messageLine.FindStringSubmatch(line); m != nil {
			all = append(all, message{connection: m[1], request: m[2] == ">", first: m[3], header: http.Header{}})
			continue
		}
		last := &all[len(all)-1]
		if m := bodyLine.FindStringSubmatch(line); m != nil {
			last.length, _ = strconv.Atoi(m[1])
			continue
		}
		name, value, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok {
			t.Fatalf("%s: %q is no header", path, line)
		}
		last.header.Add(name, value)
	}
	return all
}

// TestLMCache replays the recorded requests of LMCache's s3:// connector (awscrt) and compares our
// answers with the recorded ones. The status, the Content-Length of objects, Content-Range,
// Content-Type and the presence of an ETag must be the same. Our ETags and upload ids replace the
// recorded ones.
func TestLMCache(t *testing.T) {
	paths, _ := filepath.Glob("testdata/lmcache/*.txt")
	if len(paths) != 3 {
		t.Fatal(paths)
	}
	for _, path := range paths {
		t.Run(filepath.Base(path), func(t *testing.T) { replay(t, recording(t, path)) })
	}
}

func replay(t *testing.T, all []message) {
	b := serve(t, Options{})
	answers := map[string][]message{}
	for _, m := range all {
		if !m.request {
			answers[m.connection] = append(answers[m.connection], m)
		}
	}
	ids, tags := map[string]string{}, map[string]string{} // of the recording to ours; path to ETag
	parts := map[string]map[int]string{}
	checked := 0
	for _, m := range all {
		if !m.request {
			continue
		}
		method, rest, _ := strings.Cut(m.first, " ")
		target, _, _ := strings.Cut(rest, " ")
		path, query, _ := strings.Cut(target, "?")
		id := regexp.MustCompile(`uploadId=([^&]*)`).FindStringSubmatch(query)
		var body []byte
		if id != nil {
			target = strings.Replace(target, id[1], ids[path], 1)
		}
		body = pattern(m.length)
		if method == "POST" && id != nil {
			body = completionText(parts[path])
		}
		r, err := http.NewRequest(method, b.http.URL+target, strings.NewReader(string(body)))
		if err != nil {
			t.Fatal(err)
		}
		r.Header = m.header.Clone()
		r.Host = m.header.Get("Host")
		if r.Header.Get("If-Match") != "" {
			r.Header.Set("If-Match", tags[path])
		}
		got := b.send(r)
		if n := regexp.MustCompile(`partNumber=(\d+)`).FindStringSubmatch(query); n != nil {
			number, _ := strconv.Atoi(n[1])
			parts[path][number] = got.Header.Get("ETag")
		}
		switch {
		case query == "uploads":
			ids[path] = regexp.MustCompile(`<UploadId>(.*)</UploadId>`).FindStringSubmatch(got.body)[1]
			parts[path] = map[int]string{}
		case method == "POST":
			tags[path] = regexp.MustCompile(`<ETag>&#34;(.*)&#34;</ETag>`).FindStringSubmatch(got.body)[1]
		case method == "GET":
			tags[path] = got.Header.Get("ETag")
		}
		if i := answering(m, answers[m.connection]); i >= 0 {
			compare(t, m, answers[m.connection][i], got)
			answers[m.connection] = slices.Delete(answers[m.connection], i, i+1)
			checked++
		}
	}
	if checked == 0 {
		t.Error("nothing was compared")
	}
	t.Logf("%d answers compared", checked)
}

// answering finds the answer to a request. The recording gives several short connections one name,
// so they are told apart by range.
func answering(ask message, answers []message) int {
	from, _, _ := strings.Cut(strings.TrimPrefix(ask.header.Get("Range"), "bytes="), "-")
	return slices.IndexFunc(answers, func(a message) bool {
		r := a.header.Get("Content-Range")
		return r == "" || strings.HasPrefix(r, "bytes "+from+"-")
	})
}

func completionText(parts map[int]string) []byte {
	text := []byte("<CompleteMultipartUpload>")
	for n := 1; n <= len(parts); n++ {
		text = fmt.Appendf(text, "<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>", n, parts[n])
	}
	return append(text, "</CompleteMultipartUpload>"...)
}

func compare(t *testing.T, ask, want message, got reply) {
	t.Helper()
	status, _ := strconv.Atoi(strings.Fields(want.first)[1])
	if got.StatusCode != status {
		t.Errorf("%s: %d, want %d", ask.first, got.StatusCode, status)
	}
	for _, name := range []string{"Content-Range", "Accept-Ranges"} {
		if v := want.header.Get(name); got.Header.Get(name) != v && v != "" {
			t.Errorf("%s: %s is %q, want %q", ask.first, name, got.Header.Get(name), v)
		}
	}
	if strings.HasPrefix(ask.first, "GET") || strings.HasPrefix(ask.first, "HEAD") {
		if l := got.Header.Get("Content-Length"); l != want.header.Get("Content-Length") {
			t.Errorf("%s: Content-Length %s, want %s", ask.first, l, want.header.Get("Content-Length"))
		}
		if got.StatusCode < 300 && got.Header.Get("Content-Type") != want.header.Get("Content-Type") {
			t.Errorf("%s: Content-Type %s", ask.first, got.Header.Get("Content-Type"))
		}
		if len(got.body) != want.length {
			t.Errorf("%s: %d bytes, want %d", ask.first, len(got.body), want.length)
		}
	}
	tag, quoted := got.Header.Get("ETag"), want.header.Get("ETag") != ""
	if quoted != (tag != "") {
		t.Errorf("%s: ETag %s, want %s", ask.first, tag, want.header.Get("ETag"))
	}
	if i := strings.LastIndexByte(want.header.Get("ETag"), '-'); i > 0 &&
		!strings.HasSuffix(tag, want.header.Get("ETag")[i:]) {
		t.Errorf("%s: ETag %s, want %s", ask.first, tag, want.header.Get("ETag"))
	}
}
