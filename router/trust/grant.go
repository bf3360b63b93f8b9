package trust

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// Grant is what a mapping gives to those whom it names. The zero Grant gives no scope.
type Grant struct {
	Tenant string // empty: not said
	Scopes Scopes
	Models *ModelList // nil: all models
}

// Principal returns the principal with this id and the rights of the grant. Its credential cannot
// be revoked.
func (g *Grant) Principal(id string) *Principal {
	tenant := g.Tenant
	if tenant == "" {
		tenant = DefaultTenant
	}
	return &Principal{ID: id, Tenant: tenant, Scopes: g.Scopes, Models: g.Models}
}

// Bounds of a grant.
const (
	maxTenant = 128 // bytes
	maxModels = 1024
	maxModel  = 1024 // bytes
)

// CheckTenant returns an error unless name can be a tenant's: letters, digits and . _ : - up to 128
// bytes.
func CheckTenant(name string) error {
	if name == "" || len(name) > maxTenant {
		return fmt.Errorf("it has %d bytes; 1 to %d are allowed", len(name), maxTenant)
	}
	for i := range len(name) {
		if c := name[i]; !isAlphanumeric(c) && !strings.ContainsRune("._:-", rune(c)) {
			return fmt.Errorf("%q holds %q; use letters, digits and . _ : - only", name, c)
		}
	}
	return nil
}

// CheckModels returns an error unless the names can be a list of models.
func CheckModels(names []string) error {
	if len(names) > maxModels {
		return fmt.Errorf("%d are named; at most %d are allowed", len(names), maxModels)
	}
	for _, name := range names {
		if begin := strings.TrimSuffix(name, "*"); name == "" || len(name) > maxModel || strings.Contains(begin, "*") {
			return fmt.Errorf("%.40q is no name of at most %d bytes in which * can only be the end", name, maxModel)
		}
	}
	return nil
}

// maxSubject is the length in bytes up to which SafeID keeps a subject as it is.
const maxSubject = 64

// SafeID returns the id of a principal that another system names: the kind, a colon and the
// subject. Bytes that could confuse a log become _, and a subject of more than 64 bytes is cut. An
// id that was changed ends with 64 bits of the subject's SHA-256, so that no two subjects share it.
func SafeID(kind, subject string) string {
	safe := []byte(subject[:min(len(subject), maxSubject)])
	changed := len(safe) < len(subject)
	for i, c := range safe {
		if !isAlphanumeric(c) && !strings.ContainsRune("._:-@/|+=", rune(c)) {
			safe[i], changed = '_', true
		}
	}
	if !changed {
		return kind + ":" + subject
	}
	sum := sha256.Sum256([]byte(subject))
	return kind + ":" + string(safe) + "~" + hex.EncodeToString(sum[:8])
}

func isAlphanumeric(c byte) bool {
	return '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z'
}
