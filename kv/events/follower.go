package events

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"log/slog"
	"sync"
	"time"

	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/residency"
)

// Sink receives reports of an engine's blocks; *residency.Index is one. After residency.ErrGap the
// Follower begins anew. After residency.ErrStale the Follower waits. After any other error the
// Follower repeats the report.
type Sink interface {
	Report(*residency.Report) error
}

// Options are the settings of a Follower.
type Options struct {
	// Engine is the node's id in the fleet, with the number of the data-parallel rank if the node
	// has several. Required.
	Engine string
	// Endpoint is the address of the engine's events. Replay is the address of missed events; a
	// zero address means none.
	Endpoint, Replay Endpoint
	// Topic is the prefix of the first frame of the messages to follow; empty: all messages.
	Topic string
	// Model returns the name under which the engine serves its model, or "" while it is unknown.
	// Digests depend on the name. Model is called repeatedly. The Follower forgets the blocks when
	// the name changes. Required.
	Model func() string
	// Namespace has the other fields of the blocks' namespace. The Follower fills in Model, and a
	// dash for empty fields.
	Namespace block.Namespace
	// MaxBlocks bounds the remembered blocks of the engine; 0: 2^20, about 150 bytes each. Further
	// blocks are unknown.
	MaxBlocks int
	// Trust is how long the knowledge counts after the connection breaks; 0: 2 s.
	Trust time.Duration
	// Adapter is called with the name of each LoRA adapter for which the engine stores blocks, as
	// it does; nil: nobody wants to know. The name is valid during the call, which must not block.
	Adapter func(name []byte)
	// Chunks says how to name the chunks of the engine's cache; nil: nobody wants to know.
	Chunks *Chunks
	// ReadsNothing says that the engine can read no block of the daemon. Without it, and without
	// Chunks, reports do not say what the engine can read.
	ReadsNothing bool
	// Sink takes the reports. Required.
	Sink Sink
	// SinkName names the sink in log lines: the setting and its value.
	SinkName string
	Logger   *slog.Logger // nil: slog.Default
}

// Follower follows one engine. The goroutine of Run does all its work.
type Follower struct {
	o       Options
	log     *slog.Logger
	counts  counters
	seed    maphash.Seed
	wake    chan struct{} // there is something to report
	moved   chan struct{} // the outbox has shrunk
	said    string        // last logged problem; owned by the goroutine of Run
	next    uint64        // number of the next batch; it and the fields below are owned by the goroutine of Run
	last    uint64        // checksum of the preceding batch
	warned  time.Time     // time of the last log line about a new epoch
	live    uint64        // number of the last batch of this connection, plus 1; 0: none yet
	pace    pace          // limits the reading
	restart chan struct{}
	stale   time.Duration // staleAfter

	mu        sync.Mutex
	known     *knowledge
	out       outbox
	namespace string
	connected bool
	following bool // the knowledge is up to date, or the connection broke less than Trust ago
	complete  bool
	report    reporting
}

// New makes a Follower. The Follower does nothing before Run.
func New(o Options) *Follower {
	o.MaxBlocks, o.Trust, o.Logger = cmp.Or(o.MaxBlocks, 1<<20), cmp.Or(o.Trust, 2*time.Second),
		cmp.Or(o.Logger, slog.Default())
	return &Follower{
		o: o, log: o.Logger, seed: maphash.MakeSeed(), wake: make(chan struct{}, 1), moved: make(chan struct{}, 1),
		restart: make(chan struct{}, 1),
		stale:   staleAfter, pace: newPace(time.Now()),
	}
}

// Restarted tells the Follower that the engine has restarted, in case its publisher does not show
// it.
func (f *Follower) Restarted() { await.Wake(f.restart) }

// The pause between attempts to connect doubles between these bounds.
const (
	retryFirst = 100 * time.Millisecond
	retryLast  = 5 * time.Second
)

