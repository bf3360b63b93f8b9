package realengine

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// The conversations of TestVLLMWarm have ten times as many blocks as the caches of both servers.
const (
	talks     = 100
	talkTurns = 4
	restartAt = 2 // turn before which a server restarts
)

// TestVLLMWarm: of conversations that two servers cannot keep in their own memory, and one of which
// restarts, the servers compute at most half as many tokens with the connector and a router that
// knows the caches as without. All answers are the same.
func TestVLLMWarm(t *testing.T) {
	s := prepared(t, "vllm")
	without := s.talk(t, "without", nil)
	with := s.talk(t, "with", s.caches(t, "a", "b"))
	t.Logf("prompt tokens after the restart: %d; computed with the caches %d, without %d: %.2f", with.prompted,
		with.computed, without.computed, float64(with.computed)/float64(without.computed))
	if 2*with.computed > without.computed {
		t.Error("more than half")
	}
	t.Logf("of %d later turns, the router believed %d to have more cached than the server loaded, %d less", with.later,
		with.more, with.less)
	if with.more+with.less > with.later/50 {
		t.Error("more than 2 % are wrong")
	}
	differ := 0
	for i := range with.said {
		if with.said[i] != without.said[i] {
			differ++
		}
	}
	if differ > 0 {
		t.Errorf("%d of %d answers differ", differ, len(with.said))
	}
}

// talk is the result of conversations.
type talk struct {
	said     []string
	prompted int // tokens of the prompts after the restart
	computed int // of these, tokens that the servers computed
	later    int // turns after the first
	// turns for which the router believed more or less to be cached than the server found, by over
	// a block of the server
	more, less int
}

// holds compares the router's belief about a later turn with what the server found.
func (r *talk) holds(a *answer) {
	n, ok := a.counts()
	if !ok {
		return
	}
	r.later++
	switch off := a.believed()*float64(n.prompt) - float64(n.cached); {
	case off > blockTokens:
		r.more++
	case off < -blockTokens:
		r.less++
	}
}

// talk sends the conversations through a router to two servers, each with its cache, if any.
func (s setup) talk(t *testing.T, name string, caches []*cache) (r talk) {
	t.Helper()
	template := filepath.Join(s.run, name+".jinja")
	if err := os.WriteFile(template, []byte(wholeChat), 0o600); err != nil {
		t.Fatal(err)
	}
	var engines []*engine
	for i := range 2 {
		flags, options := []string{"--enable-prompt-tokens-details"}, ""
		if caches != nil {
			flags, options = connected(object{"socket": caches[i].lease}), ",kv=unix://"+caches[i].grpc
		}
		e := s.engine(t, fmt.Sprint(name, "-", i), vllmFlags(s.model, append(flags, "--chat-template", template)...)...)
		e.options, e.tokenizer, e.template = options, s.model, template
		engines = append(engines, e)
	}
	for _, e := range engines {
		e.awaitReady(t)
	}
	w := s.site(t, engines...)
	r, _ = w.talk(t, engines)
	for _, e := range engines {
		e.stop(t)
	}
	w.stop(t)
	return r
}

// talk sends the conversations in turn, one request at a time. The second server restarts in the
// middle.
func (w *site) talk(t *testing.T, engines []*engine) (r talk, all []conversation) {
	t.Helper()
	all = make([]conversation, talks)
	for k := range talkTurns {
		if k == restartAt {
			engines[1].kill()
			engines[1].start(t)
			engines[1].awaitReady(t)
			within(t, soon, "the router uses both again", func() bool { return w.eligible() == len(engines) })
			r.computed = -engines[0].source(t, "local_compute") - engines[1].source(t, "local_compute")
		}
		for i := range all {
			c, bytes := &all[i], 200
			if k == 0 {
				c.name, bytes = fmt.Sprint("talk ", i), 900
			}
			a := c.turn(t, w, k, bytes)
			r.said = append(r.said, a.text())
			if k > 0 {
				r.holds(a)
			}
			if n, ok := a.counts(); ok && k >= restartAt {
				r.prompted += n.prompt
			}
		}
	}
	r.computed += engines[0].source(t, "local_compute") + engines[1].source(t, "local_compute")
	return r, all
}

// copied is a round of compare_lmcache.py. Each has seconds of wall time, of the engine's process
// and of the daemon.
type copied struct {
	OurSave   [3]float64 `json:"ours_save"`
	OurLoad   [3]float64 `json:"ours_load"`
	TheirSave [3]float64 `json:"lmcache_save"`
	TheirLoad [3]float64 `json:"lmcache_load"`
	Memcpy    [3]float64 `json:"memcpy"`
}

// TestVLLMCopies: 1 GiB of blocks goes between torch tensors and one daemon by our connector and by
// LMCache's redis client, with the same bytes, which differ in each block. Only ratios within the
// run are bounded: those of the daemon's CPU time by the targets, those of wall time with slack.
func TestVLLMCopies(t *testing.T) {
	s := prepared(t, "vllm")
	const rounds = 3
	c := s.cachesOf(t, "8GiB", "a")[0]
	compare := exec.Command(os.Getenv("REALENGINE_PYTHON"), filepath.Join(filepath.Dir(s.serve), "compare_lmcache.py"),
		c.lease, c.resp, strconv.Itoa(c.cmd.Process.Pid), strconv.Itoa(rounds))
	compare.Env = append(os.Environ(), "PYTHONPATH="+filepath.Join(filepath.Dir(s.bin), "deploy", "vllm"))
	var errors strings.Builder
	compare.Stderr = &errors
	out, err := compare.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, errors.String())
	}
	var all []copied
	for line := range strings.Lines(string(out)) {
		var r copied
		if err := json.Unmarshal([]byte(line), &r); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		all = append(all, r)
		t.Logf("%+v", r)
	}
	if len(all) != rounds {
		t.Fatalf("%d of %d rounds", len(all), rounds)
	}
	ratio := func(of func(r copied) float64) float64 {
		var ratios []float64
		for _, r := range all {
			ratios = append(ratios, of(r))
		}
		slices.Sort(ratios)
		return ratios[len(ratios)/2]
	}
	load, save := ratio(func(r copied) float64 { return r.OurLoad[2] / r.TheirLoad[2] }),
		ratio(func(r copied) float64 { return r.OurSave[2] / r.TheirSave[2] })
	loads, saves := ratio(func(r copied) float64 { return r.TheirLoad[0] / r.OurLoad[0] }),
		ratio(func(r copied) float64 { return r.TheirSave[0] / r.OurSave[0] })
	t.Logf("medians, ours to LMCache's: load %.1f times as fast, save %.1f; the daemon's CPU for a load %.3f, for a "+
		"save %.2f; a load takes %.1f times as long as memcpy", loads, saves, load, save,
		ratio(func(r copied) float64 { return r.OurLoad[0] / r.Memcpy[0] }))
	if loads < 2 || saves < 1 { // the targets are 4 and 1.5
		t.Error("a load is not twice as fast as LMCache's, or a save is slower than LMCache's")
	}
	if load > 1./20 || save > 0.8 {
		t.Error("the daemon's CPU is over 1/20 for a load, or over 0.8 for a save")
	}
}
