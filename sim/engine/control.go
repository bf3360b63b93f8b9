package engine

import (
	"encoding/json"
	"io"
	"net/http"
	"time"
)

// maxFaultBytes bounds the body of POST /sim/fault.
const maxFaultBytes = 64 << 10

func (e *Engine) serveStats(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(e.Stats()) // the client may have left
}

// serveFault sets (POST) or clears (DELETE) the engine's fault. "refuse" takes effect after this
// answer.
func (e *Engine) serveFault(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodDelete {
		e.SetFault(nil)
		w.WriteHeader(http.StatusNoContent)
		return
	}
	doc, err := io.ReadAll(io.LimitReader(r.Body, maxFaultBytes))
	if err != nil {
		return
	}
	f, err := decodeFault(doc)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Connection", "close")
	w.WriteHeader(http.StatusNoContent)
	if f.Refuse > 0 {
		_ = http.NewResponseController(w).Flush()
		e.refuseFor(time.Duration(f.Refuse))
		return
	}
	e.SetFault(&f)
}

// refuseFor refuses connections for d in wall time. Then refuseFor accepts connections again.
func (e *Engine) refuseFor(d time.Duration) { e.goneFor(d, e.Refuse) }

// crashFor kills the engine for d in wall time. Connections end without a reset, so that answers
// which have been written arrive.
func (e *Engine) crashFor(d time.Duration) {
	e.goneFor(d, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.shut(false)
		e.halt()
	})
}

func (e *Engine) goneFor(d time.Duration, leave func()) {
	e.timers.Go(func() {
		leave()
		select {
		case <-time.After(d):
		case <-e.quit:
			return
		}
		_ = e.Accept() // fails only if the engine has closed or the port is taken
	})
}
