package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Interruptible is the RunE of a command that stops the programs it has started. The context of run
// ends at the first signal to end the program. A second signal ends the program immediately. If the
// reader of the output or the terminal closes, that counts as a signal. A closed terminal does not
// count if SIGHUP is ignored, as under nohup.
func Interruptible(run func(ctx context.Context, c *cobra.Command, args []string) error) func(*cobra.Command,
	[]string) error {
	return func(c *cobra.Command, args []string) error {
		ctx, release := interruptible(c.Context())
		defer release()
		return run(ctx, c, args)
	}
}

// interruptible returns the context of Interruptible. The caller must call release.
func interruptible(parent context.Context) (ctx context.Context, release func()) {
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGPIPE}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(parent, signals...)
	pipes := make(chan os.Signal, 1)
	// until no more output is written, because otherwise the second write would end the program
	signal.Notify(pipes, syscall.SIGPIPE)
	context.AfterFunc(ctx, stop)
	return ctx, func() {
		stop()
		signal.Stop(pipes)
	}
}
