package screen

import (
	"io"
	"strings"
	"sync"
)

// Block keeps a block of lines at the end of a terminal and repaints it in
// place; what is written to it meanwhile, a log for instance, goes above.
type Block struct {
	w     io.Writer
	mu    sync.Mutex
	lines string
}

// NewBlock returns an empty one on the terminal that w writes to.
func NewBlock(w io.Writer) *Block { return &Block{w: w} }

// Write puts text above the block. It never fails for want of a terminal: an
// error of the writer underneath is returned as it is.
func (b *Block) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, err := io.WriteString(b.w, b.erase()+string(p)+b.lines); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Paint replaces the block. Every line of it ends with a newline.
func (b *Block) Paint(lines string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	erase := b.erase()
	b.lines = lines
	_, _ = io.WriteString(b.w, erase+lines)
}

// erase moves up to the start of the block and clears from there.
func (b *Block) erase() string {
	if b.lines == "" {
		return ""
	}
	return strings.Repeat("\x1b[A", strings.Count(b.lines, "\n")) + "\r\x1b[J"
}
