// Command cgn-kvcached is the KV cache of a host. cgn-kvcached holds blocks in shared memory and on
// SSD, for engines, for other hosts and for other programs on the host.
package main

import (
	"context"
	"io"

	"github.com/cognitora/dataplane/internal/buildinfo"
	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/lifecycle"
	"github.com/cognitora/dataplane/internal/program"
	"github.com/cognitora/dataplane/kvcached"
)

const about = `Keeps KV blocks in shared memory and on SSD. Programs of this host come to the sockets beside
--sock, engines to --resp (as redis) or --s3, the caches of other hosts to --quic.

  cgn-kvcached --data DIR --ram 1GiB --ssd 4GiB --resp 127.0.0.1:6380`

func main() { program.Main("cgn-kvcached", run) }

// version returns the common version text. version adds whether this program can use RDMA devices.
func version() string {
	if kvcached.BuiltWithRDMA() {
		return buildinfo.String() + " with rdma"
	}
	return buildinfo.String()
}

func run(args, env []string, out, errOut io.Writer) (err error) {
	var c kvcached.Config
	options := config.Options{Program: "cgn-kvcached", About: about, Version: version(), Args: args, Env: env, Out: out}
	if c.Logger, err = program.Load(&c, options, errOut, &c.Log.Level, &c.Log.Format); c.Logger == nil {
		return err
	}
	d, err := kvcached.New(c)
	if err != nil {
		return err
	}
	signals := lifecycle.Listen(context.Background(), func() {
		if err := d.ReopenLogs(); err != nil {
			c.Logger.Error("a log not opened anew, the old file stays in use", "error", err)
		}
		c.Logger.Info("SIGHUP only reopens the audit log: changed certificates are taken within 2 s without it; " +
			"passwords, keys of clients and all settings take a restart")
	})
	defer signals.Close()
	return d.Run(signals.Drain(), signals.Force())
}
