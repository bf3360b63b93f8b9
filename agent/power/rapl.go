package power

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// powercap is the directory of RAPL's energy counters.
const powercap = "/sys/class/powercap"

const (
	maxZones = 256 // packages and their DRAM; a host of 64 sockets has 128
	// maxGap is the longest time between two compared readings of a counter. A counter wraps at
	// most once within maxGap.
	maxGap = 60 * time.Second
	// maxZoneWatts is more than a package can draw. A counter that implies more was reset.
	maxZoneWatts = 5000
)

// rapl reads the energy counters of the CPU packages and of their DRAM. rapl leaves out other
// zones. Core and uncore are parts of a package. Psys is the whole board, and few boards have it
// calibrated. Intel-rapl-mmio repeats the packages.
type rapl struct {
	zones []zone
	buf   [32]byte
}

type zone struct {
	path  string
	part  component // cpu or dram
	file  *os.File
	most  uint64 // value in microjoules at which the counter wraps
	last  uint64
	at    time.Duration
	known bool // true if last and at are valid
}

var zoneName = regexp.MustCompile(`^intel-rapl:\d+(:\d+)?$`)

// openRAPL opens every counter under root. openRAPL fails if one package cannot be read, because
// the sum of the others is not the CPUs' power.
func openRAPL(root string) (*rapl, error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s is not there: this kernel or this machine has no RAPL, as most virtual ones", root)
	}
	if err != nil {
		return nil, err
	}
	r := &rapl{}
	for _, e := range entries {
		if !zoneName.MatchString(e.Name()) || len(r.zones) == maxZones {
			continue
		}
		if err := r.add(filepath.Join(root, e.Name())); err != nil {
			r.close()
			return nil, err
		}
	}
	if !r.has(cpu) {
		r.close()
		return nil, fmt.Errorf("%s has no CPU package", root)
	}
	return r, nil
}

func (r *rapl) add(dir string) error {
	name, err := os.ReadFile(filepath.Join(dir, "name"))
	if err != nil {
		return err
	}
	z := zone{path: filepath.Join(dir, "energy_uj")}
	switch text := strings.TrimSpace(string(name)); {
	case strings.HasPrefix(text, "package-"):
		z.part = cpu
	case text == "dram":
		z.part = dram
	default:
		return nil
	}
	most, err := os.ReadFile(filepath.Join(dir, "max_energy_range_uj"))
	if err != nil {
		return err
	}
	if z.most, err = parseCounter(most); err != nil {
		return fmt.Errorf("%s: max_energy_range_uj: %w", dir, err)
	}
	z.file, err = os.Open(z.path)
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%s is for root alone; let the agent's group read it (docs/power.md)", z.path)
	}
	if err != nil {
		return err
	}
	r.zones = append(r.zones, z)
	return nil
}

func (r *rapl) has(part component) bool {
	return slices.ContainsFunc(r.zones, func(z zone) bool { return z.part == part })
}

func (r *rapl) close() {
	if r == nil {
		return
	}
	for i := range r.zones {
		_ = r.zones[i].file.Close()
	}
}

// read returns the mean power of the packages and of their DRAM since the previous reading, in
// watts. A sum is unknown if the power of one zone is unknown.
func (r *rapl) read(clock func() time.Duration) (watts [components]float64, known [components]bool, err error) {
	known[cpu], known[dram] = true, r.has(dram)
	for i := range r.zones {
		z := &r.zones[i]
		w, ok, zoneErr := z.read(r.buf[:], clock)
		if zoneErr != nil {
			err = zoneErr
		}
		known[z.part] = known[z.part] && ok
		watts[z.part] += w
	}
	return watts, known, err
}

func (z *zone) read(buf []byte, clock func() time.Duration) (watts float64, ok bool, err error) {
	n, readErr := z.file.ReadAt(buf, 0)
	now := clock()
	if n == 0 && readErr != nil {
		z.known = false
		return 0, false, readErr
	}
	value, err := parseCounter(buf[:n])
	if err != nil {
		z.known = false
		return 0, false, fmt.Errorf("%s: %w", z.path, err)
	}
	last, at, known := z.last, z.at, z.known
	z.last, z.at, z.known = value, now, true
	elapsed := now - at
	if !known || elapsed <= 0 || elapsed > maxGap {
		return 0, false, nil
	}
	used := value - last
	if value < last {
		if last > z.most {
			return 0, false, nil
		}
		used = z.most - last + value
	}
	watts = float64(used) / 1e6 / elapsed.Seconds()
	if watts > maxZoneWatts {
		return 0, false, nil
	}
	return watts, true, nil
}

var errCounter = errors.New("not a counter")

// parseCounter parses a decimal number that white space may follow.
func parseCounter(text []byte) (v uint64, err error) {
	if v, err = strconv.ParseUint(strings.TrimRight(string(text), " \n"), 10, 64); err != nil {
		return 0, errCounter
	}
	return v, nil
}
