package keys

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/await"
	"github.com/cognitora/dataplane/internal/cluster"
)

// fileEvery is how often a file of keys is read. Its content counts, not its time: Kubernetes swaps
// the directory of a secret by a link.
const fileEvery = 2 * time.Second

// Follower keeps a Set as its file or etcd has it. What cannot be read leaves the set as it is.
type Follower struct {
	Set  *Set
	File string          // empty: etcd
	Etcd *cluster.Client // unused with a file
	Log  *slog.Logger

	// Changed is called after the set has changed, on Run's goroutine; may be nil.
	Changed func()

	doc     []byte             // of the file
	records map[string]*Record // by id, of etcd
	bad     map[string]string  // by id, why a record of etcd does not count
	lost    bool               // etcd has lost its data, and records are those from before
	problem atomic.Pointer[string]
}

// Len returns the number of keys; 0 for a nil Follower.
func (f *Follower) Len() int {
	if f == nil {
		return 0
	}
	return f.Set.Len()
}

// Problem says why the keys are not those of the file or etcd; empty: they are, or f is nil.
func (f *Follower) Problem() string {
	if f == nil {
		return ""
	}
	if p := f.problem.Load(); p != nil {
		return *p
	}
	return ""
}

// Meanwhile says what counts while there is a problem.
func (f *Follower) Meanwhile() string {
	if f.Set.Known() {
		return "the keys read last count on"
	}
	return "none is known yet, and requests with keys get 503"
}

func (f *Follower) tell(problem string) {
	if was := f.Problem(); was != problem && problem != "" {
		f.Log.Error("API keys not read; "+f.Meanwhile(), "source", f.Source(), "error", problem)
	} else if was != problem {
		f.Log.Info("API keys read again", "source", f.Source())
	}
	f.problem.Store(&problem)
}

// Source says where the keys come from.
func (f *Follower) Source() string {
	if f.File != "" {
		return f.File
	}
	return "etcd " + cluster.KeysPrefix
}

// Load reads the file for the first time. Load does nothing without a file.
func (f *Follower) Load() error {
	if f.File == "" {
		return nil
	}
	doc, err := ReadFile(f.File)
	if err != nil {
		return err
	}
	return f.take(doc)
}

// take puts the content of the file into the set.
func (f *Follower) take(doc []byte) error {
	records, err := ParseFile(doc)
	if err != nil {
		return err
	}
	if err := f.Set.Put(records); err != nil {
		return err
	}
	f.doc = doc
	return nil
}

// Run follows the file or etcd until ctx ends.
func (f *Follower) Run(ctx context.Context) error {
	if f.File == "" {
		return f.runEtcd(ctx)
	}
	for await.For(ctx, fileEvery) {
		f.look()
	}
	return nil
}

// look reads the file again.
func (f *Follower) look() {
	doc, err := ReadFile(f.File)
	if err == nil && (f.Problem() != "" || !bytes.Equal(doc, f.doc)) {
		if err = f.take(doc); err == nil {
			f.Log.Info("API keys read", "source", f.File, "keys", f.Set.Len())
			f.changed()
		}
	}
	if err != nil {
		f.tell(err.Error())
	} else if f.Problem() != "" {
		f.tell("")
	}
}

func (f *Follower) changed() {
	if f.Changed != nil {
		f.Changed()
	}
}

// runEtcd follows the keys of etcd. A record that cannot be read does not count: its last change
// may have been a revocation.
func (f *Follower) runEtcd(ctx context.Context) error {
	return f.Etcd.Watch(ctx, cluster.KeysPrefix, f.handler())
}

func (f *Follower) handler() cluster.Handler {
	f.records, f.bad = map[string]*Record{}, map[string]string{}
	return cluster.Handler{
		List: func(l cluster.Listing) {
			f.lost = len(l.Entries) == 0 && len(f.records) > 0 && (f.lost || l.DataLost)
			if f.lost {
				f.tell("etcd came back without its data")
				return
			}
			f.forget()
			for _, e := range l.Entries {
				f.enter(e)
			}
			f.put()
		},
		Put: func(e cluster.Entry) {
			if f.lost {
				f.forget()
			}
			f.enter(e)
			f.put()
		},
		Delete: func(key string) {
			if f.lost {
				return // the key is none of those that count on
			}
			id := strings.TrimPrefix(key, cluster.KeysPrefix)
			delete(f.records, id)
			delete(f.bad, id)
			f.put()
		},
		Lost: func(err error) { f.tell(err.Error()) },
	}
}

// forget begins anew with what etcd has.
func (f *Follower) forget() {
	f.lost = false
	clear(f.records)
	clear(f.bad)
}

// enter records an entry of etcd.
func (f *Follower) enter(e cluster.Entry) {
	id := strings.TrimPrefix(e.Key, cluster.KeysPrefix)
	delete(f.records, id)
	delete(f.bad, id)
	r, err := ParseRecord(e.Value)
	switch {
	case err != nil:
		f.bad[id] = err.Error()
	case r.ID != id:
		f.bad[id] = "its value has the id " + r.ID
	default:
		f.records[id] = r
	}
}

// put puts the records of etcd into the set, without those that share a text.
func (f *Follower) put() {
	bad := sharedTexts(f.records)
	maps.Copy(bad, f.bad)
	all := make([]*Record, 0, len(f.records))
	for id, r := range f.records {
		if bad[id] == "" {
			all = append(all, r)
		}
	}
	if err := f.Set.Put(all); err != nil {
		f.tell(err.Error())
		return
	}
	problem := ""
	for id, why := range bad {
		if one := "key " + id + ": " + why; problem == "" || one < problem {
			problem = one
		}
	}
	f.tell(problem)
	f.changed()
}

// sharedTexts says of the records that have a text more than once, or one of another record, why
// they do not count. Nobody can tell whose key the text is.
func sharedTexts(records map[string]*Record) (bad map[string]string) {
	bad = map[string]string{}
	of := map[Digest]string{} // id of the first record
	for id, r := range records {
		for _, text := range r.texts() {
			sum, err := parseDigest(text)
			if err != nil {
				bad[id] = err.Error()
				continue
			}
			if first, twice := of[sum]; twice {
				bad[id], bad[first] = "it has a sha256 of the key "+first, "it has a sha256 of the key "+id
				continue
			}
			of[sum] = id
		}
	}
	return bad
}
