package router

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/lora"
	"github.com/cognitora/dataplane/router/apierror"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/leg"
	"github.com/cognitora/dataplane/router/scan"
)

// Bounds of a change of adapters.
const (
	adapterBody    = 64 << 10
	adaptersAtOnce = 16 // nodes asked at a time
	adapterTime    = 5 * time.Minute
	adapterMost    = lora.ChangeTime
	adapterName    = 512 // bytes
	adapterPath    = 4096
	adapterListed  = 10 * time.Second // until the router has seen the change
)

// changeAdapters asks the engines of a model to load or unload a LoRA adapter, and answers with the
// result of each.
func (r *Router) changeAdapters(unload bool) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		if _, refused := r.callers.admins.mayChange(req); refused != nil {
			writeError(w, refused)
			return
		}
		ask, nodes, name, fail := r.readAdapterAsk(w, req, unload)
		if fail != nil {
			writeError(w, fail)
			return
		}
		limit := adapterTime
		if ask.Seconds > 0 {
			limit = time.Duration(min(ask.Seconds, adapterMost.Seconds()) * float64(time.Second))
		}
		ctx, cancel := context.WithTimeout(req.Context(), limit)
		defer cancel()
		change := fleet.AdapterChange{Unload: unload, Name: ask.Adapter, Path: ask.Path}
		writeJSON(w, http.StatusOK, fleet.AdapterAnswer{
			Model: name, Adapter: ask.Adapter, Nodes: r.askForAdapter(ctx, nodes, change),
		})
	}
}

// readAdapterAsk reads and checks a request. It returns the nodes to ask and the base model's name.
func (r *Router) readAdapterAsk(w http.ResponseWriter, req *http.Request, unload bool) (
	ask fleet.AdapterAsk, nodes []*fleet.Node, name string, fail *apierror.Error,
) {
	bad := func(param, format string, args ...any) *apierror.Error {
		return &apierror.Error{Status: 400, Code: scan.CodeValue, Param: param, Message: fmt.Sprintf(format, args...)}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, adapterBody))
	if err != nil {
		return ask, nil, "", bad("", "the body is not a change of adapters: %v", err)
	}
	if member, err := decodeAdapterAsk(body, &ask); err != nil {
		fail = bad(member, "the body is not a change of adapters: %v", err)
		if member == "" {
			fail.Code = scan.CodeJSON
		}
		return ask, nil, "", fail
	}
	switch {
	case ask.Adapter == "" || len(ask.Adapter) > adapterName || strings.Contains(ask.Adapter, ","):
		return ask, nil, "", bad("adapter", "must be a name of 1 to %d bytes without a comma", adapterName)
	case !unload && (ask.Path == "" || len(ask.Path) > adapterPath):
		return ask, nil, "", bad("path", "must name the adapter's directory on the engines' hosts, at most %d bytes",
			adapterPath)
	case ask.Seconds < 0:
		return ask, nil, "", bad("seconds", "must not be negative")
	}
	snap := r.known.fleet.Load()
	m, fail := leg.Served(snap, []byte(ask.Model))
	if fail != nil {
		return ask, nil, "", fail
	}
	if m.Adapter {
		return ask, nil, "", bad("model", "%s is itself an adapter; name the model that it adapts", m.Name)
	}
	if other := snap.Model([]byte(ask.Adapter)); other != nil && !other.Adapter && len(other.Nodes) > 0 {
		return ask, nil, "", bad("adapter", "%s is a model or an alias already; give the adapter another name",
			ask.Adapter)
	}
	nodes = slices.Concat(m.Nodes, m.Prefill)
	if len(ask.Nodes) > 0 {
		nodes, fail = chosen(nodes, ask.Nodes, m.Name)
	}
	return ask, nodes, m.Name, fail
}

