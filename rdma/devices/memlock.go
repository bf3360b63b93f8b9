package devices

import (
	"fmt"
	"strconv"
)

// memlock reads the process's limit of locked memory. memlock reports a limit that is too low for
// the arena, or any limit if no arena is given.
func memlock(o *Options) (limit uint64, problem *Problem) {
	pid := "self"
	if o.PID > 0 {
		pid = strconv.Itoa(o.PID)
	}
	limits, err := read(below(o.Root, "/proc", pid, "limits"), maxText)
	soft, ok := parseMemlock(string(limits))
	if !ok {
		return 0, &Problem{Memlock, fmt.Sprintf("the limit of locked memory of process %s is not known: %v", pid,
			cause(err)), "look into " + below(o.Root, "/proc", pid, "limits") + " as root, or as the process's user",
			false}
	}
	status, _ := read(below(o.Root, "/proc", pid, "status"), maxTable)
	users, _ := read(below(o.Root, "/proc", pid, "uid_map"), maxText)
	if soft == unlimited || parseIPCLock(string(status)) && parseInitial(string(users)) {
		return unlimited, nil
	}
	whose := "this process"
	if o.PID > 0 {
		whose = "process " + pid
	}
	const fix = "in a systemd unit LimitMEMLOCK=infinity, for a login /etc/security/limits.conf, in a shell ulimit " +
		"-l unlimited, for a container --ulimit memlock=-1"
	switch {
	case o.Arena == 0:
		return soft, &Problem{Memlock, fmt.Sprintf("%s may lock no more than %s; registering an arena locks all of "+
			"it, and a card without memory windows up to twice more for each host that it reads from", whose,
			size(soft)), "hold it to the arena: --arena SIZE; " + fix, false}
	case o.Arena > soft:
		return soft, &Problem{Memlock, fmt.Sprintf("%s may lock %s, and the arena has %s, all of which is locked "+
			"when it is registered, and by a card without memory windows up to twice more for each host that it "+
			"reads from", whose, size(soft), size(o.Arena)), fix, true}
	}
	return soft, nil
}

// size formats bytes in the largest unit that divides them.
func size(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	u := 0
	for u < len(units)-1 && n >= 1024 && n%1024 == 0 {
		n, u = n/1024, u+1
	}
	return fmt.Sprintf("%d %s", n, units[u])
}
