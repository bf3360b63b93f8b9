package cluster

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
)

// CacheHealth is what a host's cgn-kvcached writes about itself, at every heartbeat. Addresses are
// host:port as others reach them; one that is empty is not served.
type CacheHealth struct {
	CacheID  string `json:"cache_id"`           // as a node id; one per host
	Instance string `json:"instance,omitempty"` // random token of the daemon that owns the key; another one after each start
	QUIC     string `json:"quic,omitempty"`     // cgn-kv/1
	TLS      string `json:"tls,omitempty"`      // the same frames over TLS and TCP
	GRPC     string `json:"grpc,omitempty"`     // cognitora.v1.Kv with mutual TLS, or a unix socket's unix:///path on one host
	RAMBytes int64  `json:"ram_bytes,omitempty"`
	SSDBytes int64  `json:"ssd_bytes,omitempty"`
	Ready    bool   `json:"ready"`
	Version  string `json:"version,omitempty"`
	Stamp    int64  `json:"stamp"` // Unix milliseconds at the daemon; changes with every heartbeat
}

// ParseCacheHealth reads and checks the value of a cache's key, as ParseNodeHealth does for a node.
func ParseCacheHealth(id string, value []byte) (*CacheHealth, error) {
	if len(value) > maxValueBytes {
		return nil, fmt.Errorf("cache %s: value has %d bytes; at most %d are read", id, len(value), maxValueBytes)
	}
	h := &CacheHealth{}
	if err := json.Unmarshal(value, h); err != nil {
		return nil, fmt.Errorf("cache %s: %w", id, err)
	}
	if h.CacheID != id {
		return nil, fmt.Errorf("cache %s: the value says cache_id %q", id, h.CacheID)
	}
	if err := h.Check(); err != nil {
		return nil, fmt.Errorf("cache %s: %w", id, err)
	}
	return h, nil
}

// Check validates h as a whole. All problems are reported together.
func (h *CacheHealth) Check() error {
	errs := []error{CheckCacheID(h.CacheID), checkHostPort("quic", h.QUIC), checkHostPort("tls", h.TLS),
		CheckPlace("grpc", h.GRPC)}
	if h.RAMBytes < 0 || h.SSDBytes < 0 || h.Stamp < 0 {
		errs = append(errs, fmt.Errorf("ram_bytes %d, ssd_bytes %d and stamp %d must not be negative", h.RAMBytes,
			h.SSDBytes, h.Stamp))
	}
	return errors.Join(errs...)
}

func (h *CacheHealth) claim() claim {
	return claim{key: CacheKey(h.CacheID), id: h.CacheID, address: cmp.Or(h.QUIC, h.TLS, h.GRPC)}
}

func (h *CacheHealth) mark(instance string, stamp int64) { h.Instance, h.Stamp = instance, stamp }
