package kvcached

import (
	"strconv"
	"sync"
	"time"

	"github.com/cognitora/dataplane/internal/metric"
	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/rdma/devices"
)

// rdmaCountersEvery is the shortest time between two reads of a device's counters. The driver may
// ask the card for each counter.
const rdmaCountersEvery = time.Second

// rdmaCounters reads the counters of RDMA devices at a scrape. One scrape at a time reads the
// counters. A scrape during another one, or within rdmaCountersEvery of it, gets the last values.
type rdmaCounters struct {
	root  string          // empty: /
	names func() []string // names of the devices that the daemon uses; nil: there are none
	now   func() time.Time

	reading sync.Mutex // held while devices are read
	mu      sync.Mutex
	at      time.Time // time of last
	last    map[string][]devices.Reading
}

// defineRDMA exports the states and counters of the devices. It also exports the caches that should
// be read by RDMA and are not.
func (in *instruments) defineRDMA() {
	c := &rdmaCounters{now: time.Now}
	if in.rails != nil {
		c.names = in.rails.Open
	}
	in.set.Read(rdmaDeviceDefs(), c.emit)
	in.set.Read(rdmaStateDefs, in.emitRDMAState)
}

// rdmaStateDefs are the metrics of the daemon's use of its devices.
var rdmaStateDefs = []metric.Def{
	{Name: "cgn_kvcached_rdma_device_open", Labels: []string{"device"}, Help: "1 if a device of rdma.devices is open, and 0 if it is closed, released or missing. A device named auto with the value 0 means that the host has no RDMA device."},
	{Name: "cgn_kvcached_rdma_demanded_missing", Help: "Other caches that this cache must read by RDMA (fleet.lane or [[fleet.peers]] is rdma) and cannot, although it has asked for their blocks in the last 2 minutes."},
}

func (in *instruments) emitRDMAState(emit func(def int, value float64, labels ...string)) {
	for _, card := range in.rails.Cards() {
		emit(0, metric.Bool(card.Address != ""), card.Name)
	}
	missing := 0
	if in.pool != nil {
		for _, s := range in.pool.Status() {
			if isMissing(&s, time.Now()) {
				missing++
			}
		}
	}
	emit(1, float64(missing))
}

// missingFor is the time after a failed request in which RDMA to a cache counts as missing. Without
// requests nobody tries RDMA again.
const missingFor = 2 * time.Minute

func isMissing(s *transport.PeerStatus, now time.Time) bool {
	return s.Target.Cards == transport.Demanded && !s.RDMA && s.Error != "" && now.Sub(s.Missed) < missingFor
}

// rdmaDeviceDefs are the metrics of the devices' counters. The last metric is the state of the
// port.
func rdmaDeviceDefs() []metric.Def {
	labels := []string{"device", "port"}
	var defs []metric.Def
	for _, c := range devices.Counters {
		defs = append(defs, metric.Def{Name: "cgn_kvcached_rdma_device_" + c.Name, Kind: metric.Counter, Labels: labels,
			Help: c.Help + " The card counts since its driver was loaded."})
	}
	return append(defs, metric.Def{Name: "cgn_kvcached_rdma_device_up", Labels: labels,
		Help: "1 if the port of a used RDMA device is active, else 0."})
}

func (c *rdmaCounters) emit(emit func(def int, value float64, labels ...string)) {
	for device, ports := range c.read() {
		for _, r := range ports {
			port := strconv.Itoa(r.Port)
			for i, known := range r.Known {
				if known {
					emit(i, float64(r.Values[i]), device, port)
				}
			}
			emit(len(r.Known), metric.Bool(r.Up), device, port)
		}
	}
}

// read returns the last values. New values are read first if the last ones are old and no other
// scrape is reading.
func (c *rdmaCounters) read() map[string][]devices.Reading {
	if c.names == nil {
		return nil
	}
	if c.reading.TryLock() {
		defer c.reading.Unlock()
		c.mu.Lock()
		due := c.last == nil || c.now().Sub(c.at) >= rdmaCountersEvery
		c.mu.Unlock()
		if due {
			fresh := map[string][]devices.Reading{}
			for _, name := range c.names() {
				if ports := devices.Read(c.root, name); ports != nil {
					fresh[name] = ports
				}
			}
			c.mu.Lock()
			c.last, c.at = fresh, c.now()
			c.mu.Unlock()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}
