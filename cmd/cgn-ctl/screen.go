package main

import (
	"io"
	"strings"
	"sync"
)

// screen keeps a block of lines at the end of a terminal and repaints it in
// place; what is written to it meanwhile, a log for instance, goes above.
type screen struct {
	mu    sync.Mutex
	w     io.Writer
	block string
}

// Write puts text above the block. It never fails for want of a terminal: an
// error of the writer underneath is returned as it is.
func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := io.WriteString(s.w, s.erase()+string(p)+s.block); err != nil {
		return 0, err
	}
	return len(p), nil
}

// paint replaces the block. Every line of it ends with a newline.
func (s *screen) paint(block string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	erase := s.erase()
	s.block = block
	_, _ = io.WriteString(s.w, erase+block)
}

// erase moves up to the start of the block and clears from there.
func (s *screen) erase() string {
	if s.block == "" {
		return ""
	}
	return strings.Repeat("\x1b[A", strings.Count(s.block, "\n")) + "\r\x1b[J"
}
