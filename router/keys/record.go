package keys

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/cognitora/dataplane/router/limits"
	"github.com/cognitora/dataplane/router/trust"
)

// Record is what is stored of a key. It has nothing that is secret.
type Record struct {
	ID       string    `json:"id"`
	SHA256   string    `json:"sha256"`             // of the key's text, in hexadecimal
	Previous *Previous `json:"previous,omitempty"` // the text before the last rotation; nil: it does not count
	Name     string    `json:"name,omitempty"`     // for people
	Tenant   string    `json:"tenant"`
	Scopes   []string  `json:"scopes"`
	// Models are the models that the key may use; a name may end with *. None: all models.
	Models []string `json:"models,omitempty"`
	// Priority is the highest priority that requests with the key may have, 0 to trust.MaxPriority.
	Priority int          `json:"priority,omitempty"`
	Limits   limits.Rates `json:"limits,omitzero"`
	Created  time.Time    `json:"created"`
	Expires  *time.Time   `json:"expires,omitempty"` // nil: never
	Revoked  *time.Time   `json:"revoked,omitempty"` // nil: it counts
}

// Previous is a text that a rotated key had before. It counts until a time.
type Previous struct {
	SHA256 string    `json:"sha256"`
	Until  time.Time `json:"until"`
}

// Bounds of a record.
const (
	maxRecord = 64 << 10 // bytes of JSON
	maxName   = 256      // bytes
)

// ParseRecord parses and checks a record. Unknown members are errors, as a mistyped one would
// have no effect.
func ParseRecord(doc []byte) (*Record, error) {
	if len(doc) > maxRecord {
		return nil, fmt.Errorf("the record has %d bytes; at most %d are allowed", len(doc), maxRecord)
	}
	r := &Record{}
	if err := decode(doc, r); err != nil {
		return nil, err
	}
	if err := r.Check(); err != nil {
		return nil, err
	}
	return r, nil
}

// decode decodes the only JSON value of doc.
func decode(doc []byte, to any) error {
	d := json.NewDecoder(bytes.NewReader(doc))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return errors.New("the JSON ends too early")
		}
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON")
	}
	return nil
}

// Check returns all problems of a record, each with its member.
func (r *Record) Check() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !CheckID(r.ID) {
		bad("id %.20q is not 8 letters or digits", r.ID)
	}
	if _, err := parseDigest(r.SHA256); err != nil {
		bad("sha256: %w", err)
	}
	if r.Previous != nil {
		if _, err := parseDigest(r.Previous.SHA256); err != nil {
			bad("previous.sha256: %w", err)
		}
	}
	if err := trust.CheckTenant(r.Tenant); err != nil {
		bad("tenant: %w", err)
	}
	if len(r.Name) > maxName || strings.ContainsFunc(r.Name, unicode.IsControl) {
		bad("name has more than %d bytes, or control characters", maxName)
	}
	if scopes, err := trust.ParseScopes(r.Scopes); err != nil {
		bad("scopes: %w", err)
	} else if scopes == 0 {
		bad("scopes are empty; name some of %s", strings.Join(trust.ScopeNames(), ", "))
	}
	if err := trust.CheckModels(r.Models); err != nil {
		bad("models: %w", err)
	}
	if r.Priority < 0 || r.Priority > trust.MaxPriority {
		bad("priority %d is not in 0..%d", r.Priority, trust.MaxPriority)
	}
	if err := r.Limits.Check(); err != nil {
		bad("limits: %w", err)
	}
	if _, err := json.Marshal(r); err != nil { // a time that parses may have no text
		bad("%w", err)
	}
	return errors.Join(errs...)
}

func parseDigest(text string) (sum Digest, err error) {
	if n, err := hex.Decode(sum[:], []byte(text[:min(len(text), 2*len(sum))])); err != nil || n != len(sum) ||
		len(text) != 2*len(sum) {
		return sum, fmt.Errorf("not %d hexadecimal digits", 2*len(sum))
	}
	return sum, nil
}

// Hash returns the SHA256 of a key's text.
func Hash(key string) (sum string, ok bool) {
	d, _, ok := Parse([]byte(key))
	return hex.EncodeToString(d[:]), ok
}

// texts returns the SHA256 of the key's texts.
func (r *Record) texts() []string {
	if r.Previous == nil {
		return []string{r.SHA256}
	}
	return []string{r.SHA256, r.Previous.SHA256}
}

// Rotate gives the record a new text, which it returns. The former text counts for a time.
func (r *Record) Rotate(now time.Time, grace time.Duration) (key string) {
	key = Renew(r.ID)
	r.Previous = nil
	if grace > 0 {
		r.Previous = &Previous{r.SHA256, now.Add(grace)}
	}
	r.SHA256, _ = Hash(key)
	return key
}

// State says in a word whether the key counts at a time.
func (r *Record) State(now time.Time) string {
	switch {
	case r.Revoked != nil:
		return "revoked"
	case r.Expires != nil && !now.Before(*r.Expires):
		return "expired"
	}
	return "active"
}
