package power

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
)

func pemOf(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestVendors(t *testing.T) {
	for _, c := range []struct {
		name, documents, chassis string
		watts, psu               float64 // -1: unknown
		err                      string
	}{
		{"DMTF, both schemas", dmtf, "", 374, 937.4, ""},
		{"Dell", dell, "", 712, 718.5, ""},
		{"HPE", hpe, "", 219, -1, ""},
		{"Lenovo", lenovo, "", 388, -1, ""},
		{"Supermicro", supermicro, "", 451, 460, ""},
		{"NVIDIA HGX", hgx, "", 7421.5, -1, ""},
		{"one GPU of HGX by name", hgx, "HGX_GPU_SXM_1", 651.25, -1, ""},
		{"several", blades, "", -1, -1, "several chassis report power (Blade1, Blade2); set power.redfish.chassis"},
		{"one of several", blades, "Blade2", 310, -1, ""},
		{"none of that name", blades, "Blade3", -1, -1, `no chassis with the Id "Blade3"`},
		{"no chassis", `/redfish/v1/Chassis {"Members":[]}`, "", -1, -1, "no chassis of the BMC reports power"},
		{"members of another kind", `/redfish/v1/Chassis {"Members":[7,null,"x",{"@odata.id":5}]}`, "", -1, -1, "no chassis of the BMC reports power"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := serve(t, c.documents)
			settings := s.settings()
			settings.Chassis = c.chassis
			watts, known, err := s.bmc(settings).read(t.Context())
			for part, want := range map[component]float64{chassis: c.watts, psu: c.psu} {
				if known[part] != (want >= 0) || known[part] && watts[part] != want {
					t.Errorf("%s: %v %v, want %v", names[part], watts[part], known[part], want)
				}
			}
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("error %v, want %q", err, c.err)
			}
		})
	}
}

// TestSteady: repeated readings cost one login, one connection, and the documents with figures.
func TestSteady(t *testing.T) {
	s := serve(t, dmtf)
	b := s.bmc(s.settings())
	if _, _, err := b.read(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, _, before := s.count()
	s.put(`/redfish/v1/Chassis/1U/EnvironmentMetrics {"PowerWatts":{"Reading":400}}`)
	for range 10 {
		if watts, _, err := b.read(t.Context()); err != nil || watts[chassis] != 400 {
			t.Fatal(watts, err)
		}
	}
	logins, _, after := s.count()
	if logins != 1 || after-before != 20 {
		t.Errorf("%d logins, %d requests for 10 readings of 2 documents", logins, after-before)
	}
	b.close()
	if _, open, _ := s.count(); open != 0 {
		t.Errorf("%d sessions are left open", open)
	}
}

// TestSessionExpires: if the BMC has ended the session, the same reading starts a new one.
func TestSessionExpires(t *testing.T) {
	s := serve(t, dmtf)
	b := s.bmc(s.settings())
	for range 3 {
		if watts, _, err := b.read(t.Context()); err != nil || watts[chassis] != 374 {
			t.Fatal(watts, err)
		}
		s.expire()
	}
	if logins, _, _ := s.count(); logins != 3 {
		t.Errorf("%d logins", logins)
	}
}

// TestNullIsUnknown: a figure that becomes null is unknown: not kept, not zero, and not an error.
func TestNullIsUnknown(t *testing.T) {
	s := serve(t, blades)
	settings := s.settings()
	settings.Chassis = "Blade1"
	b := s.bmc(settings)
	if watts, _, err := b.read(t.Context()); err != nil || watts[chassis] != 300 {
		t.Fatal(watts, err)
	}
	for _, value := range []string{"null", "0", "-5", `"n/a"`, "1e300", "true", "{}"} {
		s.put(`/redfish/v1/Chassis/Blade1/EnvironmentMetrics {"PowerWatts":{"Reading":` + value + `}}`)
		if _, known, err := b.read(t.Context()); known[chassis] || err == nil {
			t.Errorf("a reading of %s: known %v, error %v", value, known[chassis], err)
		}
	}
	s.put(`/redfish/v1/Chassis/Blade1/EnvironmentMetrics {"PowerWatts":{"Reading":301}}`)
	if watts, _, err := b.read(t.Context()); err != nil || watts[chassis] != 301 {
		t.Error(watts, err)
	}
}

func TestRefused(t *testing.T) {
	s := serve(t, dmtf)
	settings := s.settings()
	if err := os.WriteFile(settings.PasswordFile, []byte("wrong"), 0o600); err != nil {
		t.Fatal(err)
	}
	b := s.bmc(settings)
	_, _, err := b.read(t.Context())
	if !strings.Contains(fmt.Sprint(err), "check power.redfish.username") {
		t.Errorf("a wrong password: %v", err)
	}
	// The next login reads the right password from the file.
	if err := os.WriteFile(settings.PasswordFile, []byte(password), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := b.read(t.Context()); err != nil {
		t.Errorf("the file was corrected: %v", err)
	}
	// A user that may log in but not read causes no loop of logins, and leaves no session.
	s.misbehave(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.HasSuffix(r.URL.Path, "EnvironmentMetrics") {
			w.WriteHeader(http.StatusForbidden)
			return true
		}
		return false
	})
	_, _, err = b.read(t.Context())
	if logins, open, _ := s.count(); logins != 2 || open != 0 || !strings.Contains(fmt.Sprint(err), "role") {
		t.Errorf("%d logins, %d open, %v", logins, open, err)
	}
}

// badAnswer is an answer without usable figures, and the text of the error that follows.
type badAnswer struct {
	name, err string
	answer    func(w http.ResponseWriter, r *http.Request)
}

// badAnswers returns endless bodies, bodies that stop in the middle, answers that never come, and
// the like. Answers that never come end at release.
func badAnswers(release <-chan struct{}) []badAnswer {
	return []badAnswer{
		{"huge", "more than 1048576 bytes", func(w http.ResponseWriter, _ *http.Request) {
			chunk := []byte(strings.Repeat(" ", 64<<10))
			for range 4096 { // 256 MiB
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		}},
		{"huge error", "breaks off", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(500)
			for range 64 {
				fmt.Fprint(w, strings.Repeat("x", 64<<10))
			}
		}},
		{"slow body", "not answer in time", func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, `{"PowerWatts":`)
			w.(http.Flusher).Flush()
			select {
			case <-r.Context().Done():
			case <-release:
			}
		}},
		{"no answer", "not answer in time", func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
			case <-release:
			}
		}},
		{"cut", "EOF", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			fmt.Fprint(w, `{"PowerWatts":{"Reading":1}`)
		}},
		{"no JSON", "no JSON object", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "<html>") }},
		{"an array", "no JSON object", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "[1]") }},
		{"status 503", "answers 503", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(503)
			fmt.Fprint(w, strings.Repeat("secret", 1000))
		}},
		{"to another host", "not followed", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "https://198.51.100.1/steal", http.StatusFound)
		}},
		{"in a circle", "again and again", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path, http.StatusFound)
		}},
	}
}

