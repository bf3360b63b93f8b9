package bpf

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
)

// Options are the options of Load and New. The zero value means the host's own file system and
// cgroup.
type Options struct {
	// Root is a folder in a BPF file system. Load makes the folder. If Root is empty, Load uses
	// DefaultRoot.
	Root string
	// Cgroup is the folder of a cgroup (version 2). The programs count the sockets of this cgroup
	// and of the cgroups below it. If Cgroup is empty, the programs count all sockets of the host.
	Cgroup string

	// Keep makes Load fail if another version of the programs has put its own maps in the place of
	// ours. Without Keep, Load replaces the other version's maps.
	Keep bool

	change func(*ebpf.CollectionSpec) // tests use it to make another version of the programs
}

// Report lists the objects that Load found, made and attached.
type Report struct {
	Reused   []string // existing maps, which keep their counts
	Made     []string // maps that did not exist
	Attached []string // hooks that were newly attached
}

// loader makes a Set.
type loader struct {
	pins
	o       Options
	spec    *ebpf.CollectionSpec
	kernel  *btf.Spec // the kernel's types; read once, because that takes a quarter of a second
	maps    map[string]*ebpf.Map
	loaded  map[string]*ebpf.Program
	missing []Missing
	report  Report
}

// Load makes the programs and maps, or takes over and updates existing ones, and returns their
// reader. Missing lists the hooks that cannot be attached. Load fails if none can be. The programs
// stay when the process ends.
func Load(o Options) (*Set, error) {
	if err := Permitted(); err != nil {
		return nil, err
	}
	l := &loader{pins: pins(rootOf(o.Root)), o: o, maps: map[string]*ebpf.Map{},
		loaded: map[string]*ebpf.Program{}}
	lock, err := l.make()
	if err != nil {
		return nil, err
	}
	defer lock.Close()
	if l.kernel, err = btf.LoadKernelSpec(); err != nil {
		return nil, &hinted{fmt.Errorf("bpf: the kernel does not describe its types (/sys/kernel/btf/vmlinux): %w",
			err), "it needs CONFIG_DEBUG_INFO_BTF"}
	}
	if l.spec, err = programs(); err != nil {
		return nil, err
	}
	if o.change != nil {
		o.change(l.spec)
	}
	return l.load()
}

func (l *loader) load() (*Set, error) {
	defer l.release()
	err := l.openMaps()
	if err == nil {
		l.loadPrograms()
		err = l.placeMaps()
	}
	if err != nil {
		l.closeMaps()
		return nil, err
	}
	l.attach()
	if !l.attached() {
		l.closeMaps()
		return nil, fmt.Errorf("bpf: no program could be attached: %s: %s", l.missing[0].What, l.missing[0].Reason)
	}
	return &Set{root: l.pins, maps: l.maps, missing: append(l.missing, noWaits(l.kernel)...), report: l.report,
		pinned: l.pinned()}, nil
}

// release closes the objects that the Set does not need.
func (l *loader) release() {
	for _, p := range l.loaded {
		_ = p.Close()
	}
}

func (l *loader) closeMaps() {
	for _, m := range l.maps {
		_ = m.Close()
	}
	clear(l.maps)
}

// openMaps opens the existing maps and makes the others without pins. If an existing map has
// another layout, openMaps first removes all programs and maps, so that all counts begin anew
// together.
func (l *loader) openMaps() error {
	err := l.openPinned()
	if errors.Is(err, errLayout) && !l.o.Keep {
		l.closeMaps()
		_, err = l.empty()
	}
	if err != nil {
		return err
	}
	for name, spec := range l.spec.Maps {
		if l.maps[name] != nil {
			l.report.Reused = append(l.report.Reused, name)
			continue
		}
		m, err := ebpf.NewMap(spec)
		if err != nil {
			return fmt.Errorf("bpf: make map %s: %w", name, explain(err))
		}
		l.maps[name] = m
		l.report.Made = append(l.report.Made, name)
	}
	return nil
}

// errLayout means that another version of the programs has made a map.
var errLayout = errors.New("another version of Cognitora has made it")

// openPinned opens the existing maps.
func (l *loader) openPinned() error {
	for name, spec := range l.spec.Maps {
		path := l.path(mapsDir, name)
		m, err := ebpf.LoadPinnedMap(path, nil)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return opening(path, err)
		}
		l.maps[name] = m
		if !reusable(m, spec) {
			return &hinted{fmt.Errorf("bpf: %s: %w", path, errLayout), "run one version on a host"}
		}
	}
	return nil
}

