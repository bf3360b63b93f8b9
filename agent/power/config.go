package power

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/cognitora/dataplane/internal/address"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/pki"
	"github.com/cognitora/dataplane/internal/rights"
)

// Config is the [power] section.
type Config struct {
	Interval    config.Duration `toml:"interval" default:"1s" help:"time between two readings of RAPL and of the GPUs' power, 250ms at least"`
	BMCInterval config.Duration `toml:"bmc_interval" default:"10s" help:"time between two readings of the BMC by Redfish or IPMI, 1s at least; BMCs are slow"`
	StaleAfter  config.Duration `toml:"stale_after" default:"30s" help:"age from which a power reading counts as unknown; at least twice interval and twice bmc_interval"`
	RAPL        string          `toml:"rapl" default:"auto" oneof:"auto|on|off" help:"whether the agent reads CPU and DRAM energy from the kernel's powercap files; auto: if the agent can; on: --check-config reports an error if the agent cannot; off: never"`
	IPMIDevice  string          `toml:"ipmi_device" default:"auto" help:"device for DCMI power readings; auto: /dev/ipmi0 if it can be opened; off: none. A program that can open the device controls the whole BMC, so Redfish with a read-only account is safer"`
	Redfish     RedfishConfig   `toml:"redfish" help:"The BMC's Redfish service, for the power of chassis and power supplies."`
}

// RedfishConfig is the [power.redfish] section.
type RedfishConfig struct {
	Address      string          `toml:"address" help:"URL of the host's BMC: https://host or https://host:port; empty: the agent does not use Redfish"`
	Username     string          `toml:"username" help:"account of the BMC, for which the role ReadOnly is enough; empty: the agent does not log in"`
	PasswordFile string          `toml:"password_file" help:"file with the account's password, read at each login"`
	CA           string          `toml:"ca" help:"PEM file of the CAs that may sign the BMC's certificate; empty: the system's CAs"`
	Pin          string          `toml:"certificate_sha256" help:"SHA-256, in hex, of a certificate that the BMC signed itself, instead of ca; openssl x509 -noout -fingerprint -sha256 prints it"`
	Chassis      string          `toml:"chassis" help:"Id of this host's chassis, for a BMC with several; empty: the only one that reports power"`
	Timeout      config.Duration `toml:"timeout" default:"5s" help:"time that the BMC has for one answer"`
}

const (
	minInterval    = 250 * time.Millisecond // the mean window holds no more readings; see series
	minBMCInterval = time.Second
	maxInterval    = time.Minute
	ipmiAuto       = "/dev/ipmi0"
)

// Validate returns an error for each invalid field, with the fix.
func (c *Config) Validate() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("power.%s: %s", field, fmt.Sprintf(format, args...)))
	}
	if i := c.Interval.Std(); i < minInterval || i > maxInterval {
		bad("interval", "%s is not in %s..1m; 1s suits most hosts", c.Interval, minInterval)
	}
	if i := c.BMCInterval.Std(); i < minBMCInterval || i > maxInterval {
		bad("bmc_interval", "%s is not in %s..1m; 10s suits most BMCs", c.BMCInterval, minBMCInterval)
	}
	if least := 2 * max(c.Interval, c.BMCInterval); c.StaleAfter < least || c.StaleAfter.Std() > time.Hour {
		bad("stale_after", "%s is not in %s..1h, from twice the longer interval on", c.StaleAfter, least)
	}
	if c.IPMIDevice == "" {
		bad("ipmi_device", "empty; write auto, off or a device such as /dev/ipmi0")
	}
	c.Redfish.validate(bad)
	return errors.Join(errs...)
}

func (c *RedfishConfig) validate(bad func(field, format string, args ...any)) {
	if c.Address == "" {
		if c.Username != "" || c.PasswordFile != "" || c.CA != "" || c.Pin != "" || c.Chassis != "" {
			bad("redfish.address", "empty, so nothing else of power.redfish has an effect; set it, or leave the "+
				"others out")
		}
		return
	}
	if c.Timeout <= 0 || c.Timeout.Std() > time.Minute {
		bad("redfish.timeout", "%s is not in 1ns..1m; 5s suits most BMCs", c.Timeout)
	}
	if (c.Username == "") != (c.PasswordFile == "") {
		bad("redfish.username", "goes together with password_file; give both or neither")
	}
	if c.Pin != "" && c.CA != "" {
		bad("redfish.certificate_sha256", "takes the place of ca; give one of them")
	}
	if _, err := parsePin(c.Pin); err != nil {
		bad("redfish.certificate_sha256", "%v", err)
	}
	if err := checkBMCAddress(c.Address); err != nil {
		bad("redfish.address", "%v", err)
	}
}

// checkBMCAddress accepts https addresses, and http addresses that no other host can eavesdrop on.
func checkBMCAddress(text string) error {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.Hostname() == "" || u.Scheme != "https" && u.Scheme != "http" {
		return fmt.Errorf("%q is no URL of a BMC; write https://host or https://host:port", address.Redact(text))
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" {
		return fmt.Errorf("%q has more than a host and a port; username and password_file are fields of their own, "+
			"and the path is /redfish/v1 always", address.Redact(text))
	}
	if ip := net.ParseIP(u.Hostname()); u.Scheme == "http" && u.Hostname() != "localhost" &&
		(ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("%q would send the password in the clear; use https", address.Redact(text))
	}
	return nil
}

// Examine reports files and devices that would make a start fail.
func (c *Config) Examine() error {
	var errs []error
	if c.RAPL == "on" {
		r, err := openRAPL(powercap)
		if err != nil {
			errs = append(errs, fmt.Errorf("power.rapl: on, and %w", err))
		}
		r.close()
	}
	if path := c.IPMIDevice; path != "auto" && path != "off" && path != "" {
		err := rights.Readable(path)
		if err == nil {
			err = rights.Appendable(path)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("power.ipmi_device: %w; load the kernel's ipmi_si and ipmi_devintf, and "+
				"give the agent's user the device, or set off", err))
		}
	}
	if f := c.Redfish.PasswordFile; f != "" {
		if _, err := readPassword(f); err != nil {
			errs = append(errs, fmt.Errorf("power.redfish.password_file: %w; name a file that holds the password of "+
				"power.redfish.username", err))
		}
	}
	errs = append(errs, pki.Files{CA: c.Redfish.CA}.Examine("power.redfish.ca", "", ""))
	return errors.Join(errs...)
}

// maxPassword bounds the read of a password file, in bytes.
const maxPassword = 4096

func readPassword(name string) (string, error) {
	if err := rights.Readable(name); err != nil {
		return "", err
	}
	text, err := rights.ReadFile(name)
	secret := strings.TrimSpace(string(text))
	if err != nil {
		return "", err
	}
	if len(text) > maxPassword || secret == "" {
		return "", fmt.Errorf("%s is empty or above %d bytes", name, maxPassword)
	}
	return secret, nil
}
