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

// abandon ends the device because the card or its driver does not work as it must. The kernel
// destroys all objects of the context, and with them each completion channel's events. If the
// kernel cannot destroy the objects, the process panics, because the card may still write to its
// memory.
func (d *device) abandon(cause error) {
	d.end(fmt.Errorf("it is given up: %w", cause))
	if err := d.card.forsake(); err != nil {
		panic(fmt.Sprintf("verbs: %s may write to memory of this process, and cannot be closed: %v", d.name, err))
	}
}

// forsake closes the context for the kernel, but not for libibverbs, whose functions are still
// called and fail from then on. The kernel destroys the context's objects when nothing uses its
// file any more. Mappings of the context's file use it too, so forsake replaces them with other
// memory. A mapping does not show to which context it belongs. So other contexts of the same card
// in this process lose their mappings too, and their pairs get no more completions. Further calls
// do nothing.
func (k *card) forsake() error {
	mapping.Lock()
	defer mapping.Unlock()
	if k.forsaken {
		return nil
	}
	file, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", k.c.cmd_fd))
	if err == nil {
		// the descriptor now is a file that takes no commands
		err = unix.Dup3(int(k.c.async_fd), int(k.c.cmd_fd), unix.O_CLOEXEC)
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

// mappingsOf returns the mappings of a file in the lines of /proc/self/maps. mappingsOf fails if
// there are none, because every driver maps memory of a card that has a queue.
func mappingsOf(file, maps string) (all []extent, err error) {
	const deleted = " (deleted)" // the suffix in both places if the file was deleted
	file = strings.TrimSuffix(file, deleted)
	for line := range strings.Lines(maps) {
		line = strings.TrimSuffix(line, "\n")
		at := strings.IndexByte(line, '/') // the path is last, and nothing before it contains a slash
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
