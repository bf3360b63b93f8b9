package engine

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// Adapter is a LoRA adapter of the engine's first model.
type Adapter struct {
	Name string
	Path string // an existing file or directory
}

// loras are the adapters of an engine, like vLLM's. Registered adapters can be asked for. The
// engine keeps the ones in memory that were used last, at most Config.MaxLoadedLoRAs.
type loras struct {
	mu         sync.Mutex
	registered []lora
	memory     []string // in order of their last use, the latest first
	most       int      // adapters in memory
	next       int      // id of the next adapter
	loads      int64
	seen       []loraSeen // label sets of the metric, in order of their first use
}

type lora struct {
	Adapter
	id int
}

// loraSeen is a set of adapters that ran at the same time, and when it last did.
type loraSeen struct {
	names string // joined by commas
	at    float64
}

func newLoRAs(c *Config) *loras {
	l := &loras{most: c.MaxLoadedLoRAs}
	for _, a := range c.Adapters {
		l.add(a)
	}
	return l
}

// add registers an adapter and loads it.
func (l *loras) add(a Adapter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	l.registered = append(l.registered, lora{a, l.next})
	l.touch(a.Name)
}

// remove forgets an adapter. remove returns false for an unknown one.
func (l *loras) remove(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	i := l.index(name)
	if i < 0 {
		return false
	}
	l.registered = slices.Delete(l.registered, i, i+1)
	l.memory = slices.DeleteFunc(l.memory, func(n string) bool { return n == name })
	return true
}

func (l *loras) index(name string) int {
	return slices.IndexFunc(l.registered, func(a lora) bool { return a.Name == name })
}

// id returns the number of an adapter; 0 for a model that is none.
func (l *loras) id(name string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := l.index(name); i >= 0 {
		return l.registered[i].id
	}
	return 0
}

// find says whether an adapter is registered. find registers one of lazy.
func (l *loras) find(name string, lazy []Adapter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.index(name) >= 0 {
		return true
	}
	i := slices.IndexFunc(lazy, func(a Adapter) bool { return a.Name == name })
	if i < 0 {
		return false
	}
	l.next++
	l.registered = append(l.registered, lora{lazy[i], l.next}) // its first sequence loads it
	return true
}

func (l *loras) all() []lora {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.registered)
}

// use notes that a sequence of the adapter begins, and returns whether the engine must load it.
func (l *loras) use(name string) (load bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.touch(name)
}

func (l *loras) touch(name string) (load bool) {
	if i := slices.Index(l.memory, name); i >= 0 {
		l.memory = slices.Delete(l.memory, i, i+1)
	} else {
		load = true
		l.loads++
	}
	l.memory = slices.Insert(l.memory, 0, name)
	l.memory = l.memory[:min(len(l.memory), l.most)]
	return load
}

// ran notes for the metric which adapters have sequences in the batch. Like vLLM, a set keeps its
// series for ever, with the time at which it last was the present one.
func (l *loras) ran(batch []*sequence) {
	var names []string
	for _, q := range batch {
		if q.adapter != "" && !slices.Contains(names, q.adapter) {
			names = append(names, q.adapter)
		}
	}
	now, joined := float64(time.Now().UnixMicro())/1e6, strings.Join(names, ",")
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.IndexFunc(l.seen, func(s loraSeen) bool { return s.names == joined })
	if i < 0 {
		i, l.seen = len(l.seen), append(l.seen, loraSeen{names: joined})
	}
	l.seen[i].at = now
}

// metrics writes vllm:lora_requests_info, which has one series for each set of adapters.
func (l *loras) metrics(x *exposition, slots int) {
	const name = "vllm:lora_requests_info"
	x.head(name, "gauge", "Running stats on lora requests.")
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.seen {
		fmt.Fprintf(&x.b, "%s{max_lora=\"%d\",running_lora_adapters=%q,waiting_lora_adapters=%q} %s\n", name, slots,
			s.names, s.names, number(s.at))
	}
}

// LoadedAdapters returns the adapters in the engine's memory, the one used last first. AdapterLoads
// counts how often the engine has loaded one.
func (e *Engine) LoadedAdapters() []string {
	c := e.core()
	if c == nil {
		return nil
	}
	c.loras.mu.Lock()
	defer c.loras.mu.Unlock()
	return slices.Clone(c.loras.memory)
}

// AdapterLoads counts how often the engine has loaded an adapter since its start.
func (e *Engine) AdapterLoads() int64 {
	c := e.core()
	if c == nil {
		return 0
	}
	c.loras.mu.Lock()
	defer c.loras.mu.Unlock()
	return c.loras.loads
}

// loraRequest is the body of both endpoints.
type loraRequest struct {
	named
	Name string `json:"lora_name"`
	Path string `json:"lora_path"`
}

// loadAdapter is POST /v1/load_lora_adapter. The answer to a success is plain text without a type.
func loadAdapter(c *call, q *loraRequest) error {
	switch {
	case q.Name == "" || q.Path == "":
		return &apiError{http.StatusBadRequest, "InvalidUserInput",
			"Both 'lora_name' and 'lora_path' must be provided.", ""}
	case c.core.loras.id(q.Name) != 0:
		return &apiError{http.StatusBadRequest, "InvalidUserInput", "The lora adapter '" + q.Name + "' has already " +
			"been loaded. If you want to load the adapter in place, set 'load_inplace' to True.", ""}
	}
	if _, err := os.Stat(q.Path); err != nil {
		return notFound("Loading lora "+q.Name+" failed: No adapter found for "+q.Path, "")
	}
	if err := c.wait(time.Duration(float64(c.cfg.AdapterLoad) / c.cfg.Speed)); err != nil {
		return err
	}
	c.core.loras.add(Adapter{q.Name, q.Path})
	return c.plain("Success: LoRA adapter '" + q.Name + "' added successfully.")
}

// unloadAdapter is POST /v1/unload_lora_adapter.
func unloadAdapter(c *call, q *loraRequest) error {
	switch {
	case q.Name == "":
		return &apiError{http.StatusBadRequest, "InvalidUserInput",
			"'lora_name' needs to be provided to unload a LoRA adapter.", ""}
	case !c.core.loras.remove(q.Name):
		return notFound("The lora adapter '"+q.Name+"' cannot be found.", "")
	}
	return c.plain("Success: LoRA adapter '" + q.Name + "' removed successfully.")
}

func (c *call) plain(text string) error {
	c.w.Header()["Content-Type"] = nil // none
	if _, err := c.w.Write([]byte(text)); err != nil {
		return errGone
	}
	return nil
}
