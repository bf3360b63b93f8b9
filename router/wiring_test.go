package router

import (
	"io"
	"log/slog"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/router/metrics"
)

// part follows fields, exported or not.
func part(v any, names ...string) reflect.Value {
	at := reflect.Indirect(reflect.ValueOf(v))
	for _, name := range names {
		at = reflect.Indirect(at.FieldByName(name))
	}
	return at
}

// TestSettingsReachTheirParts sets each setting to a value of its own and checks that the value
// arrives at its part.
func TestSettingsReachTheirParts(t *testing.T) {
	var c Config
	if err := config.Defaults(&c); err != nil {
		t.Fatal(err)
	}
	seconds := func(n int) config.Duration { return config.Duration(time.Duration(n) * time.Second) }
	c.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	c.Router.Listen, c.Router.Admin, c.Router.Backends = "127.0.0.1:0", "127.0.0.1:0", []string{"http://127.0.0.1:1"}
	c.Prefix.MaxBlocks, c.Prefix.TTL, c.Prefix.Feedback = 5000, seconds(77), false
	c.Prefix.PruneTargetRatio = 0.7
	c.Timeouts = TimeoutConfig{
		Dial: seconds(3), FirstByte: seconds(13), FirstByteCold: seconds(12), PatienceFloor: seconds(11),
		StallFloor: seconds(14), Idle: seconds(15), Total: seconds(16),
	}
	c.Retry = RetryConfig{MaxNodes: 7, Percent: 31, Floor: 17}
	c.Limits = LimitConfig{
		MaxBody: 1 << 21, MaxBodyTotal: 1 << 23, MaxHeader: 5000, MaxConnections: 101, MaxStreams: 102,
		HeaderTimeout: seconds(21), BodyTimeout: seconds(22), KeepAlive: seconds(23), SlowReader: seconds(24),
		ResponseIDs: 103, Output: 106,
	}
	c.Router.Admission.Global = 104
	c.Log.Access, c.Log.AccessQueue = filepath.Join(t.TempDir(), "access"), 105
	r, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	second := int64(time.Second)
	node := r.known.fleet.Load().Nodes[0]
	for name, v := range map[string]struct {
		got  reflect.Value
		want int64
	}{
		"prefix.max_blocks":        {part(r.known.index, "o", "MaxBlocks"), 5000},
		"prefix.ttl":               {reflect.ValueOf(r.known.lifetime(node)), 77 * second},
		"timeouts.dial":            {part(node.Pool, "o", "DialTimeout"), 3 * second},
		"timeouts.first_byte":      {part(r.legs, "o", "Limits", "FirstByte"), 13 * second},
		"timeouts.first_byte_cold": {part(r.legs, "o", "FirstByteCold"), 12 * second},
		"timeouts.patience_floor":  {part(r.legs, "o", "PatienceFloor"), 11 * second},
		"timeouts.stall_floor":     {part(r.legs, "o", "StallFloor"), 14 * second},
		"timeouts.idle":            {part(r.legs, "o", "Limits", "Idle"), 15 * second},
		"timeouts.total":           {part(r.legs, "o", "Limits", "Total"), 16 * second},
		"retry.max_nodes":          {part(r.legs, "o", "MaxNodes"), 7},
		"retry.percent":            {part(r.legs, "budget", "percent"), 31},
		"retry.floor":              {part(r.legs, "budget", "floor"), 17},
		"limits.max_body":          {part(r.gateway, "server", "MaxRequestBodySize"), 1 << 21},
		"limits.max_body_total":    {part(r.gateway, "bodies", "Limit"), 1 << 23},
		"limits.max_header":        {part(r.gateway, "server", "ReadBufferSize"), 5000},
		"limits.max_connections":   {part(r.gateway, "limits", "MaxConnections"), 101},
		"limits.max_streams":       {part(r.gateway, "limits", "MaxStreams"), 102},
		"limits.header_timeout":    {part(r.gateway, "server", "ReadTimeout"), 21 * second},
		"limits.body_timeout":      {part(r.gateway, "bodies", "Time"), 22 * second},
		"limits.keep_alive":        {part(r.gateway, "server", "IdleTimeout"), 23 * second},
		"limits.slow_reader":       {part(r.gateway, "server", "WriteTimeout"), 24 * second},
		"limits.response_ids":      {reflect.ValueOf(part(r.legs, "stored", "ring").Cap()), 103},
		"limits.output_tokens":     {reflect.ValueOf(r.callers.book.Output("any", 0)), 106},
		"log.access_queue":         {reflect.ValueOf(part(r.records.access, "queue", "entries").Cap()), 105},
	} {
		if v.got.Int() != v.want {
			t.Errorf("%s: %d, want %d", name, v.got.Int(), v.want)
		}
	}
	if part(r.legs, "o", "Feedback").Bool() {
		t.Error("prefix.feedback: on")
	}
	if got := part(r.known.index, "o", "PruneTo").Float(); got != 0.7 {
		t.Errorf("prefix.prune_target_ratio: %v, want 0.7", got)
	}
}

// TestTraceSettingsReachTheTracer is TestSettingsReachTheirParts for the section traces.
func TestTraceSettingsReachTheTracer(t *testing.T) {
	c := TraceConfig{Endpoint: "http://127.0.0.1:1", Sample: 0.25, Queue: 106}
	tracer, err := c.open(metrics.New(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer tracer.Close()
	sample, queue := part(tracer, "sample").Float(), part(tracer, "exporter", "spans").Cap()
	if sample != 0.25 || queue != 106 {
		t.Errorf("traces.sample %v, traces.queue %d", sample, queue)
	}
}
