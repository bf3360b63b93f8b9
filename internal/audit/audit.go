// Package audit writes one JSON line for each administrative act and for each refused identity, to
// a file or to the host's syslog. No line has a secret.
//
// A caller never waits for the file. Lines wait in a queue for one writer. Refusals are limited for
// each reason, and acts of clients for each of them; a line tells how many were left out.
package audit

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cognitora/dataplane/internal/logfile"
)

// Bounds of a log.
const (
	queueLines = 1024 // lines that wait to be written, at most 4 KiB each
	maxReasons = 64   // reasons, or clients, with a limit of their own; further ones share one
	maxText    = 512  // bytes of one text
)

// Options say where lines go.
type Options struct {
	To      string // a file to append to, "-" for standard output, or "syslog"
	Program string // name of this program in the syslog

	RefusalsPerSecond int // lines about one reason, or acts of one client; at least 1

	// Lost is called for lines that are not written: the queue was full (nil), a write has failed,
	// or one hangs at Close. Lost must not block.
	Lost func(lines int, err error)
	// Worked, if set, is called after a line was written.
	Worked func()
	// Suppressed is called for each refusal or act beyond the limit. Suppressed must not block.
	Suppressed func()

	socket string // replaces syslogSocket in tests
}

// Act is an administrative act.
type Act struct {
	Action  string // such as reload, or POST /busy_threshold
	Object  string // what it changes
	By      string // who acts: the id of a key, a certificate's name, signal, etcd; empty: unknown
	Client  string // address of the client; empty: none
	Outcome string // ok, or the status or the error
	Limited bool   // a client may act as often as it likes: lines about acts of one By are limited
}

// Refusal is a request of somebody who may not send it.
type Refusal struct {
	Reason string // a constant word
	Detail string // the message of the answer
	Key    string // id of the key that was shown; empty: none, or it is none of ours
	Tenant string // empty: unknown
	Client string // address
	Port   string // serving or admin
	Asked  string // the API or the route; no text of the client's choice
}

// line is a line of the log.
type line struct {
	Time       string `json:"time"`
	Event      string `json:"event"` // act or refusal
	Action     string `json:"action,omitempty"`
	Object     string `json:"object,omitempty"`
	Outcome    string `json:"outcome,omitempty"`
	By         string `json:"by,omitempty"`
	Reason     string `json:"reason,omitempty"`
	Detail     string `json:"detail,omitempty"`
	Key        string `json:"key,omitempty"`
	Tenant     string `json:"tenant,omitempty"`
	Client     string `json:"client,omitempty"`
	Port       string `json:"port,omitempty"`
	Asked      string `json:"asked,omitempty"`
	Suppressed int    `json:"suppressed,omitempty"` // of the reason or client, since its last line
}

// Log is an open audit log. A nil Log records nothing. A Log is safe for concurrent use.
type Log struct {
	o       Options
	queue   *logfile.Queue[[]byte]
	pending atomic.Int64 // lines that the writer has taken and not written

	mu      sync.Mutex
	reasons map[string]*window // of refusals
	clients map[string]*window // of acts
}

// window is the last second in which refusals with one reason, or acts of one client, had lines.
type window struct {
	began      time.Time
	lines      int
	suppressed int
}

// New opens the log and starts its writer, which Close stops.
func New(o Options) (*Log, error) {
	s, err := open(&o)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	l := &Log{o: o, reasons: map[string]*window{}, clients: map[string]*window{}}
	l.queue = logfile.New[[]byte](writer{s, l}, queueLines)
	return l, nil
}

// Act records an act, unless it is limited and its client has had its lines of this second.
func (l *Log) Act(a Act) {
	if l == nil {
		return
	}
	v := &line{Event: "act", Action: a.Action, Object: a.Object, Outcome: a.Outcome, By: a.By, Client: a.Client}
	if a.Limited {
		var ok bool
		if v.Suppressed, ok = l.admit(l.clients, a.By, time.Now()); !ok {
			return
		}
	}
	l.put(v)
}

