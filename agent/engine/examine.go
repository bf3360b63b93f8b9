package engine

import (
	"errors"
	"path/filepath"
	"strings"

	"github.com/cognitora/dataplane/internal/address"
	"github.com/cognitora/dataplane/internal/rights"
)

// Examine reports the files that would make a start fail: key, CA, program and model. Validate
// checks the configuration's own text. Examine runs nothing.
func (c *Config) Examine() error {
	_, keyErr := readKey(c.APIKeyFile)
	errs := []error{keyErr}
	if c.Spawns() {
		return errors.Join(append(errs, c.examineProgram(), c.examineModel(), c.examineOffload())...)
	}
	if address, err := address.Parse(c.URL); err == nil { // Validate reports an invalid URL
		_, err := c.EngineTLS(address)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (c *Config) examineProgram() error {
	if c.Kind == OpenAICompat && c.Binary == "" {
		return nil // Validate reports it
	}
	argv, _ := c.Command(Launch{})
	_, err := lookUp(argv[0])
	return err
}

// examineModel checks a model that is certainly a path. Qwen/Qwen3-8B is not certainly a path: the
// engine may also download the model of this name.
func (c *Config) examineModel() error {
	if !filepath.IsAbs(c.Model) && !strings.HasPrefix(c.Model, ".") && !strings.HasSuffix(c.Model, ".gguf") {
		return nil
	}
	err := rights.Readable(c.Model)
	if !strings.HasSuffix(c.Model, ".gguf") && rights.Listable(c.Model) == nil {
		return nil
	}
	if err != nil {
		return wrong("model", "%w; name a model's file or directory that the engine can read", err)
	}
	return nil
}

func (c *Config) examineOffload() error {
	file := c.Offload.LMCacheConfig
	if file == "" || !c.usesLMCache() {
		return nil
	}
	if err := rights.Readable(file); err != nil {
		return wrong("offload.lmcache_config", "%w; name LMCache's configuration file, or leave it out for the agent "+
			"to write one", err)
	}
	return nil
}
