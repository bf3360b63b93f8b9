package cli

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// Interruptible returns a context that ends at the first signal to end the program, so that started
// programs are stopped. A second signal ends the program immediately. If the reader of the output
// or the terminal closes, that counts as a signal. A closed terminal does not count if SIGHUP is
// ignored, as under nohup. The caller must call release.
func Interruptible(parent context.Context) (ctx context.Context, release func()) {
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
