package cluster

import (
	"cmp"
	"errors"
	"fmt"
)

// CacheHealth is the value that a host's cgn-kvcached writes about itself at every heartbeat.
// Addresses are host:port as other hosts reach them. An empty address is not served.
type CacheHealth struct {
	CacheID  string `json:"cache_id"`           // in the form of a node id; one per host
	Instance string `json:"instance,omitempty"` // random token of the daemon that owns the key; new at each start
	QUIC     string `json:"quic,omitempty"`     // protocol cgn-kv/1 over QUIC
	TLS      string `json:"tls,omitempty"`      // the same protocol over TLS and TCP
	// cognitora.v1.Kv with mutual TLS, or unix:///path of a Unix socket on one host
	GRPC     string `json:"grpc,omitempty"`
	RAMBytes int64  `json:"ram_bytes,omitempty"`
	SSDBytes int64  `json:"ssd_bytes,omitempty"`
	Ready    bool   `json:"ready"`
	Version  string `json:"version,omitempty"`
	Stamp    int64  `json:"stamp"` // the daemon's time in Unix milliseconds; changes with every heartbeat
}

// ParseCacheHealth parses and checks the value of a cache's key, as ParseNodeHealth does for a
// node.
func ParseCacheHealth(id string, value []byte) (*CacheHealth, error) {
	h := &CacheHealth{}
	if err := readValue("cache", id, value, h); err != nil {
		return nil, err
	}
	if err := h.Check(); err != nil {
		return nil, fmt.Errorf("cache %s: %w", id, err)
	}
	return h, nil
}

// Check validates h as a whole and returns all problems together.
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
