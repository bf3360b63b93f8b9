package devices

import (
	"encoding/hex"
	"math"
	"net/netip"
	"strconv"
	"strings"
)

// parseState parses "4: ACTIVE".
func parseState(text string) string {
	number, name, ok := strings.Cut(text, ": ")
	if _, err := strconv.ParseUint(number, 10, 8); !ok || err != nil {
		return ""
	}
	return strings.TrimSpace(name)
}

// parseRate parses "100 Gb/sec (4X EDR)" into Gbit/s; 0: the text has another form.
func parseRate(text string) float64 {
	number, _, ok := strings.Cut(text, " Gb/sec")
	rate, err := strconv.ParseFloat(number, 64)
	if !ok || err != nil || math.IsNaN(rate) || rate < 0 || rate > 1e6 {
		return 0
	}
	return rate
}

// parseGID parses 8 groups of 4 digits.
func parseGID(text string) (netip.Addr, bool) {
	if len(text) != 39 || strings.Count(text, ":") != 7 {
		return netip.Addr{}, false
	}
	addr, err := netip.ParseAddr(text)
	return addr, err == nil && addr.Zone() == ""
}

// parseCounter parses a number. A text such as "N/A (no PMA)" is no number, so parseCounter returns
// false.
func parseCounter(text string) (uint64, bool) {
	n, err := strconv.ParseUint(text, 10, 64)
	return n, err == nil
}

// unlimited stands for no limit.
const unlimited = math.MaxUint64

// parseMemlock finds the soft limit of locked memory in /proc/PID/limits, in bytes.
func parseMemlock(limits string) (soft uint64, ok bool) {
	for line := range strings.Lines(limits) {
		values, found := strings.CutPrefix(line, "Max locked memory")
		fields := strings.Fields(values)
		if !found || len(fields) < 2 {
			continue
		}
		if fields[0] == "unlimited" {
			return unlimited, true
		}
		return parseCounter(fields[0])
	}
	return 0, false
}

// capIPCLock is the number of CAP_IPC_LOCK. A process with this capability has no limit of locked
// memory.
const capIPCLock = 14

// parseIPCLock tells whether /proc/PID/status has CAP_IPC_LOCK among the effective capabilities.
func parseIPCLock(status string) bool {
	for line := range strings.Lines(status) {
		if values, found := strings.CutPrefix(line, "CapEff:"); found {
			set, err := strconv.ParseUint(strings.TrimSpace(values), 16, 64)
			return err == nil && set&(1<<capIPCLock) != 0
		}
	}
	return false
}

// parseInitial tells whether /proc/PID/uid_map belongs to the initial user namespace. Only its
// capabilities lift the limit.
func parseInitial(users string) bool {
	return strings.Join(strings.Fields(users), " ") == "0 0 4294967295"
}

// parseInet6 returns the addresses of an interface in /proc/net/if_inet6.
func parseInet6(table, netdev string) (all []netip.Addr) {
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) != 6 || fields[5] != netdev {
			continue
		}
		var b [16]byte
		if len(fields[0]) != 2*len(b) {
			continue
		}
		if _, err := hex.Decode(b[:], []byte(fields[0])); err == nil {
			all = append(all, netip.AddrFrom16(b))
		}
	}
	return all
}

// up tells whether the flags of an interface, such as "0x1003", have IFF_UP.
func up(flags string) bool {
	n, err := strconv.ParseUint(strings.TrimPrefix(flags, "0x"), 16, 32)
	return err == nil && n&1 != 0
}
