package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Interruptible is a context that ends at the first signal that asks the program to, so that what
// it started is stopped; a second one ends the program at once. A reader of the output who leaves
// counts as such a signal, and so does a terminal that closes, unless that is ignored, as under
// nohup. release must be called.
func Interruptible(parent context.Context) (ctx context.Context, release func()) {
	signals := []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGPIPE}
	if !signal.Ignored(syscall.SIGHUP) {
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(parent, signals...)
	pipes := make(chan os.Signal, 1)
	// as long as output may be written: else the second write would end the program
	signal.Notify(pipes, syscall.SIGPIPE)
	context.AfterFunc(ctx, stop)
	return ctx, func() {
		stop()
		signal.Stop(pipes)
	}
}
