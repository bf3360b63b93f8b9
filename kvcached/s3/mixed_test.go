package s3

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/cognitora/dataplane/kv/block"
)

// TestMixed writes, reads, uploads, aborts and deletes a few keys from many clients at once, in an
// arena that is too small for all of them. Each object repeats one letter, so that a mix of two
// writes would be seen.
func TestMixed(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	b := serve(t, Options{Sink: arena(t, 2<<20), maxUploads: 8, maxUploadBytes: 1 << 20, maxRequests: 12})
	var sides sync.WaitGroup
	for side := range 8 {
		sides.Go(func() {
			m := &mixer{bed: b, random: rand.New(rand.NewPCG(seed, uint64(side)))}
			for range 60 {
				m.step()
			}
		})
	}
	sides.Wait()
	b.http.Close() // a client can have all of an answer before the handler has ended
	st := b.server.Stats()
	if st.Failed != 0 || st.Bodies != 0 || st.Puts == 0 || st.Hits == 0 {
		t.Errorf("%+v", st)
	}
	t.Logf("%+v", st)
}

type mixer struct {
	*bed
	random *rand.Rand
}

func (m *mixer) step() {
	path := fmt.Sprintf("/k%d", m.random.IntN(5))
	body := strings.Repeat(string(rune('a'+m.random.IntN(26))), 1+m.random.IntN(200_000))
	switch m.random.IntN(6) {
	case 0, 1:
		m.try("PUT", path, body)
	case 2, 3:
		status, got := m.try("GET", path, "")
		if status == http.StatusOK && strings.Trim(got, got[:1]) != "" {
			m.t.Errorf("%s holds two writes", path)
		}
	case 4:
		m.try("DELETE", path, "")
	case 5:
		m.upload(path, body)
	}
}

// upload sends two parts, the second one from two clients at once. Meanwhile or afterwards it
// completes or aborts the upload.
func (m *mixer) upload(path, body string) {
	status, text := m.try("POST", path+"?uploads", "")
	if status != http.StatusOK {
		return
	}
	id := uploadID.FindStringSubmatch(text)[1]
	m.try("PUT", path+"?partNumber=1&uploadId="+id, body)
	var second sync.WaitGroup
	for range 2 {
		second.Go(func() { m.try("PUT", path+"?partNumber=2&uploadId="+id, body) })
	}
	if m.random.IntN(2) == 0 {
		m.try("DELETE", path+"?uploadId="+id, "")
	}
	second.Wait()
	tag := etag(block.Sum([]byte(body)), len(body), 0)
	m.try("POST", path+"?uploadId="+id, string(completionText(map[int]string{1: tag, 2: tag})))
	m.try("DELETE", path+"?uploadId="+id, "")
}

// try sends a request that may be refused, but not with an InternalError.
func (m *mixer) try(method, path, body string) (int, string) {
	r, err := http.NewRequest(method, m.http.URL+path, strings.NewReader(body))
	if err != nil {
		m.t.Error(err)
		return 0, ""
	}
	r.Host = "kvb.localhost"
	resp, err := m.http.Client().Do(r)
	if err != nil {
		// A refusal with an unread body closes the connection, which the client may see first.
		return 0, ""
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode == http.StatusInternalServerError {
		m.t.Errorf("%s %s: %s %v", method, path, resp.Status, err)
	}
	return resp.StatusCode, string(text)
}
