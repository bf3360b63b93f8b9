package bpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
)

// MaxWatched is how many peers can be watched at a time.
const MaxWatched = 1024

// Events reads the events of the programs that are loaded under a root, and sets the peers that
// they report.
type Events struct {
	ring    *ringbuf.Reader
	watched *ebpf.Map
	peers   *ebpf.Map // read-only, as drops is
	drops   *ebpf.Map
	full    *ebpf.Map // ring buffer that ring reads
	only    *os.File  // locked, because a ring has one reader
}

// ErrEventsTaken is wrapped if another process reads the events.
var ErrEventsTaken = errors.New("another process reads the events of these programs")

// OpenEvents opens the ring of the programs under root (empty: DefaultRoot), which must be loaded.
// A ring has one reader at a time. Further readers get ErrEventsTaken. At first no peer is watched,
// whatever an earlier reader has watched. Events that do not fit into the ring are counted
// (Dropped).
func OpenEvents(root string) (e *Events, err error) {
	p := pins(rootOf(root))
	e = &Events{}
	defer func() {
		if err != nil {
			_ = e.Close()
		}
	}()
	if e.only, err = os.Open(filepath.Join(string(p), mapsDir)); err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			return e, opening(filepath.Join(string(p), mapsDir), err)
		}
		return e, &hinted{fmt.Errorf("bpf: nothing is loaded under %s: %w", p, err),
			"cgn-agent and cgn-ctl bpf serve load the programs"}
	}
	if err := unix.Flock(int(e.only.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return e, fmt.Errorf("bpf: %s: %w (%w)", p, ErrEventsTaken, err)
	}
	spec, err := loadSockets()
	if err != nil {
		return e, fmt.Errorf("bpf: read an embedded object: %w", err)
	}
	open := func(name string, o *ebpf.LoadPinOptions) *ebpf.Map {
		if err != nil {
			return nil
		}
		var m *ebpf.Map
		path := p.path(mapsDir, name)
		if m, err = ebpf.LoadPinnedMap(path, o); err != nil {
			err = opening(path, err)
		} else if !reusable(m, spec.Maps[name]) {
			_ = m.Close()
			m, err = nil, &hinted{fmt.Errorf("bpf: %s was made by another version of Cognitora", path),
				"restart the agent with this one"}
		}
		return m
	}
	e.watched = open("cgn_watched", nil)
	e.peers = open("cgn_peers", &ebpf.LoadPinOptions{ReadOnly: true})
	e.drops = open("cgn_drops", &ebpf.LoadPinOptions{ReadOnly: true})
	e.full = open("cgn_events", nil)
	if err != nil {
		return e, err
	}
	if e.ring, err = ringbuf.NewReader(e.full); err != nil {
		return e, fmt.Errorf("bpf: open the ring of events: %w", err)
	}
	return e, e.unwatchAll()
}

// Watch makes Next return rare events on connections to a peer, with the id. Watch takes effect
// immediately, and includes connections that are already open. At most MaxWatched peers are
// watched.
func (e *Events) Watch(addr netip.AddrPort, id uint64) error {
	key := peerKey(addr)
	if err := e.watched.Put(&key, &socketsWatch{Id: id}); err != nil {
		return fmt.Errorf("bpf: watch %s (at most %d peers can be): %w", addr, MaxWatched, err)
	}
	return nil
}

// Unwatch ends Watch.
func (e *Events) Unwatch(addr netip.AddrPort) error {
	key := peerKey(addr)
	return forget(e.watched, &key)
}

func (e *Events) unwatchAll() error {
	var key socketsPeerKey
	var v socketsWatch
	var all []socketsPeerKey
	entries := e.watched.Iterate()
	for entries.Next(&key, &v) {
		all = append(all, key)
	}
	errs := []error{wrap("cgn_watched", entries.Err())}
	for i := range all {
		errs = append(errs, forget(e.watched, &all[i]))
	}
	return errors.Join(errs...)
}

// Dropped returns how many events did not fit into the ring.
func (e *Events) Dropped() (n uint64, err error) {
	per, err := perCPU[socketsDrops](e.drops, "cgn_drops")
	for i := range per {
		n += per[i].EventsFull
	}
	return n, err
}

// PeersFD returns a descriptor of the counts of all peers. The descriptor's receiver can only read
// the counts (NewPeerCounts). e owns it and closes it.
func (e *Events) PeersFD() int { return e.peers.FD() }

// Next waits for an event, until the deadline unless that is zero. Next's error wraps
// os.ErrDeadlineExceeded after the deadline, and os.ErrClosed after Close.
func (e *Events) Next(deadline time.Time) (Event, error) {
	e.ring.SetDeadline(deadline)
	record, err := e.ring.Read()
	if err != nil {
		return Event{}, err
	}
	return decode(record.RawSample)
}

// Interrupt makes a waiting Next fail, or else the next call that would wait.
func (e *Events) Interrupt() { _ = e.ring.Flush() } // fails on a closed ring

// errEvent means that an event has an unknown length.
var errEvent = errors.New("bpf: an event has a length that is not known")

func decode(b []byte) (Event, error) {
	var v socketsEvent
	if len(b) < binary.Size(v) {
		return Event{}, errEvent
	}
	if err := binary.Read(bytes.NewReader(b), binary.LittleEndian, &v); err != nil {
		return Event{}, errEvent
	}
	e := Event{At: time.Duration(v.TimeNs), ID: v.Id, Peer: v.Peer.addr(), Kind: EventKind(v.Kind),
		Timeouts: int(v.Timeouts), LocalPort: uint16(v.LocalPort)}
	if n := now(); n > v.TimeNs {
		e.Age = time.Duration(n - v.TimeNs)
	}
	return e, nil
}

// Close closes the reader, and ends a waiting Next. No peer is watched any more.
func (e *Events) Close() error {
	var errs []error
	if e.watched != nil {
		errs = append(errs, e.unwatchAll())
	}
	if e.ring != nil {
		errs = append(errs, e.ring.Close())
	}
	for _, m := range []*ebpf.Map{e.watched, e.peers, e.drops, e.full} {
		if m != nil {
			errs = append(errs, m.Close())
		}
	}
	if e.only != nil {
		errs = append(errs, e.only.Close())
	}
	return errors.Join(errs...)
}
