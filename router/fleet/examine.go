package fleet

import (
	"errors"
	"fmt"

	"github.com/cognitora/dataplane/internal/apikey"
	"github.com/cognitora/dataplane/internal/rights"
)

// keyWanted describes the file that api_key_file names.
const keyWanted = "a file that holds the engine's key alone"

// Examine checks the files that b names. Each problem begins with field and the option's name.
func (b Backend) Examine(field string) error {
	return errors.Join(b.examineKey(field), b.files().Examine(field+"ca", field+"cert", field+"cert_key"))
}

func (b Backend) examineKey(field string) error {
	if b.APIKeyFile == "" {
		return nil
	}
	err := rights.Readable(b.APIKeyFile)
	if err == nil {
		_, err = apikey.Read(b.APIKeyFile)
	}
	if err != nil {
		return fmt.Errorf("%sapi_key_file: %w; name %s", field, err, keyWanted)
	}
	return nil
}