func TestBadAnswers(t *testing.T) {
	s := serve(t, dmtf)
	release := make(chan struct{})
	t.Cleanup(func() { close(release) })
	for _, c := range badAnswers(release) {
		t.Run(c.name, func(t *testing.T) {
			settings := s.settings()
			if strings.HasPrefix(c.name, "slow") || strings.HasPrefix(c.name, "no answer") {
				settings.Timeout = config.Duration(500 * time.Millisecond)
			}
			s.misbehave(nil)
			b := s.bmc(settings)
			s.misbehave(func(w http.ResponseWriter, r *http.Request) bool {
				if strings.HasSuffix(r.URL.Path, "EnvironmentMetrics") {
					c.answer(w, r)
					return true
				}
				return false
			})
			_, known, err := b.read(t.Context())
			if known[chassis] || !strings.Contains(fmt.Sprint(err), c.err) ||
				strings.Contains(fmt.Sprint(err), "secret") || len(err.Error()) > 400 {
				t.Errorf("%v, %v", known, err)
			}
			s.misbehave(nil)
			if watts, _, err := b.read(t.Context()); err != nil && c.name != "slow body" && c.name != "no answer" ||
				err == nil && watts[chassis] != 374 {
				t.Errorf("after it: %v, %v", watts, err)
			}
		})
	}
}

// TestTLS: only a certificate that matches the CA or the pin is accepted.
func TestTLS(t *testing.T) {
	s := serve(t, dmtf)
	pin := fmt.Sprintf("%X", sha256.Sum256(s.Certificate().Raw))
	for _, c := range []struct {
		name, err string
		change    func(*RedfishConfig)
	}{
		{"CA", "", func(*RedfishConfig) {}},
		{"system's CAs", "certificate", func(c *RedfishConfig) { c.CA = "" }},
		{"pin", "", func(c *RedfishConfig) { c.CA, c.Pin = "", pin }},
		{"pin with colons", "", func(c *RedfishConfig) {
			c.CA = ""
			var parts []string
			for i := 0; i < len(pin); i += 2 {
				parts = append(parts, pin[i:i+2])
			}
			c.Pin = strings.Join(parts, ":")
		}},
		{"another pin", "not the one that power.redfish.certificate_sha256 names", func(c *RedfishConfig) { c.CA, c.Pin = "", strings.Repeat("ab", 32) }},
		{"plain HTTP to a TLS port", "400", func(c *RedfishConfig) { c.Address = strings.Replace(c.Address, "https", "http", 1) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			settings := s.settings()
			c.change(settings)
			_, _, err := s.bmc(settings).read(t.Context())
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
				t.Errorf("error %v, want %q", err, c.err)
			}
		})
	}
}

