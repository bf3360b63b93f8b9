package leg

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/relay"
	"github.com/cognitora/dataplane/internal/room"
	"github.com/cognitora/dataplane/router/answer"
	"github.com/cognitora/dataplane/router/holdings"
	"github.com/cognitora/dataplane/router/learned"
	"github.com/cognitora/dataplane/router/prefix"
	"github.com/cognitora/dataplane/router/request"
	"github.com/cognitora/dataplane/router/scan"
	"github.com/cognitora/dataplane/sim/engine"
)

// school is a dispatcher over one engine that teaches. The engine answers /tokenize as teach says.
type school struct {
	*followed
	teach atomic.Pointer[func(w http.ResponseWriter) (taught bool)] // nil: as the engine does
	asked atomic.Int32                                              // requests for /tokenize
}

func openSchool(t *testing.T) *school {
	t.Helper()
	e, err := engine.New(engine.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	target, err := url.Parse(e.URL())
	if err != nil {
		t.Fatal(err)
	}
	s := &school{}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/tokenize" {
			s.asked.Add(1)
			if f := s.teach.Load(); f != nil && !(*f)(w) {
				return
			}
		}
		(&httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) { p.SetURL(target) }}).ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)

	s.followed = follow(t)
	t.Cleanup(s.errands.end)
	s.o.Limits = Limits{FirstByte: time.Minute, Idle: time.Minute, Total: time.Minute}
	s.where.Learned = learned.NewMap(1 << 20)
	s.where.Learned.Learn(map[string]struct{}{"sim": {}})
	// Chats are learned where some cache may report blocks.
	s.where.Holdings = holdings.New(holdings.Options{Logger: slog.New(slog.DiscardHandler),
		Static: map[string]string{"host:1": "unix://" + filepath.Join(t.TempDir(), "absent.sock")}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.where.Holdings.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	s.put("n", front.URL, `"ready":true,"heartbeat_s":300,"engine":"vllm"`)
	waitFor(t, func() bool { return !s.where.Holdings.Empty() && s.fleet.Load().Model([]byte("sim")) != nil })
	return s
}

// chat asks the engine a question of its own, and waits for the end of the answer.
func (s *school) chat(number int) {
	s.t.Helper()
	body := strings.Replace(string(chat(3000)), "the quick", fmt.Sprint(number, " quick"), 1)
	body = strings.Replace(body, "{", `{"max_tokens":1,`, 1)
	var place answer.Memory
	place.Limit = 1 << 20
	l := s.Leg(asked(s.t, s.Dispatcher, []byte(body)), Question{}, &place)
	if err := l.Do(); err != nil || place.Status != http.StatusOK {
		s.t.Fatalf("%v, status %d: %s", err, place.Status, place.Body)
	}
	l.Finish(relay.Complete)
}

// counted waits until so many lessons have had each result.
func (s *school) counted(what string, taught, failed, dropped int) {
	s.t.Helper()
	want, got := [...]int{taught, failed, dropped}, [3]int{}
	for deadline := time.Now().Add(10 * time.Second); got != want; {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: %v lessons were taught, failed and dropped, want %v", what, got, want)
		}
		tick := time.NewTimer(2 * time.Millisecond)
		<-tick.C
		for i, result := range [...]string{"taught", "failed", "dropped"} {
			_, rest, _ := strings.Cut(metricsPage(s.Dispatcher), fmt.Sprintf("lessons_total{result=%q} ", result))
			_, _ = fmt.Sscan(rest, &got[i])
		}
	}
}

// refuse answers with a status.
func refuse(status int) *func(http.ResponseWriter) bool {
	f := func(w http.ResponseWriter) bool { w.WriteHeader(status); return false }
	return &f
}

// TestLessons checks what becomes of a lesson by the engine's answer to /tokenize.
func TestLessons(t *testing.T) {
	for status, c := range map[int]struct{ taught, failed, again int }{
		http.StatusOK:                  {1, 0, 1},
		http.StatusInternalServerError: {0, 1, 1},
		http.StatusNotFound:            {0, 1, 0},
		http.StatusMethodNotAllowed:    {0, 1, 0},
	} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			s := openSchool(t)
			if status != http.StatusOK {
				s.teach.Store(refuse(status))
			}
			s.chat(1)
			s.counted("the first", c.taught, c.failed, 0)
			s.teach.Store(nil)
			before := s.asked.Load()
			s.chat(2)
			s.counted("the second", c.taught+c.again, c.failed, 0)
			if (s.asked.Load() > before) != (c.again > 0) {
				t.Errorf("%d requests after the first lesson's %d", s.asked.Load()-before, before)
			}
			n := s.current().nodes[s.current().snap.Node("n")]
			if wait := time.Until(time.Unix(0, n.unteaching.Load())); c.again == 0 && wait > lessonAgain {
				t.Errorf("the node is asked again in %v", wait)
			}
			n.unteaching.Store(time.Now().UnixNano()) // the pause is over
			s.chat(3)
			s.counted("the third", c.taught+c.again+1, c.failed, 0)
			if used := s.lessons.room.Used(); used != 0 {
				t.Errorf("%d bytes are kept of ended lessons", used)
			}
		})
	}
}

