package transport

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kvcached/wire"
	"github.com/cognitora/dataplane/rdma"
)

// AnyCard in RailsOptions.Wanted stands for all cards of the host.
const AnyCard = "auto"

// ErrNoCard says that no card of that name is used.
var ErrNoCard = errors.New("transport: no such card is used")

// errKept says that a card was closed by Release.
var errKept = errors.New("given away on request; it is taken back when it has been gone and is there again, or when " +
	"the daemon starts anew")

// errAbsent says that the host has no card of that name.
var errAbsent = errors.New("the kernel has no device of that name; see rdma.devices, and cgn-ctl rdma check")

// errNone says that all cards are wanted and the host has none.
var errNone = errors.New("rdma.devices is auto, and this host has no RDMA device; cgn-ctl rdma check says why")

// RailsOptions are the options of NewRails.
type RailsOptions struct {
	Wanted []string // names of cards, or AnyCard; at most wire.MaxRails are used
	// Present returns the cards of the host by name. Each card has an identity, which changes if
	// another card gets the same name.
	Present func() map[string]string
	Open    func(name string) (rdma.Device, error) // must be given
	Memory  []byte                                 // of the blocks, outside Go's heap; each card registers it once
	// Trusted are the networks in which hosts may read each other's memory without being Demanded.
	Trusted  []netip.Prefix
	GrantAny bool          // peers of other networks may read this host's memory, too
	Poll     time.Duration // pause between looks for cards that have come back; 0: 2 s
	Logger   *slog.Logger  // nil: slog.Default()

	Demanded bool // some peer is Demanded: the log reports an unusable card as an error
}

// Rails are the cards of this host by which hosts read each other's memory. Servers and pools share
// them. A card that is removed is closed, and opened again when it is back.
type Rails struct {
	o      RailsOptions
	probes []byte // peers read the first probe; this host reads peers' probes into the others
	crc    uint32 // CRC32C of the first probe
	slots  chan int
	stop   context.Context
	end    context.CancelFunc
	work   sync.WaitGroup

	opened atomic.Uint64 // cards opened so far

	mu    sync.Mutex
	cards map[string]*card
	none  bool // all cards are wanted and the host has none
}

// card is a wanted card. Rails.mu guards it.
type card struct {
	rail *rail  // nil: not open
	why  error  // why the card is not open
	kept string // identity of the card that Release closed, until it is removed; empty: none
	busy chan struct{}

	pause time.Duration // pause after a failed attempt to open the card; it doubles
	until time.Time     // time of the next attempt
}

// lastReopen bounds the pause between attempts to open a card. Each attempt may have to lock the
// whole memory.
const lastReopen = time.Minute

// rail is an open card, the local part of a rail. A rail joins it to a card of another host by a
// queue pair.
type rail struct {
	name string
	dev  rdma.Device
	addr netip.Addr
}

// probeSize is the bytes of a probe. A probe fills a packet, so it fails if the MTU between the
// hosts is smaller.
const probeSize = wire.MaxProbe

// mostProbes bounds the probes that are read at a time. Further probes wait.
const mostProbes = 63

// NewRails opens the cards of the host. A card that cannot be opened is logged, listed by Cards,
// and tried again.
func NewRails(o RailsOptions) (*Rails, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	o.Poll = orDuration(o.Poll, 2*time.Second)
	probes, err := unix.Mmap(-1, 0, (1+mostProbes)*probeSize, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("transport: memory for probes: %w", err)
	}
	r := &Rails{o: o, probes: probes, slots: make(chan int, mostProbes), cards: map[string]*card{}}
	_, _ = rand.Read(probes[:probeSize])
	r.crc = block.Sum(probes[:probeSize])
	for i := range mostProbes {
		r.slots <- (1 + i) * probeSize
	}
	r.stop, r.end = context.WithCancel(context.Background())
	r.look()
	r.work.Go(r.follow)
	return r, nil
}

