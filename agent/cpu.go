package agent

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/cognitora/dataplane/internal/load"
)

// minSample is the shortest interval over which a CPU share is measured.
const minSample = 250 * time.Millisecond

// cpuMeter measures the utilisation of the host's CPUs, from /proc/stat.
type cpuMeter struct {
	file string

	mu    sync.Mutex
	at    time.Time
	times cpuTimes
	share load.Gauge
}

// cpuTimes are clock ticks since boot, of all CPUs together.
type cpuTimes struct{ busy, total uint64 }

func newCPUMeter() *cpuMeter { return &cpuMeter{file: "/proc/stat"} }

// percent returns the share of CPU time spent since the last call, 0 to 100. The share is unknown
// at the first call, and on a host without /proc. A call within minSample of the last one returns
// the same value.
func (m *cpuMeter) percent(now time.Time) load.Gauge {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.at.IsZero() && now.Sub(m.at) < minSample {
		return m.share
	}
	t, err := readCPUTimes(m.file)
	if err != nil {
		return load.Gauge{}
	}
	if !m.at.IsZero() && t.total > m.times.total && t.busy >= m.times.busy {
		m.share = load.Known(min(100, 100*float64(t.busy-m.times.busy)/float64(t.total-m.times.total)))
	}
	m.at, m.times = now, t
	return m.share
}

// readCPUTimes reads the first line of /proc/stat: user nice system idle iowait
// irq softirq steal guest guest_nice. The guest times are part of user and nice.
func readCPUTimes(file string) (t cpuTimes, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return t, err
	}
	line, _, _ := bytes.Cut(data, []byte{'\n'})
	fields := bytes.Fields(line)
	if len(fields) < 6 || string(fields[0]) != "cpu" {
		return t, fmt.Errorf("%s: no cpu line", file)
	}
	for i, f := range fields[1:min(len(fields), 9)] {
		v, err := strconv.ParseUint(string(f), 10, 64)
		if err != nil {
			return t, fmt.Errorf("%s: %w", file, err)
		}
		t.total += v
		if i != 3 && i != 4 { // idle, iowait
			t.busy += v
		}
	}
	return t, nil
}