// Run follows the engine until ctx ends. Then it tells the sink that the engine reports no more.
func (f *Follower) Run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	reporting, stop := context.WithCancel(ctx)
	defer stop()
	wg.Go(func() { f.reportAll(reporting) })
	if !f.awaitModel(ctx) {
		return
	}
	door := newDoor(f.o.Endpoint)
	defer door.close()
	distrust := time.AfterFunc(f.o.Trust, f.unfollow)
	defer distrust.Stop()
	for wait := retryFirst; ctx.Err() == nil; wait = min(2*wait, retryLast) {
		began := time.Now()
		connected, err := f.session(ctx, door, distrust)
		if ctx.Err() != nil {
			return
		}
		if connected {
			f.mu.Lock()
			f.connected = false
			f.mu.Unlock()
			distrust.Reset(f.o.Trust)
		}
		if time.Since(began) > retryLast {
			wait, f.said = retryFirst, ""
		}
		if errors.Is(err, errRestarted) {
			wait = retryFirst
		} else if err != nil && err.Error() != f.said {
			f.said = err.Error()
			f.log.Warn("the engine's KV events cannot be read, trying again", "endpoint", f.o.Endpoint.String(),
				"error", err)
		}
		if !await.About(ctx, wait) {
			return
		}
	}
}

// modelEvery is the time between two looks at the model's name.
const modelEvery = 200 * time.Millisecond

// awaitModel waits until the model's name is known, and then prepares the parts that depend on it.
// false: ctx has ended.
func (f *Follower) awaitModel(ctx context.Context) bool {
	for {
		if model := f.o.Model(); model != "" {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.known = newKnowledge(model, f.o.MaxBlocks, &f.counts, &f.out)
			f.known.chunks = newChunker(f.o.Chunks, &f.counts)
			f.namespace = namespaceOf(f.o.Namespace, model)
			return true
		}
		if !await.For(ctx, modelEvery) {
			return false
		}
	}
}

// namespaceOf returns the canonical text of the engine's namespace. Digests use the model's full
// name; the text uses as much of the name as fits.
func namespaceOf(n block.Namespace, model string) string {
	n.Model = labelOf(model)
	n.Revision, n.DType, n.Layout = cmp.Or(n.Revision, "-"), cmp.Or(n.DType, "-"), cmp.Or(n.Layout, "-")
	n.Tokens, n.TP, n.PP = block.Tokens, max(n.TP, 1), max(n.PP, 1)
	if n.Check() != nil {
		n = block.Namespace{Model: "-", Revision: "-", DType: "-", Layout: "-", Tokens: block.Tokens, TP: 1, PP: 1}
	}
	return n.String()
}

// labelOf returns as much of a model's name as fits into a namespace.
func labelOf(model string) string { return model[:min(len(model), 128)] }

// The reasons to give up an intact connection.
var (
	errRestarted  = errors.New("the engine has started anew")
	errOtherModel = errors.New("the engine serves another model")
)

// otherModel says whether the engine's model has changed.
func (f *Follower) otherModel() bool {
	model := f.o.Model()
	f.mu.Lock()
	defer f.mu.Unlock()
	return model != "" && model != f.known.model
}

