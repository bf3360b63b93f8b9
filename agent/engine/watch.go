package engine

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/internal/cluster"
	"github.com/cognitora/dataplane/internal/enginemetrics"
	"github.com/cognitora/dataplane/internal/lora"
	"github.com/cognitora/dataplane/internal/relay"
)

const (
	minScrapeInterval = time.Second
	maxScrapePause    = 15 * time.Second
	scrapeShare       = 9 // a pause is at least this many times as long as the look before it
	modelsEvery       = 30 * time.Second
	timeoutsAllowed   = 2 // looks in a row that a busy engine may miss
)

// life is the agent's memory of the engine's present life.
type life struct {
	epoch        int64     // see State.Epoch; 0 before the first successful look
	modelsAt     time.Time // time of the last look at the models
	unreadySince time.Time // zero while the engine is ready
	wasReady     bool
	timeouts     int // looks in a row without an answer
}

// Run keeps State current, and a started engine alive, until ctx ends. Then a started engine has
// its StopGrace to end. The end of force cuts StopGrace short. When Run returns, the started engine
// and all its children are gone.
func (e *Engine) Run(ctx, force context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer e.prober.close()
	defer e.changes.end()
	var event chan struct{}
	if e.sup != nil {
		event = e.sup.event
		wg.Go(func() { e.sup.supervise(ctx, force) })
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			e.changes.end()
			wg.Wait()
			e.publish(e.unready("agent is stopping"))
			return
		case <-event:
			if run, reason := e.sup.running(); run == nil {
				e.publish(e.unready(reason))
			}
		case <-e.relist:
			e.life.modelsAt = time.Time{}
			timer.Reset(0)
		case <-timer.C:
			started := time.Now()
			e.publish(e.look(ctx))
			timer.Reset(pause(e.config.ScrapeInterval.Std(), time.Since(started)))
		}
	}
}

// pause returns the wait after a look that has taken the time took. A slow engine is asked less
// often, so that looks take a tenth of its time at most.
func pause(interval, took time.Duration) time.Duration {
	return max(interval, min(scrapeShare*took, maxScrapePause))
}

func (e *Engine) publish(s *State) {
	old := e.state.Swap(s)
	e.tell(old, s)
	if old.Ready != s.Ready || old.Epoch != s.Epoch || old.Ranks != s.Ranks || !slices.Equal(old.Models, s.Models) ||
		!slices.EqualFunc(old.Adapters, s.Adapters, sameLoading) {
		await.Wake(e.changed)
	}
}

// sameLoading says whether two states of adapters have the same adapter, loaded or not.
func sameLoading(a, b lora.State) bool {
	return a.Adapter == b.Adapter && a.Loaded == b.Loaded && a.Known == b.Known
}

// reasonEvery is how often a changed reason for an unready engine is logged.
const reasonEvery = 30 * time.Second

// tell logs a change of readiness. From the first look on, tell also logs why an engine is not
// ready.
func (e *Engine) tell(old, s *State) {
	switch {
	case old.Ready != s.Ready:
		e.log.Info("engine readiness changed", "ready", s.Ready, "reason", s.Reason, "models", s.Models)
	case s.Ready || s.Reason == e.told.reason || time.Since(e.told.at) < reasonEvery:
		return
	default:
		e.log.Info("engine is not ready, asking on", "reason", s.Reason, "engine", e.URL())
	}
	e.told.reason, e.told.at = s.Reason, time.Now()
}

// next returns a copy of the present state, to build the following state from.
func (e *Engine) next() *State {
	s := *e.state.Load()
	if e.sup != nil {
		s.Restarts = e.sup.restarted()
	}
	return &s
}

func (e *Engine) unready(reason string) *State {
	s := e.next()
	s.Ready, s.Reason, s.Stats, s.ByRank, s.Beyond = false, reason, enginemetrics.Stats{}, nil, 0
	return s
}

// look asks the engine for its figures and returns the next state.
func (e *Engine) look(ctx context.Context) *State {
	if e.sup != nil {
		run, reason := e.sup.running()
		if run == nil {
			e.life = life{}
			return e.unready(reason)
		}
		if e.life.epoch != run.epoch {
			e.life = life{epoch: run.epoch}
		}
	}
	if err := e.prober.health(ctx); err != nil {
		inc(e.count.Failed)
		return e.unhealthy(err)
	}
	inc(e.count.Answered)
	e.life.timeouts = 0
	s := e.next()
	e.readMetrics(ctx, s)
	e.readIdentity(ctx, s)
	s.Adapters, s.AdapterSlots = e.adapters.States(), e.adapters.Slots()
	s.Ready, s.Reason = len(s.Models) > 0, ""
	if !s.Ready {
		s.Reason = "engine lists no model"
	}
	e.noteReady(s.Ready)
	return s
}

