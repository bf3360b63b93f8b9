package screen

import (
	"io"
	"strings"
	"sync"
)

// Block keeps a block of lines at the end of a terminal and repaints it in place. Text that is
// written to a Block, such as a log, appears above the lines.
type Block struct {
	w     io.Writer
	mu    sync.Mutex
	lines string
}

// NewBlock returns an empty block on the terminal of w.
func NewBlock(w io.Writer) *Block { return &Block{w: w} }

// Write writes text above the block. Write works without a terminal. Write returns errors of the
// underlying writer unchanged.
func (b *Block) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, err := io.WriteString(b.w, b.erase()+string(p)+b.lines); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Paint replaces the block. Each line of lines must end with a newline.
func (b *Block) Paint(lines string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	erase := b.erase()
	b.lines = lines
	_, _ = io.WriteString(b.w, erase+lines)
}

// erase moves the cursor to the start of the block and clears from there.
func (b *Block) erase() string {
	if b.lines == "" {
		return ""
	}
	return strings.Repeat("\x1b[A", strings.Count(b.lines, "\n")) + "\r\x1b[J"
}
