package peers

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
)

// shim stands before each worker of a router that takes its engines for vLLM. The shim answers
// vLLM's requests for the tokens of a prompt, which Dynamo's frontend does not know. The shim
// removes what the router adds to a request and Dynamo's frontend refuses.
type shim struct {
	Addrs   []string // host:port, one before each worker
	servers []*http.Server
	serving sync.WaitGroup
}

// added are members that vllm-router adds to a request.
var added = []string{"separate_reasoning", "include_reasoning", "no_stop_trim", "stream_reasoning",
	"return_hidden_states", "continue_final_message"}

// startShim starts a shim before workers.
func startShim(workers []string) (*shim, error) {
	s := &shim{}
	for _, worker := range workers {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			s.stop()
			return nil, err
		}
		server := &http.Server{Handler: adapted(worker)}
		s.Addrs, s.servers = append(s.Addrs, ln.Addr().String()), append(s.servers, server)
		s.serving.Go(func() {
			if err := server.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
				panic(fmt.Sprintf("the shim before %s: %v", worker, err))
			}
		})
	}
	return s, nil
}

// stop closes all connections.
func (s *shim) stop() {
	for _, server := range s.servers {
		_ = server.Close()
	}
	s.serving.Wait()
}

// adapted returns the handler before one worker.
func adapted(worker string) http.Handler {
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: worker})
	proxy.FlushInterval = -1 // at once
	proxy.Transport = &http.Transport{MaxIdleConnsPerHost: 512, DisableCompression: true}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPost {
			proxy.ServeHTTP(w, r)
			return
		}
		text, err := io.ReadAll(r.Body)
		if err != nil {
			return // the router has left
		}
		var doc map[string]json.RawMessage
		if err := json.Unmarshal(text, &doc); err == nil {
			switch r.URL.Path {
			case "/v1/chat/completions/render", "/tokenize":
				w.Header().Set("Content-Type", "application/json")
				_, _ = w.Write(tokenized(r.URL.Path, doc["messages"]))
				return
			}
			text = without(doc, text)
		}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
		r.Header.Set("Content-Length", strconv.Itoa(len(text)))
		proxy.ServeHTTP(w, r)
	})
}

// without returns text, which is doc, without the members that vllm-router adds.
func without(doc map[string]json.RawMessage, text []byte) []byte {
	before := len(doc)
	for _, member := range added {
		delete(doc, member)
	}
	if len(doc) == before {
		return text
	}
	text, _ = json.Marshal(doc) // parts of a document are always valid
	return text
}

// tokenized returns vLLM's answer with the tokens of a chat. Every word is one token, as for the
// workers. The ids are hashes, since only their equality counts.
func tokenized(path string, messages json.RawMessage) []byte {
	var chat []struct{ Content string }
	_ = json.Unmarshal(messages, &chat) // a chat that is none has no tokens
	ids := []uint32{0, 2}
	for _, message := range chat {
		for word := range strings.FieldsSeq(message.Content) {
			ids = append(ids, uint32(len(special))+hashOf(word)%100_000)
		}
	}
	answer := map[string]any{"count": len(ids), "max_model_len": contextTokens, "tokens": ids, "token_strs": nil}
	if path != "/tokenize" {
		answer = map[string]any{"request_id": "chatcmpl-0123456789abcdef", "model": modelName,
			"sampling_params": struct{}{}, "features": nil, "priority": 0, "stream": false, "kv_transfer_params": nil,
			"token_ids": ids}
	}
	text, _ := json.Marshal(answer)
	return text
}

// hashOf is FNV-1a.
func hashOf(word string) uint32 {
	h := uint32(2166136261)
	for i := range len(word) {
		h = (h ^ uint32(word[i])) * 16777619
	}
	return h
}
