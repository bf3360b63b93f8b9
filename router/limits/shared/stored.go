package shared

import (
	"encoding/binary"
	"fmt"
)

// Stored is what Redis has of a bucket, as common.lua packs it.
type Stored struct {
	Used  float64 // us until nothing counts, or units of a month
	Stamp float64 // when that was: us, or the month
	Held  float64 // units
	Limit float64 // units, by which the us of Used count
}

// ParseStored parses a field of a subject's hash, which has the name of the bucket's rule.
func ParseStored(field []byte) (of Stored, err error) {
	if want := binary.Size(of); len(field) != want {
		return of, fmt.Errorf("a bucket of %d bytes, want %d", len(field), want)
	}
	_, err = binary.Decode(field, binary.LittleEndian, &of)
	return of, err
}

// SubjectKey returns the key in Redis of a subject's hash.
func SubjectKey(tenant, name string) string { return tenantKey(tenant) + "s:" + escape(name) }

// tenantKey is the begin of all keys of a tenant, which are in one slot.
func tenantKey(tenant string) string { return "cgn:{t:" + escape(tenant) + "}:" }
