// Command cgn-kvcached is the KV cache of a host. cgn-kvcached holds blocks in shared memory and on
// SSD, for engines, for other hosts and for other programs on the host.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/cognitora/dataplane/internal/buildinfo"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/lifecycle"
	"github.com/cognitora/dataplane/internal/logging"
	"github.com/cognitora/dataplane/kvcached"
)

const about = `Keeps KV blocks in shared memory and on SSD. Programs of this host come to the sockets beside
--sock, engines to --resp (as redis) or --s3, the caches of other hosts to --quic.

  cgn-kvcached --data DIR --ram 1GiB --ssd 4GiB --resp 127.0.0.1:6380`

func main() {
	if err := run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "cgn-kvcached:", err)
		os.Exit(1)
	}
}

// version returns the common version text. version adds whether this program can use RDMA devices.
func version() string {
	if kvcached.BuiltWithRDMA() {
		return buildinfo.String() + " with rdma"
	}
	return buildinfo.String()
}

func run(args, env []string, out, errOut io.Writer) error {
	var c kvcached.Config
	var ignored []string
	var renamed [][2]string // given name, correct name
	err := config.Load(&c, config.Options{
		Program: "cgn-kvcached", About: about, Version: version(), Args: args, Env: env, Out: out,
		Ignored: func(name string) { ignored = append(ignored, name) },
		Renamed: func(given, name string) { renamed = append(renamed, [2]string{given, name}) },
	})
	switch {
	case errors.Is(err, config.ErrAnswered):
		return nil
	case err != nil:
		return err
	}
	log := logging.New(errOut, c.Log.Level, c.Log.Format)
	slog.SetDefault(log)
	c.Logger = log
	for _, name := range ignored {
		log.Warn("this program has no setting of the name of this environment variable; see --help", "variable", name)
	}
	for _, r := range renamed {
		log.Warn("a setting is given by an older name; write the new one", "given", r[0], "name", r[1])
	}
	d, err := kvcached.New(c)
	if err != nil {
		return err
	}
	signals := lifecycle.Listen(context.Background(), func() {
		log.Info("SIGHUP changes nothing: changed certificates are taken within 2 s of the next handshake without " +
			"it; passwords, keys of clients and all settings take a restart")
	})
	defer signals.Close()
	return d.Run(signals.Drain(), signals.Force())
}