// decodeAdapterAsk decodes a request. An error about one member of the body comes with its name.
// The error of a body that is no JSON object comes without a name.
func decodeAdapterAsk(body []byte, ask *fleet.AdapterAsk) (member string, err error) {
	if len(bytes.TrimSpace(body)) == 0 {
		return "", errors.New("it is empty")
	}
	var given map[string]json.RawMessage
	if err := json.Unmarshal(body, &given); err != nil || given == nil {
		if malformed, ok := errors.AsType[*json.SyntaxError](err); ok {
			return "", fmt.Errorf("malformed JSON at byte %d", malformed.Offset)
		}
		return "", errors.New("it is not a JSON object")
	}
	fields := map[string]struct {
		into any
		kind string
	}{
		"model": {&ask.Model, "a string"}, "adapter": {&ask.Adapter, "a string"}, "path": {&ask.Path, "a string"},
		"nodes": {&ask.Nodes, "a list of strings"}, "seconds": {&ask.Seconds, "a number"},
	}
	names := slices.Sorted(maps.Keys(fields))
	for _, name := range slices.Sorted(maps.Keys(given)) {
		f, known := fields[name]
		if !known {
			text := fmt.Sprintf("unknown member %.64q; there are %s", name, strings.Join(names, ", "))
			if near := config.Nearest(name, names); near != "" {
				text += "; did you mean " + near + "?"
			}
			return name, errors.New(text)
		}
		if json.Unmarshal(given[name], f.into) != nil {
			return name, fmt.Errorf("%s must be %s", name, f.kind)
		}
	}
	return "", nil
}

// chosen returns the nodes with these ids.
func chosen(nodes []*fleet.Node, wanted []string, model string) ([]*fleet.Node, *apierror.Error) {
	var ids []string
	for _, n := range nodes {
		ids = append(ids, n.ID)
	}
	var some []*fleet.Node
	for _, id := range wanted {
		i := slices.Index(ids, id)
		if i < 0 {
			text := fmt.Sprintf("no node %s serves %s; there are %s", id, model,
				strings.Join(ids[:min(len(ids), 10)], ", "))
			if near := config.Nearest(id, ids); near != "" {
				text += "; did you mean " + near + "?"
			}
			return nil, &apierror.Error{Status: 400, Code: scan.CodeValue, Param: "nodes", Message: text}
		}
		if !slices.Contains(some, nodes[i]) {
			some = append(some, nodes[i])
		}
	}
	return some, nil
}

// askForAdapter asks the nodes, and waits until the router knows of the changes.
func (r *Router) askForAdapter(ctx context.Context, nodes []*fleet.Node, c fleet.AdapterChange) []fleet.AdapterResult {
	results := make([]fleet.AdapterResult, len(nodes))
	var asking errgroup.Group
	asking.SetLimit(adaptersAtOnce)
	for i, n := range nodes {
		asking.Go(func() error {
			result := &results[i]
			*result = n.ChangeAdapter(ctx, c)
			r.log.Info("change of an adapter asked for", "node", n.ID, "adapter", c.Name, "path", c.Path, "state",
				string(result.State), "detail", result.Detail)
			if result.State == fleet.ChangeFailed || result.State == fleet.ChangeNone {
				return nil
			}
			if detail := r.awaitAdapter(ctx, n, c); result.Detail == "" {
				result.Detail = detail
			}
			return nil
		})
	}
	_ = asking.Wait() // each result has its own error
	return results
}

// awaitAdapter waits until the router knows of a change, and says why it does not.
func (r *Router) awaitAdapter(ctx context.Context, n *fleet.Node, c fleet.AdapterChange) string {
	only := n.Info().OnlyModel
	if only != "" && only != c.Name && !c.Unload {
		if r.known.fleet.Load().Serves(n, c.Name) { // by a base in the settings
			return ""
		}
		return "but this backend serves model=" + only + " only; leave model= out, or set the adapter's base " +
			"(cgn-ctl model set " + c.Name + " --base " + only + ")"
	}
	ctx, cancel := context.WithTimeout(ctx, adapterListed)
	defer cancel()
	if !r.known.fleet.AwaitListed(ctx, n, c.Name, !c.Unload) {
		return "the engine has done so, but this router has not seen its new list of models yet"
	}
	return ""
}
