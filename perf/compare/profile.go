package compare

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cognitora/dataplane/perf/load"
)

// Function is a line of a CPU profile.
type Function struct {
	Name      string
	Own, With float64 // percent of the samples: in the function itself, and with the functions that it calls
}

// Functions that count for a sample anywhere in its stack.
const (
	allocating = `^runtime\.(mallocgc.*|gcBgMarkWorker.*|gcAssistAlloc.*|bgsweep|bgscavenge|gcStart.*|gcMark.*|wbBufFlush.*|deductSweepCredit)$`
	locking    = `^(sync\.\(\*(RW)?Mutex\)\..*|internal/sync\.\(\*Mutex\)\..*|sync\.runtime_Sem.*|runtime\.(lock2|unlock2|semacquire.*|semrelease.*))$`
	topCount   = 10
)

// Counts are a Go program's own counts since its start.
type Counts struct{ Objects, bytes, collections float64 } // Objects are allocated ones

// profile shows the use of the contestant's CPU time, and its allocations, under the scenario's
// load.
func (m *measurement) profile() (Figures, error) {
	if err := m.warm(); err != nil {
		return nil, err
	}
	file := filepath.Join(m.on.view.Dir, "cpu.pprof")
	w := m.window(m.warmup())
	begin, end := w.Begin, w.End
	var from, to Counts
	var countErr, profileErr error
	profiled := make(chan struct{})
	w.Begin = func() {
		go func() { // ends with the window or soon after it
			defer close(profiled)
			profileErr = m.fetchProfile(file)
		}()
		from, countErr = m.on.Counts()
		begin()
	}
	w.End = func() {
		end()
		var err error
		to, err = m.on.Counts()
		countErr = errors.Join(countErr, err)
	}
	r, units := m.underLoad(w)
	<-profiled
	f, err := m.figures(w, r, units)
	if err = errors.Join(err, countErr, profileErr); err != nil {
		return nil, err
	}
	per := float64(units)
	f["allocations"], f["alloc_bytes"] = (to.Objects-from.Objects)/per, (to.bytes-from.bytes)/per
	f["gc_per_100k"] = (to.collections - from.collections) / per * 1e5
	if f["gc_percent"], err = focused(file, allocating); err != nil {
		return nil, err
	}
	if f["lock_percent"], err = focused(file, locking); err != nil {
		return nil, err
	}
	text, err := pprof("-nodecount="+strconv.Itoa(topCount), file)
	m.top = parseTop(text)
	return f, err
}

// underLoad runs the scenario's load: streams if it has some, or else clients.
func (m *measurement) underLoad(w *metered) (*load.Result, int64) {
	if m.Streams > 0 {
		r := m.relay(w)
		return r, r.Tokens
	}
	r, _ := load.Closed{Target: m.target(), Bodies: m.chat(false, m.Tokens, ""), Clients: m.Clients,
		Window: w.Window}.Run()
	return r, r.Requests
}

// get passes the admin port's answer to read.
func (r *Running) get(path string, within time.Duration, read func(io.Reader) error) error {
	client := http.Client{Timeout: within, Transport: &http.Transport{DisableKeepAlives: true}}
	req, err := http.NewRequest(http.MethodGet, "http://"+r.AdminAddr()+path, nil)
	if err != nil {
		return err
	}
	if r.NeedsKeys {
		req.Header.Set("Authorization", "Bearer "+r.site.keys.Admin)
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: status %d", path, resp.StatusCode)
	}
	return read(resp.Body)
}

func (m *measurement) fetchProfile(file string) error {
	const most = 64 << 20
	return m.on.get(fmt.Sprintf("/debug/pprof/profile?seconds=%d", max(1, int(m.seconds.Seconds()))),
		m.seconds+30*time.Second, func(body io.Reader) error {
			b, err := io.ReadAll(io.LimitReader(body, most))
			return errors.Join(err, os.WriteFile(file, b, 0o600))
		})
}

// Counts returns the counts of a contestant with an admin port. Counts reads them from the heap
// profile, because the runtime stops for it and adds what each processor has counted by itself. The
// counts in /metrics lag behind by thousands of objects.
func (r *Running) Counts() (c Counts, err error) {
	err = r.get("/debug/pprof/heap?debug=1", 30*time.Second, func(body io.Reader) error { return c.read(body) })
	return c, err
}

// Live returns the bytes of a contestant's heap after garbage collection.
func (r *Running) Live() (bytes float64, err error) {
	for range 2 { // the first collection leaves what pools held
		err = errors.Join(err, r.get("/debug/pprof/heap?gc=1&debug=1", 30*time.Second, func(body io.Reader) error {
			return readStats(body, map[string]*float64{"HeapAlloc": &bytes})
		}))
	}
	return bytes, err
}

// read takes the counts from a heap profile.
func (c *Counts) read(profile io.Reader) error {
	return readStats(profile,
		map[string]*float64{"Mallocs": &c.Objects, "TotalAlloc": &c.bytes, "NumGC": &c.collections})
}

// readStats takes values from the lines at the end of a heap profile: # Mallocs = 15024.
func readStats(profile io.Reader, missing map[string]*float64) error {
	lines := bufio.NewScanner(profile)
	for lines.Scan() {
		name, text, found := strings.Cut(strings.TrimPrefix(lines.Text(), "# "), " = ")
		value := missing[name]
		if !found || value == nil {
			continue
		}
		delete(missing, name)
		var err error
		if *value, err = strconv.ParseFloat(text, 64); err != nil {
			return fmt.Errorf("heap profile: %s: %w", name, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("heap profile: %w", err)
	}
	if len(missing) > 0 {
		return fmt.Errorf("the heap profile lacks %v", slices.Sorted(maps.Keys(missing)))
	}
	return nil
}

// pprof returns the output of `go tool pprof -top`.
func pprof(args ...string) ([]byte, error) {
	var stderr bytes.Buffer
	c := exec.Command("go", append([]string{"tool", "pprof", "-top"}, args...)...)
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return nil, fmt.Errorf("go tool pprof: %w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return out, nil
}

// focused returns the percentage of samples with one of the functions in their stack.
func focused(file, functions string) (float64, error) {
	text, err := pprof("-nodecount=100000", "-nodefraction=0", "-edgefraction=0", "-focus="+functions, file)
	if err != nil {
		return 0, err
	}
	return parseShare(text)
}

// parseShare parses "Showing nodes accounting for 0.44s, 5.5% of 8s total".
func parseShare(text []byte) (float64, error) {
	_, rest, ok := bytes.Cut(text, []byte("Showing nodes accounting for "))
	_, rest, ok2 := bytes.Cut(rest, []byte(", "))
	percent, _, ok3 := bytes.Cut(rest, []byte("%"))
	if !ok || !ok2 || !ok3 {
		return 0, fmt.Errorf("go tool pprof does not say how many samples it shows: %.200s", text)
	}
	return strconv.ParseFloat(string(bytes.TrimSpace(percent)), 64)
}

// parseTop parses the lines after the heading: flat, flat%, sum%, cum, cum%, name.
func parseTop(text []byte) (top []Function) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	heading := false
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) >= 5 && f[0] == "flat" {
			heading = true
			continue
		}
		if !heading || len(f) < 6 {
			continue
		}
		own, err1 := strconv.ParseFloat(strings.TrimSuffix(f[1], "%"), 64)
		with, err2 := strconv.ParseFloat(strings.TrimSuffix(f[4], "%"), 64)
		if err1 == nil && err2 == nil {
			top = append(top, Function{strings.TrimSuffix(strings.Join(f[5:], " "), " (inline)"), own, with})
		}
	}
	return top
}
