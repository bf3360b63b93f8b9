package gpu

import (
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/rights"
)

// Config is the [gpu] section.
type Config struct {
	NVML     string          `toml:"nvml" default:"auto" oneof:"auto|on|off" help:"whether the agent reads GPUs through NVML; auto: if this build and the host have NVML; on: a build without NVML does not start; off: never"`
	Library  string          `toml:"library" help:"path of NVML; empty: libnvidia-ml.so.1 where the system's loader finds it"`
	Interval config.Duration `toml:"interval" default:"1s" help:"time between two readings, 100ms at least; SM utilisation is the mean between them"`
	Devices  []string        `toml:"devices" help:"the engine's devices: index (0), index:GPU instance (0:1), GPU-... or MIG-... UUID; empty: agent.tp GPUs from agent.gpu_index on"`
}

const (
	minInterval = 100 * time.Millisecond // NVIDIA's minimum between two GPM samples
	maxInterval = time.Minute
	maxDevices  = 64
)

var deviceName = regexp.MustCompile(`^(\d{1,3}(:\d{1,3})?|(?i:GPU|MIG)-[0-9A-Za-z/-]{1,90})$`)

// Validate returns an error for each invalid field, with the fix.
func (c *Config) Validate() error {
	var errs []error
	if i := c.Interval.Std(); i < minInterval || i > maxInterval {
		errs = append(errs, fmt.Errorf("gpu.interval: %s is not in %s..%s; 1s suits most hosts", c.Interval,
			minInterval, maxInterval))
	}
	if c.NVML == "on" && !BuiltIn {
		errs = append(errs, errors.New("gpu.nvml: on, and this program was built without NVML; run the build of "+
			"`make build-gpu`, or set auto"))
	}
	for _, err := range CheckNames(c.Devices) {
		errs = append(errs, fmt.Errorf("gpu.devices: %w", err))
	}
	return errors.Join(errs...)
}

// CheckNames returns an error for each invalid device name, in the forms that Select takes.
func CheckNames(names []string) (errs []error) {
	if len(names) > maxDevices {
		errs = append(errs, fmt.Errorf("%d devices; at most %d are read", len(names), maxDevices))
	}
	for _, d := range names {
		if !deviceName.MatchString(d) {
			errs = append(errs, fmt.Errorf("%q is no device; write an index (0), index:GPU instance (0:1), or a UUID "+
				"of `nvidia-smi -L`", d))
		}
	}
	return errs
}

// Examine reports a configured library that cannot be read.
func (c *Config) Examine() error {
	if c.NVML == "off" || c.Library == "" || !BuiltIn {
		return nil
	}
	if err := rights.Readable(c.Library); err != nil {
		return fmt.Errorf("gpu.library: %w; name libnvidia-ml.so.1, or leave it out", err)
	}
	return nil
}
