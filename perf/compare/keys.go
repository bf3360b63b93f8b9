package compare

import (
	"time"

	"github.com/cognitora/dataplane/router/keys"
	"github.com/cognitora/dataplane/router/limits"
)

// Keys are API keys of a contestant's clients, in a file with many more. Each has a list of models,
// and limits that nothing reaches.
type Keys struct {
	File          string
	Good, Revoked string
	Admin         string // reads the admin port
}

// keyCount is the number of keys in the file.
const keyCount = 1000

// newKeys makes a file of keys.
func newKeys(file string) (k Keys, err error) {
	k.File = file
	err = keys.Edit(file, func([]*keys.Record) ([]*keys.Record, error) {
		now := time.Now().UTC().Truncate(time.Second)
		var all []*keys.Record
		for i := range keyCount {
			text, id := keys.Generate()
			r := &keys.Record{ID: id, Tenant: "bench", Scopes: []string{"inference", "models"}, Models: []string{"*"},
				Limits:  limits.Rates{RequestsPerMinute: 1 << 39, TokensPerMinute: 1 << 39, Concurrent: 1 << 39},
				Created: now}
			r.SHA256, _ = keys.Hash(text)
			switch i {
			case 2:
				k.Admin, r.Scopes = text, []string{"admin.read"}
			case 0:
				k.Good = text
			case 1:
				k.Revoked, r.Revoked = text, &now
			}
			all = append(all, r)
		}
		return all, nil
	})
	return k, err
}

// Keys returns the keys of contestants that need some, after the start of the first one.
func (s *Site) Keys() Keys { return s.keys }
