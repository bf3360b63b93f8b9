//go:build linux && cgo && rdma

package verbs

/*
#include "verbs.h"
*/
import "C"

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// abandon ends the device because the card, or its driver, does not do what it must: the kernel destroys all that the context has, and ends the events of each completion channel with
// it. A process that cannot have that much ends, because its memory is not its own any more.
func (d *device) abandon(cause error) {
	d.end(fmt.Errorf("it is given up: %w", cause))
	if err := d.card.forsake(); err != nil {
		panic(fmt.Sprintf("verbs: %s may write to memory of this process, and cannot be closed: %v", d.name, err))
	}
}

// forsake closes the context for the kernel, but not for libibverbs, whose functions go on to be called: they fail from then on. The kernel destroys what the context has when its file
// is used no more, not by a mapping either: other memory takes the place of those. They do not say which context they belong to: pairs of another one of the same card, in this
// process, hear of no completion any more.
func (k *card) forsake() error {
	mapping.Lock()
	defer mapping.Unlock()
	file, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", k.c.cmd_fd))
	if err == nil {
		err = unix.Dup3(int(k.c.async_fd), int(k.c.cmd_fd), unix.O_CLOEXEC) // a file that takes no commands
	}
	if err != nil {
		return err
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(maps)) {
		var from, to uint64
		if f := strings.Fields(line); len(f) < 6 || f[5] != file {
			continue
		}
		if _, err := fmt.Sscanf(line, "%x-%x ", &from, &to); err != nil {
			return err
		}
		if err := failed(C.verbs_unmap(C.uint64_t(from), C.size_t(to-from))); err != nil {
			return err
		}
	}
	return nil
}