// Close closes the cards. After success no card reads or writes Memory.
func (r *Rails) Close() error {
	r.mu.Lock() // from now on Release begins nothing
	r.end()
	r.mu.Unlock()
	r.work.Wait()
	var open []rdma.Device
	r.mu.Lock()
	for _, c := range r.cards {
		if c.rail != nil {
			open = append(open, c.rail.dev)
			c.rail = nil
		}
	}
	probes := r.probes
	r.probes = nil
	r.mu.Unlock()
	var errs []error
	for _, dev := range open { // a driver may take long
		errs = append(errs, dev.Close())
	}
	if err := errors.Join(errs...); err != nil || probes == nil {
		return err
	}
	return unix.Munmap(probes)
}

// follow looks for cards that have come back.
func (r *Rails) follow() {
	tick := time.NewTicker(r.o.Poll)
	defer tick.Stop()
	for {
		select {
		case <-r.stop.Done():
			return
		case <-tick.C:
		}
		r.look()
	}
}

// look opens cards that are there and not open. One goroutine at a time calls it.
func (r *Rails) look() {
	there := r.o.Present()
	names := r.wanted(there)
	r.mu.Lock()
	if was := r.none; len(names) > 0 {
		r.none = false
	} else if r.none = true; !was {
		r.warn(errNone, "card", AnyCard)
	}
	r.mu.Unlock()
	for _, name := range names {
		if r.mayOpen(name, there[name]) {
			r.open(name)
		}
	}
}