// unhealthy returns the state after a failed look. A refused connection or a plain "not ready"
// counts immediately. Missing answers count only if they last, since a busy engine may be late. A
// look that failed because the agent had no free descriptor does not count.
func (e *Engine) unhealthy(err error) *State {
	if relay.IsLocal(err) {
		return e.next()
	}
	if !errors.Is(err, errRefused) && !errors.Is(err, errNotReady) {
		if e.life.timeouts++; e.life.timeouts <= timeoutsAllowed && e.state.Load().Ready {
			return e.next()
		}
	}
	if errors.Is(err, errRefused) && e.sup == nil {
		e.life = life{}
	}
	e.noteReady(false)
	return e.unready(err.Error())
}

// noteReady restarts a started engine that has been unready for too long.
func (e *Engine) noteReady(ready bool) {
	if ready {
		e.life.wasReady, e.life.unreadySince = true, time.Time{}
		return
	}
	now := time.Now()
	if e.life.unreadySince.IsZero() {
		e.life.unreadySince = now
	}
	limit := e.config.StartTimeout.Std()
	if e.life.wasReady {
		limit = e.config.UnhealthyTimeout.Std()
	}
	if e.sup == nil || now.Sub(e.life.unreadySince) < limit {
		return
	}
	if run, _ := e.sup.running(); run != nil {
		e.log.Error("engine has not been ready for too long, restarting it", "limit", limit)
		run.restart()
	}
}

// readMetrics fills Stats and detects a new life of an attached engine. A new life has another
// start time. An engine that reports no start time has a new life if it was unreachable before.
func (e *Engine) readMetrics(ctx context.Context, s *State) {
	before := e.held()
	stats, started, page, err := e.prober.metrics(ctx)
	if err != nil {
		e.log.Debug("engine metrics not read", "error", err)
	}
	if s.Stats, s.ByRank = stats, stats.ByRank(page); stats.Ranks > 0 {
		s.Ranks = stats.Ranks
	}
	s.Beyond = max(0, stats.Running+stats.Waiting-float64(max(before, e.held()))) // an unknown figure is 0
	switch {
	case e.sup != nil:
	case started != 0 && started != e.life.epoch:
		e.life = life{epoch: started}
	case e.life.epoch == 0:
		e.life.epoch = time.Now().UnixNano()
	}
	if s.Epoch != e.life.epoch {
		e.adapters.Forget() // of the life before
	}
	e.adapters.Scrape(page, time.Now())
}

func (e *Engine) held() int {
	if e.holds == nil {
		return 0
	}
	return e.holds()
}

// readIdentity fills Epoch, Slots, Version and Models with each new life. readIdentity reads the
// models again every modelsEvery, since adapters come and go.
func (e *Engine) readIdentity(ctx context.Context, s *State) {
	fresh := s.Epoch != e.life.epoch
	if fresh {
		s.Epoch, s.Slots, s.Version = e.life.epoch, e.readSlots(ctx, s), e.readVersion(ctx)
	}
	if !fresh && time.Since(e.life.modelsAt) < modelsEvery {
		return
	}
	if len(e.config.Models) > 0 {
		s.Models, e.life.modelsAt = e.config.Models, time.Now()
		return
	}
	models, adapters, err := e.prober.models(ctx)
	if err != nil {
		e.log.Warn("engine's models not read, keeping the last ones", "error", err)
		return
	}
	models, leftOut := cluster.FitModels(models)
	if leftOut > e.leftOut {
		e.log.Warn("some of the engine's models are not announced: a name is too long, or there are too many", "models",
			leftOut)
	}
	s.Models, e.life.modelsAt, e.leftOut = models, time.Now(), leftOut
	if len(models) > 0 {
		e.adapters.List(adapters, lora.KeepingOf(e.config.Kind), e.life.modelsAt)
	}
}

func (e *Engine) readSlots(ctx context.Context, s *State) int {
	if s.Stats.Known(enginemetrics.MaxSlots) {
		return int(s.Stats.MaxSlots)
	}
	if e.config.Kind != LlamaCPP {
		return 0
	}
	n, err := e.prober.slots(ctx)
	if err != nil {
		e.log.Debug("engine slots not read", "error", err)
	}
	return n
}

// readVersion asks a vLLM for its version.
func (e *Engine) readVersion(ctx context.Context) string {
	if e.config.Kind != VLLM {
		return ""
	}
	v, err := e.prober.version(ctx)
	if err != nil {
		e.log.Debug("engine version not read", "error", err)
	}
	return v
}