// Stops records that the daemon was told to stop, or that a part of it has failed.
func (l *Log) Stops(failed error) {
	act := Act{Action: "stop", By: "signal", Outcome: "ok"}
	if failed != nil {
		act.By, act.Outcome = "", failed.Error()
	}
	l.Act(act)
}

// Refuse records a refusal, unless its reason has had its lines of this second.
func (l *Log) Refuse(r Refusal) {
	if l == nil {
		return
	}
	suppressed, ok := l.admit(l.reasons, r.Reason, time.Now())
	if !ok {
		return
	}
	l.put(&line{
		Event: "refusal", Reason: r.Reason, Detail: r.Detail, Key: r.Key, Tenant: r.Tenant, Client: r.Client,
		Port: r.Port, Asked: r.Asked, Suppressed: suppressed,
	})
}

// admit says whether a refusal or an act has a line, by its reason or client, and returns the
// number of those before without one.
func (l *Log) admit(of map[string]*window, name string, now time.Time) (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := of[name]
	if w == nil && len(of) >= maxReasons {
		name = "other"
		w = of[name]
	}
	if w == nil {
		w = &window{}
		of[name] = w
	}
	if now.Sub(w.began) >= time.Second {
		w.began, w.lines = now, 0
	}
	if w.lines >= l.o.RefusalsPerSecond {
		w.suppressed++
		l.o.Suppressed()
		return 0, false
	}
	w.lines++
	suppressed, w.suppressed = w.suppressed, 0
	return suppressed, true
}

// encode returns the text of a line.
func encode(v *line) []byte {
	v.Time = time.Now().UTC().Format("2006-01-02T15:04:05.000Z07:00")
	for _, text := range []*string{
		&v.Action, &v.Object, &v.Outcome, &v.By, &v.Reason, &v.Detail, &v.Key, &v.Tenant, &v.Client, &v.Port, &v.Asked,
	} {
		*text = strings.ToValidUTF8((*text)[:min(len(*text), maxText)], "")
	}
	text, _ := json.Marshal(v) // texts and a number
	return append(text, '\n')
}

// put queues a line, or loses it if the queue is full.
func (l *Log) put(v *line) {
	if !l.queue.Put(encode(v)) {
		l.o.Lost(1, nil)
	}
}

// Reopen is logfile.Queue.Reopen. It does nothing for a nil Log.
func (l *Log) Reopen() error {
	if l == nil {
		return nil
	}
	return l.queue.Reopen()
}

// Close is logfile.Queue.Close. It does nothing for a nil Log.
func (l *Log) Close() error {
	if l == nil {
		return nil
	}
	return l.queue.Close()
}

// writer writes the lines of a log. It is a logfile.Writer.
type writer struct {
	logfile.Sink
	log *Log
}

// Write writes a line.
func (w writer) Write(text []byte) { w.write(text) }

// write writes lines. After an error the rest is lost.
func (w writer) write(lines ...[]byte) {
	w.log.pending.Store(int64(len(lines)))
	for _, text := range lines {
		if _, err := w.Sink.Write(text); err != nil {
			w.Lost(0, err)
			return
		}
		w.log.pending.Add(-1)
		if w.log.o.Worked != nil {
			w.log.o.Worked()
		}
	}
}

// Lost counts lines that are not written, and those that the writer has taken.
func (w writer) Lost(lines int, err error) {
	if lines += int(max(w.log.pending.Swap(0), 0)); lines > 0 {
		w.log.o.Lost(lines, fmt.Errorf("audit: %w", err))
	}
}

// Flush writes the numbers of refusals and acts without a line, in one line for each reason and
// client.
func (w writer) Flush() error {
	var lines [][]byte
	w.log.mu.Lock()
	for reason, of := range w.log.reasons {
		if of.suppressed > 0 {
			lines = append(lines, encode(&line{Event: "refusal", Reason: reason, Suppressed: of.suppressed}))
			of.suppressed = 0
		}
	}
	for client, of := range w.log.clients {
		if of.suppressed > 0 {
			lines = append(lines, encode(&line{Event: "act", By: client, Suppressed: of.suppressed}))
			of.suppressed = 0
		}
	}
	w.log.mu.Unlock() // a write may take long
	w.write(lines...)
	return nil
}
