package power

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
)

var quiet = slog.New(slog.DiscardHandler)

const password = "correct horse"

// service is a Redfish service with documents by path, sessions, and several ways to misbehave.
type service struct {
	*httptest.Server
	t *testing.T

	mu       sync.Mutex
	docs     map[string]string
	password string
	open     map[string]bool // tokens of the open sessions
	logins   int
	logouts  int
	requests int
	// answers the request in place of the documents if it returns true
	wrong func(w http.ResponseWriter, r *http.Request) bool
}

// serve starts a service over TLS. documents is a sequence of "path JSON", with each path at the
// beginning of a line.
func serve(t *testing.T, documents string) *service {
	t.Helper()
	s := &service{t: t, docs: map[string]string{
		"/redfish/v1": `{"@odata.id":"/redfish/v1/","@odata.type":"#ServiceRoot.v1_15_0.ServiceRoot","Id":"RootService","Name":"Root Service","RedfishVersion":"1.15.0",
			"Chassis":{"@odata.id":"/redfish/v1/Chassis"},"Systems":{"@odata.id":"/redfish/v1/Systems"},"SessionService":{"@odata.id":"/redfish/v1/SessionService"},
			"Links":{"Sessions":{"@odata.id":"/redfish/v1/SessionService/Sessions"}}}`,
	}, password: password, open: map[string]bool{}}
	s.put(documents)
	s.Server = httptest.NewUnstartedServer(s)
	s.Config.ErrorLog = slog.NewLogLogger(quiet.Handler(), slog.LevelError)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func (s *service) put(documents string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range strings.Split("\n"+documents, "\n/redfish/v1")[1:] {
		path, text, _ := strings.Cut(d, " ")
		if !json.Valid([]byte(text)) {
			s.t.Errorf("the test's own document %s is no JSON", path)
		}
		s.docs["/redfish/v1"+strings.TrimSuffix(path, "/")] = text
	}
}

func (s *service) expire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.open)
}

func (s *service) misbehave(fn func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrong = fn
}

func (s *service) count() (logins, open, requests int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.logins, len(s.open), s.requests
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.requests++
	wrong := s.wrong
	s.mu.Unlock()
	if wrong != nil && wrong(w, r) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	token := r.Header.Get("X-Auth-Token")
	path := strings.TrimSuffix(r.URL.Path, "/")
	switch {
	case r.Method == http.MethodPost && path == "/redfish/v1/SessionService/Sessions":
		s.login(w, r)
	case path == "/redfish/v1" && r.Method == http.MethodGet: // the specification leaves it open to all
		_, _ = io.WriteString(w, s.docs[path])
	case !s.open[token]:
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprintf(w, `{"error":{"code":"Base.1.18.NoValidSession","message":"There is no valid session; the password %s is not to be logged"}}`, password)
	case r.Method == http.MethodDelete:
		s.logouts++
		delete(s.open, token)
		w.WriteHeader(http.StatusNoContent)
	case s.docs[path] == "":
		http.NotFound(w, r)
	default:
		w.Header().Set("Content-Type", "application/json;odata.metadata=minimal;charset=utf-8")
		_, _ = io.WriteString(w, s.docs[path])
	}
}

func (s *service) login(w http.ResponseWriter, r *http.Request) {
	var who struct{ UserName, Password string }
	if err := json.NewDecoder(r.Body).Decode(&who); err != nil || who.UserName != "power" ||
		who.Password != s.password {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	s.logins++
	token := fmt.Sprintf("token-%d", s.logins)
	s.open[token] = true
	w.Header().Set("X-Auth-Token", token)
	w.Header().Set("Location", fmt.Sprintf("%s/redfish/v1/SessionService/Sessions/%d", s.URL, s.logins))
	w.WriteHeader(http.StatusCreated)
	fmt.Fprint(w, `{"@odata.id":"/redfish/v1/SessionService/Sessions/1"}`)
}

// settings returns a configuration for the service, with its own certificate as the CA.
func (s *service) settings() *RedfishConfig {
	dir := s.t.TempDir()
	c := &RedfishConfig{Address: s.URL, Username: "power", PasswordFile: filepath.Join(dir, "password"),
		CA: filepath.Join(dir, "ca.pem"), Timeout: config.Duration(20 * time.Second)}
	if err := os.WriteFile(c.PasswordFile, []byte(password+"\n"), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(c.CA, pemOf(s.Certificate().Raw), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return c
}

func (s *service) bmc(c *RedfishConfig) *bmc {
	s.t.Helper()
	b, err := newBMC(c)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(b.close)
	return b
}
