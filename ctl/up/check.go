package up

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/cognitora/dataplane/ctl/cli"
	"github.com/cognitora/dataplane/internal/listen"
	"github.com/cognitora/dataplane/internal/rights"
	"github.com/cognitora/dataplane/router/fleet"
	"github.com/cognitora/dataplane/router/policy"
)

// check refuses invalid flags, and a model that cannot be served, before any program runs.
func (f *flags) check() error {
	if err := f.understood(); err != nil {
		return cli.Misused(err)
	}
	if f.model != "" {
		return f.checkModel()
	}
	return nil
}

// understood refuses invalid flags.
func (f *flags) understood() error {
	if f.model != "" && !f.enginesGiven {
		f.engines = modelEngines
	}
	if err := errors.Join(cli.InRange("engines", fmt.Sprint(f.engines), 1, mostEngines),
		cli.InRange("routers", fmt.Sprint(f.routers), 1, mostRouters)); err != nil {
		return err
	}
	if _, err := policy.ParseMode(f.mode); f.mode != "" && err != nil {
		return fmt.Errorf("--mode %q: must be %s", f.mode, policy.ModesInstead(f.mode))
	}
	if err := errors.Join(f.checkAddress("--listen", f.listen), f.checkAddress("--admin", f.admin),
		f.checkAddress("--etcd-listen", f.etcd)); err != nil {
		return err
	}
	if f.etcdGiven && len(f.backends) > 0 {
		return errors.New("--etcd-listen and --backend: give one of them; with running engines no etcd is started here")
	}
	if f.listenGiven && f.adminGiven && listen.Overlap(f.listen, f.admin) {
		return fmt.Errorf("--admin %s: cannot be listened on next to --listen %s; give it another port", f.admin,
			f.listen)
	}
	if err := f.checkFleet(); err != nil {
		return err
	}
	return f.checkEngines()
}

func (f *flags) checkAddress(flag, address string) error {
	if strings.HasPrefix(address, "unix:") {
		return fmt.Errorf("%s %s: up listens on HOST:PORT only; cgn-router takes sockets", flag, address)
	}
	if err := listen.Check(address); err != nil {
		return cli.WithHint(fmt.Errorf("%s %q: not an address to listen on", flag, address),
			"give HOST:PORT, like 127.0.0.1:8080; port 0 takes a free one")
	}
	if !f.insecure && !listen.Loopback(address) {
		return cli.WithHint(fmt.Errorf("%s %s: other hosts could reach it without authentication", flag, address),
			"give an address of 127.0.0.1, or add --insecure-listen where the network is trusted")
	}
	return nil
}

// checkEngines checks the flags of the engines: --backend or --model.
func (f *flags) checkEngines() error {
	switch {
	case len(f.backends) > 0 && f.model != "":
		return errors.New("--backend and --model: give one of them; a backend is a running engine, a model is served " +
			"by engines started here")
	case len(f.backends) > 0 && f.enginesGiven:
		return errors.New("--backend and --engines: give one of them; with running engines none is started here")
	}
	var all []fleet.Backend
	for _, text := range f.backends {
		b, err := fleet.ParseBackend(text)
		if err == nil {
			err = b.Examine("option ")
		}
		if err != nil {
			return fmt.Errorf("--backend: %w", err)
		}
		all = append(all, b)
	}
	if err := fleet.CheckBackends(all); err != nil {
		return fmt.Errorf("--backend: %w", err)
	}
	return nil
}

// checkModel checks early for mistakes that llama-server would report late.
func (f *flags) checkModel() error {
	const others = "give a GGUF file; for other engines, start them yourself and give their URLs with --backend"
	if err := rights.Readable(f.model); err != nil {
		return cli.WithHint(fmt.Errorf("--model: %w", err), others)
	}
	if !strings.HasSuffix(f.model, ".gguf") || !isGGUF(f.model) {
		return cli.WithHint(fmt.Errorf("--model %s: not a GGUF file named .gguf", f.model), others)
	}
	if _, err := exec.LookPath("llama-server"); err != nil {
		return cli.WithHint(errors.New("--model: llama-server, which serves it, is not in PATH"),
			"install llama.cpp (brew install llama.cpp, or a release from github.com/ggml-org/llama.cpp), or leave "+
				"--model away for simulated engines")
	}
	var err error
	f.model, err = filepath.Abs(f.model)
	return err
}

// isGGUF tells whether a file begins like a GGUF file.
func isGGUF(name string) bool {
	file, err := os.Open(name)
	if err != nil {
		return false
	}
	defer file.Close()
	var magic [4]byte
	_, err = io.ReadFull(file, magic[:])
	return err == nil && string(magic[:]) == "GGUF"
}
