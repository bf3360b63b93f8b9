//go:build !linux

package resp

import (
	"errors"
	"syscall"
)

// prepare leaves the stream to package net.
func (s *stream) prepare(syscall.RawConn) {}

func (s *stream) rawRead([]byte) (int, error)   { return 0, errors.ErrUnsupported }
func (s *stream) rawWrite(_, _, _ []byte) error { return errors.ErrUnsupported }
func (s *stream) waitFor(int)                   {}
func (s *stream) look([]byte) int               { return 0 }