// TestLinksElsewhere: the session token is sent to no host but the BMC.
func TestLinksElsewhere(t *testing.T) {
	thief := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("%s %s reached another host", r.Method, r.URL)
	}))
	defer thief.Close()
	at := strings.TrimPrefix(thief.URL, "https://")
	s := serve(t, fmt.Sprintf(
		`/redfish/v1/Chassis {"Members":[{"@odata.id":"@%[1]s/redfish/"},{"@odata.id":"https://%[1]s/redfish/v1/x"},{"@odata.id":"/redfish/../../x"}]}`, at))
	if _, _, err := s.bmc(s.settings()).read(t.Context()); err == nil {
		t.Error("no error")
	}
	s.misbehave(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPost {
			w.Header().Set("X-Auth-Token", "t")
			w.Header().Set("Location", "@"+at+"/session")
			w.WriteHeader(http.StatusCreated)
		}
		return r.Method == http.MethodPost
	})
	b := s.bmc(s.settings())
	_, _, _ = b.read(t.Context())
	b.close()
}

func TestTooMany(t *testing.T) {
	members := strings.Repeat(`{"@odata.id":"/redfish/v1/Chassis/1"},`, 1000)
	s := serve(t, `/redfish/v1/Chassis {"Members":[`+strings.TrimSuffix(members, ",")+`]}`)
	_, _, err := s.bmc(s.settings()).read(t.Context())
	if _, _, n := s.count(); !strings.Contains(fmt.Sprint(err), "1000 chassis") || n > 5 {
		t.Errorf("%d requests, %v", n, err)
	}
}

// TestStops: the end of the context ends a reading and the session.
func TestStops(t *testing.T) {
	s := serve(t, dmtf)
	b := s.bmc(s.settings())
	if _, _, err := b.read(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	s.misbehave(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodGet {
			cancel()
			<-r.Context().Done()
		}
		return r.Method == http.MethodGet
	})
	if _, _, err := b.read(ctx); err == nil {
		t.Error("no error")
	}
	b.close()
	if _, open, _ := s.count(); open != 0 {
		t.Errorf("%d sessions are left", open)
	}
}

// TestMockup reads an unpacked mockup of DMTF's bundle DSP2043, such as public-rackmount1, which
// DMTF's Redfish-Mockup-Server contains too. No target of make downloads a mockup, because no
// package of PyPI, npm, Debian or Go was found to contain one. documents_test.go has the mockups'
// shapes.
func TestMockup(t *testing.T) {
	dir := os.Getenv("REDFISH_MOCKUP")
	if dir == "" {
		t.Skip("no registry has DMTF's mockups: make check-power REDFISH_MOCKUP=DIR, of an unpacked one")
	}
	s := serve(t, "")
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "index.json" {
			return err
		}
		text, err := os.ReadFile(path)
		rel, _ := filepath.Rel(dir, filepath.Dir(path))
		s.docs[strings.TrimSuffix("/redfish/v1/"+strings.TrimPrefix(filepath.ToSlash(rel), "."), "/")] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	watts, known, err := s.bmc(s.settings()).read(t.Context())
	t.Logf("chassis %v %v, supplies %v %v, %v", watts[chassis], known[chassis], watts[psu], known[psu], err)
	if !known[chassis] && !known[psu] {
		t.Error("nothing was read")
	}
}

func FuzzDocuments(f *testing.F) {
	for _, d := range []string{dmtf, dell, hpe, lenovo, supermicro, hgx, blades} {
		for _, line := range strings.Split("\n"+d, "\n/redfish/v1")[1:] {
			_, text, _ := strings.Cut(line, " ")
			f.Add([]byte(text))
		}
	}
	f.Add([]byte(`{"PowerControl":{"a":1},"PowerSupplies":[{"Status":5,"PowerInputWatts":[1]}],"Links":[],"Members":{}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var power powerDocument
		var c chassisDocument
		var env environmentDocument
		var all collectionDocument
		for _, into := range []any{&power, &c, &env, &all, &supplyDocument{}, &supplyMetricsDocument{},
			&subsystemDocument{}, &rootDocument{}} {
			_ = json.Unmarshal(text, into)
		}
		for _, r := range []reading{power.chassis(), env.PowerWatts.reading} {
			if r.known && !(r.watts > 0 && r.watts < maxWatts) || !r.known && r.watts != 0 {
				t.Errorf("%+v", r)
			}
		}
		if r := power.psu(); r.known && !(r.watts > 0) {
			t.Errorf("supplies %+v", r)
		}
		for _, l := range append(all.Members, c.Power, c.EnvironmentMetrics, c.PowerSubsystem, c.Links.ContainedBy) {
			if l != "" && !validLink(string(l)) {
				t.Errorf("link %q", l)
			}
		}
	})
}
