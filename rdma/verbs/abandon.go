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

// abandon ends the device because the card, or its driver, does not do what it must: the kernel
// destroys all that the context has, and ends the events of each completion channel with it. A
// process that cannot have that much ends, because its memory is not its own any more.
func (d *device) abandon(cause error) {
	d.end(fmt.Errorf("it is given up: %w", cause))
	if err := d.card.forsake(); err != nil {
		panic(fmt.Sprintf("verbs: %s may write to memory of this process, and cannot be closed: %v", d.name, err))
	}
}

// forsake closes the context for the kernel, but not for libibverbs, whose functions go on to be
// called: they fail from then on. The kernel destroys what the context has when its file is used no
// more, not by a mapping either: other memory takes the place of those. They do not say which
// context they belong to: pairs of another one of the same card, in this process, hear of no
// completion any more. Once is enough.
func (k *card) forsake() error {
	mapping.Lock()
	defer mapping.Unlock()
	if k.forsaken {
		return nil
	}
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
	parts, err := mappingsOf(file, string(maps))
	for _, part := range parts {
		if err == nil {
			err = failed(C.verbs_unmap(C.uint64_t(part.from), C.size_t(part.to-part.from)))
		}
	}
	k.forsaken = err == nil
	return err
}

type extent struct{ from, to uint64 }

// mappingsOf are those of a file among the lines of /proc/self/maps. All drivers map something of a
// card that has a queue: none is an error.
func mappingsOf(file, maps string) (all []extent, err error) {
	const deleted = " (deleted)" // the kernel says it of both, as long as the file has no name any more
	file = strings.TrimSuffix(file, deleted)
	for line := range strings.Lines(maps) {
		line = strings.TrimSuffix(line, "\n")
		at := strings.IndexByte(line, '/') // the path is last, and nothing before it has one
		if at < 0 || strings.TrimSuffix(line[at:], deleted) != file {
			continue
		}
		var e extent
		if _, err := fmt.Sscanf(line, "%x-%x ", &e.from, &e.to); err != nil {
			return nil, err
		}
		all = append(all, e)
	}
	if len(all) == 0 {
		err = fmt.Errorf("nothing of %s is mapped", file)
	}
	return all, err
}
