package fleet

import (
	"errors"
	"fmt"

	"github.com/cognitora/dataplane/internal/apikey"
	"github.com/cognitora/dataplane/internal/rights"
)

// wanted describes the required contents of the file that an option names.
var wanted = map[string]string{
	"api_key_file": "a file that holds the engine's key alone",
	"ca":           "a PEM file with the CA's certificate",
}

// Examine checks the files that b names. Each problem begins with field and the option's name.
func (b Backend) Examine(field string) error {
	var errs []error
	look := func(option, path string, read func() error) {
		if path == "" {
			return
		}
		err := rights.Readable(path)
		if err == nil {
			err = read()
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s%s: %w; name %s", field, option, err, wanted[option]))
		}
	}
	look("api_key_file", b.APIKeyFile, func() error {
		_, err := apikey.Read(b.APIKeyFile)
		return err
	})
	look("ca", b.CA, func() error { _, _, err := readCA(b.CA); return err })
	return errors.Join(errs...)
}
