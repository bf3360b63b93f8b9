package screen

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// Live shows pictures on a terminal, one over the other, until its context or the terminal ends.
type Live struct {
	Terminal *os.File
	Every    time.Duration
	Next     func(context.Context) (*Picture, error)

	on    bool          // the terminal shows pictures now
	modes *unix.Termios // the terminal's modes before
}

// Ending returns a context that ends with the signals after which the terminal must be restored.
func Ending(parent context.Context) (ctx context.Context, release func()) {
	signals := []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGQUIT}
	if !signal.Ignored(unix.SIGHUP) {
		signals = append(signals, unix.SIGHUP)
	}
	return signal.NotifyContext(parent, signals...)
}

// Run shows the picture first, and then further ones. Run reads the terminal's size for each
// picture. A change of the size shows the last picture again.
func (l *Live) Run(ctx context.Context, first *Picture) (err error) {
	signals := make(chan os.Signal, 16) // if there are more, some are lost; the next picture comes anyway
	signal.Notify(signals, unix.SIGWINCH, unix.SIGCONT)
	if !signal.Ignored(unix.SIGTSTP) {
		signal.Notify(signals, unix.SIGTSTP)
	}
	defer signal.Stop(signals)
	ctx, cancel := context.WithCancel(ctx)
	pictures, failed := l.look(ctx)
	defer func() {
		l.leave()
		cancel()
		for range pictures { // waits until look has ended
		}
	}()
	shown, stopped := first, false
	for {
		if !stopped {
			if err := l.paint(shown); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case p, more := <-pictures:
			if !more {
				return <-failed
			}
			shown = p
		case s := <-signals:
			switch s {
			case unix.SIGTSTP:
				stopped = true // until the program is continued; pictures may come before it has stopped
				l.leave()
				_ = unix.Kill(unix.Getpid(), unix.SIGSTOP) // cannot fail
			case unix.SIGCONT:
				stopped = false
			}
		}
	}
}

// look makes pictures until ctx ends or a picture fails; then failed has the reason. At its end,
// look closes pictures.
func (l *Live) look(ctx context.Context) (pictures chan *Picture, failed chan error) {
	pictures, failed = make(chan *Picture), make(chan error, 1)
	go func() {
		defer close(pictures)
		ticks := time.NewTicker(l.Every)
		defer ticks.Stop()
		for {
			select {
			case <-ctx.Done():
				failed <- nil
				return
			case <-ticks.C:
			}
			p, err := l.Next(ctx)
			if err != nil {
				failed <- err
				return
			}
			select {
			case pictures <- p:
			case <-ctx.Done():
			}
		}
	}()
	return pictures, failed
}

// Control sequences of terminals. A terminal without a second screen, or without synchronised
// output, ignores their sequences.
const (
	otherScreen = "\x1b[?1049h"
	ownScreen   = "\x1b[?1049l"
	hideCursor  = "\x1b[?25l"
	showCursor  = "\x1b[?25h"
	noWrap      = "\x1b[?7l"
	wrap        = "\x1b[?7h"
	beginFrame  = "\x1b[?2026h"
	endFrame    = "\x1b[?2026l"
	clearScreen = "\x1b[H\x1b[2J"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
	lastRow     = "\x1b[999;1H"
)

// paint overwrites the terminal in one write, without clearing it first. paint writes nothing in
// the background.
func (l *Live) paint(p *Picture) error {
	if !l.foreground() {
		return nil
	}
	columns, rows, err := term.GetSize(int(l.Terminal.Fd()))
	if err != nil || columns < 1 || rows < 1 {
		columns, rows = 80, 24 // a terminal that does not report its size
	}
	text := l.enter() + frame(p.Fit(columns, rows), columns, rows)
	_, err = l.Terminal.WriteString(text)
	return err
}

// frame positions every line instead of using line feeds, so that a terminal that has become
// smaller does not scroll.
func frame(lines []string, columns, rows int) string {
	var b strings.Builder
	b.WriteString(beginFrame)
	for i, line := range lines {
		fmt.Fprintf(&b, "\x1b[%d;1H%s", i+1, line)
		if width(line) < columns { // on a full line it would erase the last character
			b.WriteString(clearLine)
		}
	}
	if len(lines) < rows {
		fmt.Fprintf(&b, "\x1b[%d;1H%s", len(lines)+1, clearBelow)
	}
	b.WriteString(endFrame)
	return b.String()
}

// foreground tells whether this process may write to the terminal. If the terminal does not control
// the process, the process always may write.
func (l *Live) foreground() bool {
	group, err := unix.IoctlGetInt(int(l.Terminal.Fd()), unix.TIOCGPGRP)
	return err != nil || group == unix.Getpgrp()
}

// enter sets up the terminal, unless it is set up, and returns the sequences to write. Typed keys
// are not shown, because they would appear inside the picture.
func (l *Live) enter() string {
	if l.on {
		return ""
	}
	l.on = true
	if modes, err := unix.IoctlGetTermios(int(l.Terminal.Fd()), unix.TCGETS); err == nil {
		l.modes = new(*modes)
		modes.Lflag &^= unix.ECHO
		_ = unix.IoctlSetTermios(int(l.Terminal.Fd()), unix.TCSETS, modes) // if this fails, keys are shown
	}
	return otherScreen + hideCursor + noWrap + clearScreen
}

// leave restores the terminal.
func (l *Live) leave() {
	if !l.on {
		return
	}
	l.on = false
	_, _ = l.Terminal.WriteString(lastRow + wrap + showCursor + ownScreen) // the terminal may be gone
	// a shell in the foreground has set its own modes
	if l.modes != nil && l.foreground() {
		_ = unix.IoctlSetTermios(int(l.Terminal.Fd()), unix.TCSETSF, l.modes)
	}
}

// IsTerminal tells whether w writes to a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