// wanted returns the names of the cards to use. Names in Wanted come first, then open cards, cards
// that are present, and earlier cards, up to wire.MaxRails. wanted forgets all other cards.
func (r *Rails) wanted(there map[string]string) (names []string) {
	for _, name := range r.o.Wanted {
		if name != AnyCard {
			names = append(names, name)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.Contains(r.o.Wanted, AnyCard) {
		var open, were []string
		for name, c := range r.cards {
			if c.rail != nil {
				open = append(open, name)
			} else {
				were = append(were, name)
			}
		}
		for _, more := range [][]string{open, slices.Collect(maps.Keys(there)), were} {
			slices.Sort(more)
			for _, name := range more {
				if !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		}
	}
	names = names[:min(len(names), wire.MaxRails)]
	maps.DeleteFunc(r.cards, func(name string, c *card) bool {
		return c.rail == nil && c.busy == nil && c.kept == "" && !slices.Contains(names, name)
	})
	return names
}

func (r *Rails) mayOpen(name, identity string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.cards[name]
	if c == nil {
		c = &card{}
		r.cards[name] = c
	}
	switch {
	case c.rail != nil, c.busy != nil:
		return false
	case identity == "":
		c.kept, c.pause, c.until = "", 0, time.Time{}
		r.closed(name, c, errAbsent)
		return false
	case c.kept == identity, time.Now().Before(c.until):
		return false
	}
	c.kept, c.busy = "", make(chan struct{})
	return true
}

// closed notes why a card is not open, and logs a new reason. mu is held.
func (r *Rails) closed(name string, c *card, why error) {
	if c.why == nil || c.why.Error() != why.Error() {
		r.warn(why, "card", name)
	}
	c.why = why
}

// warn logs that a card is not used.
func (r *Rails) warn(why error, about ...any) {
	level := slog.LevelWarn
	switch {
	case errors.Is(why, errKept):
		level = slog.LevelInfo
	case r.o.Demanded || errors.Is(why, rdma.ErrMemlock):
		level = slog.LevelError
	}
	r.o.Logger.Log(context.Background(), level, "a card is not used for RDMA, blocks go over QUIC or TLS meanwhile",
		append(about, "reason", why)...)
}

func (r *Rails) open(name string) {
	opened, err := r.prepare(name)
	r.mu.Lock()
	c := r.cards[name]
	if err == nil && c.kept != "" { // Release was called meanwhile
		r.mu.Unlock()
		r.shut(name, opened)
		return
	}
	defer r.mu.Unlock()
	close(c.busy)
	c.busy = nil
	if err != nil {
		c.pause = min(max(2*c.pause, r.o.Poll), lastReopen)
		c.until = time.Now().Add(c.pause)
		r.closed(name, c, err)
		return
	}
	c.pause = 0
	c.rail, c.why = opened, nil
	r.opened.Add(1)
	r.o.Logger.Info("a card is used for RDMA", "card", name, "address", opened.addr.String(), "trusted",
		r.trusts(opened.addr), "windows", opened.dev.Limits().Windows,
		"mtu", opened.dev.Limits().MTU)
	r.work.Go(func() {
		select {
		case <-opened.dev.Gone():
			r.lost(name, opened)
		case <-r.stop.Done():
		}
	})
}

// prepare opens a card and registers the memory with it.
func (r *Rails) prepare(name string) (*rail, error) {
	dev, err := r.o.Open(name)
	if err != nil {
		return nil, err
	}
	opened, err := r.register(name, dev)
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return opened, nil
}

func (r *Rails) register(name string, dev rdma.Device) (*rail, error) {
	for _, mem := range [][]byte{r.o.Memory, r.probes} {
		if err := dev.Register(mem); err != nil {
			if errors.Is(err, rdma.ErrMemlock) {
				err = fmt.Errorf("%w; allow it to lock %d MiB: LimitMEMLOCK=infinity in the systemd unit, ulimit -l "+
					"unlimited in a shell, or give less with kvcached.ram", err, (len(r.o.Memory)+len(r.probes))>>20+1)
			}
			return nil, err
		}
	}
	pair, err := dev.Pair(rdma.PairOptions{})
	if err != nil {
		return nil, err
	}
	return &rail{name, dev, addrOf(pair.Local().GID)}, pair.Close()
}

// lost closes a card that was removed.
func (r *Rails) lost(name string, was *rail) {
	r.mu.Lock()
	c := r.cards[name]
	if c == nil || c.rail != was {
		r.mu.Unlock()
		return
	}
	c.rail, c.busy = nil, make(chan struct{})
	r.closed(name, c, rdma.ErrGone)
	r.mu.Unlock()
	r.shut(name, was)
}

// shut closes a card that is marked as busy.
func (r *Rails) shut(name string, was *rail) {
	if err := was.dev.Close(); err != nil {
		r.o.Logger.Warn("a card did not close well", "card", name, "error", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.cards[name]
	close(c.busy)
	c.busy = nil
}

// trusts tells whether hosts of that address may read this host's memory, and be read.
func (r *Rails) trusts(a netip.Addr) bool {
	return slices.ContainsFunc(r.o.Trusted, func(p netip.Prefix) bool { return p.Contains(a) })
}

// usable returns the open cards in trusted networks, or in any network, sorted by name.
func (r *Rails) usable(anyNetwork bool) (out []*rail) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.cards {
		if c.rail != nil && (anyNetwork || r.trusts(c.rail.addr)) {
			out = append(out, c.rail)
		}
	}
	slices.SortFunc(out, func(a, b *rail) int { return strings.Compare(a.name, b.name) })
	return out
}

// lack returns why no card is usable.
func (r *Rails) lack() noRails {
	var closed, strange []string
	for _, c := range r.Cards() {
		if c.Address == "" {
			closed = append(closed, c.Name+": "+c.Why)
		} else {
			strange = append(strange, c.Name+", "+c.Address)
		}
	}
	switch {
	case len(strange) > 0 && len(r.o.Trusted) == 0:
		return noRails("rdma.trusted_networks is empty; give the network of the cards of both hosts, if all in it " +
			"may see and change blocks (here " + strings.Join(strange, "; ") + ")")
	case len(strange) > 0:
		return noRails("no card here has an address in rdma.trusted_networks (" + strings.Join(strange, "; ") + ")")
	}
	return noRails("no card is open here: " + strings.Join(closed, "; "))
}

// noRails is the reason why no card of this host is usable.
type noRails string

func (e noRails) Error() string { return string(e) }

// holds tells whether bytes lie in Memory.
func (r *Rails) holds(b []byte) bool {
	if len(b) == 0 {
		return true
	}
	begin, at := uintptr(unsafe.Pointer(unsafe.SliceData(r.o.Memory))), uintptr(unsafe.Pointer(unsafe.SliceData(b)))
	return at >= begin && at+uintptr(len(b)) <= begin+uintptr(len(r.o.Memory))
}

// addrOf returns the address in a GID of RoCE v2.
func addrOf(gid [16]byte) netip.Addr { return netip.AddrFrom16(gid).Unmap() }