// watchEngine waits until the engine or its model has changed, and returns the reason to give up
// the connection. It returns nil when ctx ends.
func (f *Follower) watchEngine(ctx context.Context) error {
	tick := time.NewTicker(modelEvery)
	defer tick.Stop()
	for {
		select {
		case <-f.restart:
			return errRestarted
		case <-tick.C:
			if f.otherModel() {
				return errOtherModel
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// heard is how long a publisher may take to process a subscription. Batches that it publishes
// before that do not reach this subscriber. So the Follower waits this long before it reads the
// replay.
const heard = 100 * time.Millisecond

// session connects to the publisher and follows it until the connection breaks.
func (f *Follower) session(ctx context.Context, door *door, distrust *time.Timer) (connected bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	if f.otherModel() {
		f.renew(errOtherModel.Error())
	}
	conn, err := door.enter(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	wg.Go(func() { cancel(f.watchEngine(ctx)) })
	s, err := open(conn, "SUB", "PUB", "XPUB")
	if err == nil {
		err = s.subscribe(f.o.Topic)
	}
	if why := context.Cause(ctx); errors.Is(why, errRestarted) {
		err = why
	}
	if err != nil {
		return false, err
	}
	_ = conn.SetDeadline(time.Time{})
	attend(conn)
	s.pings = s.knows
	f.counts.connects.Add(1)
	f.live = 0
	if !await.For(ctx, heard) {
		return false, ctx.Err()
	}
	if err := f.resume(ctx); err != nil {
		return false, err
	}
	distrust.Stop()
	f.follow()
	for err == nil {
		err = f.step(ctx, s)
	}
	if why := context.Cause(ctx); errors.Is(why, errRestarted) || errors.Is(why, errOtherModel) {
		err = why
		f.renew(why.Error())
	}
	return true, err
}

// follow notes that the knowledge is up to date again.
func (f *Follower) follow() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.connected = true
	if !f.following {
		f.following = true
		f.report.begin(&f.out)
		await.Wake(f.wake)
	}
}

// unfollow notes that the connection has been broken for too long.
func (f *Follower) unfollow() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.connected {
		f.following = false
		await.Wake(f.wake)
	}
}

// step reads one batch and applies it.
func (f *Follower) step(ctx context.Context, s *socket) error {
	parts, err := f.read(ctx, s)
	if err != nil {
		return err
	}
	seq, payload, err := batchOf(parts)
	if err != nil {
		f.counts.malformed.Add(1)
		f.renew("a message is no batch")
		return err
	}
	was := f.live
	f.live = seq + 1
	switch {
	case was > 0 && seq < was:
		f.renew("the publisher's numbers go back")
		err = f.resume(ctx)
	case seq > f.next:
		if f.next > 0 {
			f.counts.gaps.Add(1)
		}
		err = f.resume(ctx)
	}
	if err != nil || seq < f.next {
		return err // the replay has already brought this batch
	}
	if seq > f.next && f.next > 0 {
		f.counts.lost.Add(1)
		f.renew("batches are missing that the replay does not have")
	}
	return f.take(ctx, seq, payload)
}

// take applies the next batch, or the first one.
func (f *Follower) take(ctx context.Context, seq uint64, payload []byte) error {
	f.mu.Lock()
	if f.next == 0 {
		f.complete = seq == 0
	}
	f.known.uses = nil
	if f.following { // otherwise the batch is a replayed one, and old
		f.known.uses = f.o.Adapter
	}
	err := f.known.apply(payload)
	if f.known.emptied {
		f.complete, f.known.emptied = true, false
	}
	if !f.following {
		f.out.reset() // a snapshot will report everything
	}
	f.mu.Unlock()
	f.counts.batches.Add(1)
	if err != nil {
		f.counts.malformed.Add(1)
		f.renew("a batch cannot be read")
		f.said = err.Error()
	}
	f.next, f.last = seq+1, maphash.Bytes(f.seed, payload)
	await.Wake(f.wake)
	return f.awaitRoom(ctx)
}

// roomWithin is how long the reader waits for the sink before it drops changes.
const roomWithin = time.Second

// awaitRoom waits while the outbox is full and the sink takes reports. If the sink takes none, it
// drops the changes; a later snapshot replaces them.
func (f *Follower) awaitRoom(ctx context.Context) error {
	for {
		f.mu.Lock()
		full := f.out.size() > maxPending
		if full && f.report.failing {
			f.drop()
			full = false
		}
		f.mu.Unlock()
		if !full {
			return nil
		}
		select {
		case <-f.moved:
			continue
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(roomWithin):
		}
		f.mu.Lock()
		f.drop()
		f.mu.Unlock()
		return nil
	}
}

// drop drops changes that the sink does not take. The caller holds f.mu.
func (f *Follower) drop() {
	f.counts.dropped.Add(1)
	f.report.begin(&f.out)
}

// warnEvery is the time between log lines about new epochs. The metric counts all.
const warnEvery = 10 * time.Second

// renew forgets everything and begins a new epoch with the engine's present model.
func (f *Follower) renew(why string) {
	f.next, f.last = 0, 0
	model := f.o.Model()
	f.mu.Lock()
	defer f.mu.Unlock()
	if model != "" && model != f.known.model {
		f.known.model, f.namespace = model, namespaceOf(f.o.Namespace, model)
		f.known.chunks.withdraw()
	}
	f.known.forget()
	f.complete = false
	f.report.renew(&f.out)
	f.counts.epochs.Add(1)
	await.Wake(f.wake)
	level := slog.LevelDebug
	if now := time.Now(); now.Sub(f.warned) >= warnEvery {
		level, f.warned = slog.LevelWarn, now
	}
	f.log.Log(context.Background(), level, "what the engine has cached is not known any more, beginning anew", "why",
		why)
}
