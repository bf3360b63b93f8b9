//go:build !linux

package resp

import (
	"errors"
	"syscall"
)

// prepare does nothing, so the stream uses package net.
func (s *bufferedConn) prepare(syscall.RawConn) {}

func (s *bufferedConn) rawRead([]byte) (int, error)   { return 0, errors.ErrUnsupported }
func (s *bufferedConn) rawWrite(_, _, _ []byte) error { return errors.ErrUnsupported }
func (s *bufferedConn) waitFor(int)                   {}
func (s *bufferedConn) look([]byte) int               { return 0 }