// loadProgram connects a program with its maps and loads it.
func (l *loader) loadProgram(name string) (*ebpf.Program, error) {
	spec := l.spec.Programs[name].Copy()
	for i := range spec.Instructions {
		ins := &spec.Instructions[i]
		if m, ok := l.maps[ins.Reference()]; ok && ins.IsLoadFromMap() {
			if err := ins.AssociateMap(m); err != nil {
				return nil, err
			}
		}
	}
	p, err := ebpf.NewProgramWithOptions(spec, ebpf.ProgramOptions{KernelTypes: l.kernel})
	if err != nil {
		return nil, explain(err)
	}
	l.loaded[name] = p
	return p, nil
}

func (l *loader) lacks(h hook, err error) {
	l.missing = append(l.missing, Missing{What: h.tells, Reason: err.Error()})
}

func (l *loader) loadPrograms() {
	for _, h := range hooks {
		if err := present(l.kernel, h); err != nil {
			l.lacks(h, err)
			continue
		}
		if _, err := l.loadProgram(h.program); err != nil {
			l.lacks(h, fmt.Errorf("the kernel refuses the program %s: %w", h.program, err))
		}
	}
}

// placeMaps pins the new maps.
func (l *loader) placeMaps() error {
	for _, name := range l.report.Made {
		if err := l.place(mapsDir, name, l.maps[name].Pin); err != nil {
			return err
		}
	}
	return nil
}

// attached tells whether any program is attached.
func (l *loader) attached() bool {
	links, err := filepath.Glob(filepath.Join(string(l.pins), linksDir, "*"))
	return err == nil && len(links) > 0
}

// attach makes each hook run its newly loaded program.
func (l *loader) attach() {
	fresh := false
	for _, h := range hooks {
		p := l.loaded[h.program]
		if p == nil {
			continue
		}
		made, err := l.attachHook(h, p)
		if err != nil {
			l.lacks(h, err)
			continue
		}
		if made {
			l.report.Attached = append(l.report.Attached, h.program)
			fresh = fresh || h.program == "cgn_fork"
		}
	}
	if fresh {
		if err := l.prime(); err != nil {
			l.missing = append(l.missing, Missing{What: "groups of threads that are there already",
				Reason: err.Error()})
		}
	}
}

func (l *loader) attachHook(h hook, p *ebpf.Program) (made bool, err error) {
	if h.slot != "" {
		made, err = l.attachTracepoint(h, p)
	} else {
		made, err = l.attachCgroup(h, p)
	}
	if err != nil {
		return made, err
	}
	return made, l.place(progsDir, h.program, p.Pin)
}

// attachTracepoint fills the slot of the dispatcher, and attaches the dispatcher if it is not
// attached. If the dispatcher is attached already, the new program takes effect immediately.
func (l *loader) attachTracepoint(h hook, p *ebpf.Program) (made bool, err error) {
	have, err := link.LoadPinnedLink(l.path(linksDir, h.program), nil)
	if err == nil {
		defer have.Close()
	}
	if err := l.maps[h.slot].Put(uint32(0), p); err != nil {
		return false, fmt.Errorf("put %s into its slot: %w", h.program, err)
	}
	if err == nil && slices.Contains(l.report.Reused, h.slot) {
		return false, nil
	}
	d, err := l.loadProgram(h.dispatcher)
	if err != nil {
		return false, fmt.Errorf("the kernel refuses the program %s: %w", h.dispatcher, err)
	}
	made2, err := link.AttachTracing(link.TracingOptions{Program: d, AttachType: ebpf.AttachTraceRawTp})
	if err != nil {
		return false, fmt.Errorf("attach to the tracepoint %s: %w", h.tracepoint, explain(err))
	}
	defer made2.Close()
	if err := l.place(linksDir, h.program, made2.Pin); err != nil {
		return false, err
	}
	return true, l.place(progsDir, h.dispatcher, d.Pin)
}

// attachCgroup updates the link, which takes effect immediately, or makes the link.
func (l *loader) attachCgroup(h hook, p *ebpf.Program) (made bool, err error) {
	folder, err := cgroupFolder(l.o.Cgroup)
	if err != nil {
		return false, err
	}
	have, err := link.LoadPinnedLink(l.path(linksDir, h.program), nil)
	if err == nil {
		defer have.Close()
		if linkedTo(have, folder) {
			return false, have.Update(p)
		}
	}
	made2, err := link.AttachCgroup(link.CgroupOptions{Path: folder, Attach: h.attach, Program: p})
	if err != nil {
		return false, fmt.Errorf("attach to %s: %w", folder, explain(err))
	}
	defer made2.Close()
	return true, l.place(linksDir, h.program, made2.Pin)
}

// prime gives each existing thread its place in cgn_tasks.
func (l *loader) prime() error {
	p, err := l.loadProgram(prime)
	if err != nil {
		return err
	}
	it, err := link.AttachIter(link.IterOptions{Program: p})
	if err != nil {
		return err
	}
	defer it.Close()
	r, err := it.Open()
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = io.Copy(io.Discard, r)
	return err
}
