package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// emulator implements the parts of a terminal that `top` needs, with a changeable size. emulator
// records forbidden output.
type emulator struct {
	columns, rows int
	cells         [][]rune
	x, y          int
	pending       bool // the last column was written, so the next character wraps
	wraps         bool
	cursor        bool
	other         bool // the alternate screen is shown
	inFrame       bool
	frames        int
	wrong         []string
	left          string // beginning of an incomplete sequence
}

func newEmulator(columns, rows int) *emulator {
	e := &emulator{wraps: true, cursor: true}
	e.resize(columns, rows)
	return e
}

// resize clears the screen, like some terminals.
func (e *emulator) resize(columns, rows int) {
	e.columns, e.rows, e.x, e.y, e.pending = columns, rows, 0, 0, false
	e.cells = make([][]rune, rows)
	for i := range e.cells {
		e.cells[i] = []rune(strings.Repeat(" ", columns))
	}
}

func (e *emulator) bad(format string, args ...any) {
	e.wrong = append(e.wrong, fmt.Sprintf("frame %d: ", e.frames)+fmt.Sprintf(format, args...))
}

// screen returns the visible lines without trailing spaces.
func (e *emulator) screen() []string {
	out := make([]string, e.rows)
	for i, row := range e.cells {
		out[i] = strings.TrimRight(string(row), " ")
	}
	return out
}

// feed takes a program's output.
func (e *emulator) feed(text string) {
	text = e.left + text
	for text != "" {
		n := e.one(text)
		if n == 0 {
			break // the rest has not come yet
		}
		text = text[n:]
	}
	e.left = text
}

// one takes the first character or sequence and returns its length, or 0 if it is incomplete.
func (e *emulator) one(text string) int {
	switch text[0] {
	case '\r':
		e.x, e.pending = 0, false
		return 1
	case '\n':
		e.down()
		return 1
	case 0x1b:
		end := strings.IndexFunc(text[1:], func(r rune) bool { return r >= '@' && r != '[' })
		if end < 0 {
			return 0
		}
		e.obey(text[1 : end+2])
		return end + 2
	}
	if !utf8.FullRuneInString(text) {
		return 0
	}
	r, n := utf8.DecodeRuneInString(text)
	if r < ' ' {
		e.bad("it obeys %q", r)
		return n
	}
	if e.pending {
		if e.inFrame {
			e.bad("row %d is longer than %d: %q", e.y+1, e.columns, r)
		}
		if e.wraps {
			e.x = 0
			e.down()
		}
		e.pending = false
	}
	e.cells[e.y][e.x] = r
	if e.x++; e.x == e.columns {
		e.x, e.pending = e.columns-1, true
	}
	return n
}

func (e *emulator) down() {
	if e.y < e.rows-1 {
		e.y++
		return
	}
	if e.inFrame {
		e.bad("it scrolls")
	}
	e.cells = append(e.cells[1:], []rune(strings.Repeat(" ", e.columns)))
}

// obey executes a control sequence.
func (e *emulator) obey(sequence string) {
	body, final := sequence[:len(sequence)-1], sequence[len(sequence)-1]
	switch body, set := strings.TrimPrefix(body, "["), final == 'h'; {
	case body == "?1049":
		e.other = set
	case body == "?25":
		e.cursor = set
	case body == "?7":
		e.wraps = set
	case body == "?2026":
		if e.inFrame = set; !set {
			e.frames++
		}
	case final == 'H':
		y, x, _ := strings.Cut(body, ";")
		e.y, e.x, e.pending = place(y, e.rows), place(x, e.columns), false
	case final == 'K' && body == "":
		e.clear(e.y, e.x)
	case final == 'J' && body == "":
		e.clear(e.y, e.x)
		for y := e.y + 1; y < e.rows; y++ {
			e.clear(y, 0)
		}
	case sequence == "[2J":
		if e.inFrame {
			e.bad("it flickers: the screen is cleared")
		}
		e.resize(e.columns, e.rows)
	default:
		e.bad("unknown sequence %q", sequence)
	}
}

// place returns a number of a sequence, counted from 0 and limited to the screen.
func place(text string, most int) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		n = 1
	}
	return min(max(n, 1), most) - 1
}

// clear clears a row from x on. clear includes the last column, if that was just written.
func (e *emulator) clear(y, x int) {
	for ; x < e.columns; x++ {
		e.cells[y][x] = ' '
	}
}

// pty opens a pseudo-terminal. The output of programs on second appears on first.
func pty(t *testing.T, columns, rows int) (first, second *os.File) {
	t.Helper()
	first, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal("no terminal can be made: ", err)
	}
	t.Cleanup(func() { first.Close() })
	resize(t, first, columns, rows)
	var number int
	control(t, first, func(fd int) error {
		if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
			return err
		}
		number, err = unix.IoctlGetInt(fd, unix.TIOCGPTN)
		return err
	})
	second, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { second.Close() })
	return first, second
}

func resize(t *testing.T, f *os.File, columns, rows int) {
	t.Helper()
	control(t, f, func(fd int) error {
		return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: uint16(columns), Row: uint16(rows)})
	})
}

// control calls do with the file's descriptor, which stays usable with the poller.
func control(t *testing.T, f *os.File, do func(fd int) error) {
	t.Helper()
	raw, err := f.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = do(int(fd)) }); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
}