// TestLessonsOfCompletions checks that the answer to a completion teaches, and that the next text
// with the same lines is known.
func TestLessonsOfCompletions(t *testing.T) {
	s := openSchool(t)
	lines := strings.Repeat(`an example of what is asked, and of the answer\n`, 60)
	for i := range 3 {
		r := request.New()
		r.API, r.Method, r.Path, r.Received = scan.Completions, "POST", "/v1/completions", time.Now()
		r.Header = append(r.Header, "Content-Type: application/json\r\n"...)
		question := strings.Repeat(fmt.Sprint("question ", i, " "), 10)
		r.Own(fmt.Appendf(nil, `{"model":"sim","max_tokens":1,"prompt":"%s%s\nA:"}`, lines, question), nil)
		if err := r.Read(nil, s.where.Memo.Scans()); err != nil {
			t.Fatal(err)
		}
		var place answer.Memory
		place.Limit = 1 << 20
		l := s.Leg(r, Question{}, &place)
		if err := l.Do(); err != nil || place.Status != http.StatusOK {
			t.Fatalf("%v, status %d: %s", err, place.Status, place.Body)
		}
		l.Finish(relay.Complete)
		s.counted("the lesson", i+1, 0, 0)
		r.Reset()
	}
	if st := s.where.Learned.Stats(); st.Hits != 1 || st.Misses != 2 || st.Taught < 3 {
		t.Errorf("%+v", st)
	}
}

// TestLessonsAtOnce checks that a lesson more than are allowed at once is dropped.
func TestLessonsAtOnce(t *testing.T) {
	s := openSchool(t)
	free := make(chan struct{})
	release := sync.OnceFunc(func() { close(free) })
	t.Cleanup(release)
	hold := func(http.ResponseWriter) bool { <-free; return true }
	s.teach.Store(&hold)
	for i := range maxLessons + 1 {
		s.chat(i)
	}
	s.counted("while they run", 0, 0, 1)
	release()
	s.counted("at their end", maxLessons, 0, 1)
	s.errands.end()
	if used, n := s.lessons.room.Used(), s.lessons.running.Load(); used != 0 || n != 0 {
		t.Errorf("%d bytes are kept, and %d lessons run", used, n)
	}
}

// TestLessonsWithoutRoom checks that a lesson for whose prompt there is no room is dropped.
func TestLessonsWithoutRoom(t *testing.T) {
	s := openSchool(t)
	s.lessons.room = room.New(1000)
	s.chat(1)
	s.counted("without room", 0, 0, 1)
	if s.asked.Load() != 0 || s.lessons.room.Used() != 0 {
		t.Errorf("%d requests, %d bytes", s.asked.Load(), s.lessons.room.Used())
	}
}

// TestLessonsPayForAnswers checks that a lesson takes room for what it keeps of the answer, gives
// back what it keeps no more, and is dropped if there is no room.
func TestLessonsPayForAnswers(t *testing.T) {
	d := still(t, Options{}, twoNodes()...)
	m := learned.NewMap(1 << 20)
	say := func(more string) []byte {
		return fmt.Appendf(nil, `{"choices":[{"index":0,"delta":{"content":%q%s}}]}`, strings.Repeat("x", 3000), more)
	}
	for name, c := range map[string]struct {
		limit int64
		docs  [][]byte
		kept  bool
	}{
		"there is room":         {1 << 20, [][]byte{say(""), say("")}, true},
		"none for the text":     {4000, [][]byte{say(""), say("")}, false},
		"none for the ids":      {1000, [][]byte{[]byte(`{"prompt_token_ids":[1` + strings.Repeat(",1", 1000) + `]}`)}, false},
		"a document that is no": {1000, [][]byte{[]byte("x")}, true},
	} {
		r := asked(t, d, chat(100))
		form, _ := m.Form(scan.Chat, "sim", r.Scan, r.Body())
		l := d.Leg(r, Question{}, nil)
		from := learned.Origin{Seed: prefix.Seed("sim", "", ""), Form: form}
		l.lesson = m.Lesson(scan.Chat, r.Scan, r.Body(), "sim", from, 0)
		d.lessons.room = room.New(c.limit)
		if !d.lessons.room.Take(int64(l.lesson.Size())) {
			t.Fatal(name)
		}
		for _, doc := range c.docs {
			l.observe(doc)
		}
		if used := d.lessons.room.Used(); (l.lesson != nil) != c.kept || c.kept && used != int64(l.lesson.Size()) {
			t.Errorf("%s: %d bytes are taken for %+v", name, used, l.lesson)
		}
		if l.dropLesson(); d.lessons.room.Used() != 0 {
			t.Errorf("%s: %d bytes are left", name, d.lessons.room.Used())
		}
		l.giveBack()
	}
}
