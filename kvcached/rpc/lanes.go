package rpc

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// ErrNoDevice says that the daemon does not use a device of that name.
var ErrNoDevice = errors.New("rpc: the daemon uses no such device")

// Lanes tells how blocks come from other hosts, and closes the devices that carry them.
type Lanes interface {
	// Paths returns the other hosts of the fleet. unknown says why some may be missing.
	Paths(ctx context.Context) (all []Path, unknown string)
	Devices() []Device
	// Release closes a device and returns the number of its queue pairs. open is false if the
	// device was closed already. The error is ErrNoDevice if the daemon does not use the device.
	Release(ctx context.Context, device string) (pairs int, open bool, err error)
}

// Path tells how blocks come from one host and go there.
type Path struct {
	Peer, Address string
	Wanted        string // auto, rdma, quic or tls
	Lane          string // the lane for large blocks; empty: none gets through, or there is no connection
	WhyNotRDMA    string
	Lanes         []Use
	Pairs         int
	Held          int // blocks of the other host that this host may read now
	Granted       int // blocks of this host that the other host may read now
	Error         string
	ErrorAt       time.Time
	Silent        time.Time // the time since which it has not answered; zero: it answers
}

// Use counts the traffic of one lane.
type Use struct {
	Lane              string
	Operations        uint64
	Bytes             uint64
	Errors, Fallbacks uint64
	Error             string
	ErrorAt           time.Time
}

// Device is an RDMA device of this host.
type Device struct {
	Name     string
	Open     bool
	Released bool // closed on request
	Why      string
}

// releaseWithin bounds the time to close a device.
const releaseWithin = 5 * time.Second

// Peers says how blocks come from other hosts.
func (s *service) Peers(ctx context.Context, _ *pb.PeersRequest) (*pb.PeersResponse, error) {
	if s.o.Lanes == nil {
		return nil, status.Error(codes.Unimplemented, "this daemon has no lanes to other hosts")
	}
	out := &pb.PeersResponse{}
	paths, unknown := s.o.Lanes.Paths(ctx)
	out.Unknown = unknown
	for _, p := range paths {
		m := &pb.PeerPath{
			Peer: p.Peer, Address: p.Address, Wanted: p.Wanted, Lane: p.Lane, WhyNotRdma: p.WhyNotRDMA,
			Pairs:      uint32(p.Pairs),
			GrantsHeld: uint32(p.Held), GrantsGiven: uint32(p.Granted), LastError: p.Error,
			LastErrorUnixMs:   unixMS(p.ErrorAt),
			SilentSinceUnixMs: unixMS(p.Silent),
		}
		for _, u := range p.Lanes {
			m.Lanes = append(m.Lanes, &pb.LaneUse{Lane: u.Lane, Operations: u.Operations, Bytes: u.Bytes,
				Errors: u.Errors, Fallbacks: u.Fallbacks,
				LastError: u.Error, LastErrorUnixMs: unixMS(u.ErrorAt)})
		}
		out.Peers = append(out.Peers, m)
	}
	for _, d := range s.o.Lanes.Devices() {
		state := pb.RdmaDevice_STATE_UNUSABLE
		switch {
		case d.Open:
			state = pb.RdmaDevice_STATE_OPEN
		case d.Released:
			state = pb.RdmaDevice_STATE_RELEASED
		}
		out.Devices = append(out.Devices, &pb.RdmaDevice{Name: d.Name, State: state, Why: d.Why})
	}
	return out, nil
}

// unixMS is 0 for no moment.
func unixMS(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// ReleaseDevice closes a device.
func (s *service) ReleaseDevice(ctx context.Context, r *pb.ReleaseDeviceRequest) (*pb.ReleaseDeviceResponse, error) {
	if s.o.Lanes == nil {
		return nil, status.Error(codes.Unimplemented, "this daemon uses no RDMA devices")
	}
	ctx, cancel := context.WithTimeout(ctx, releaseWithin)
	defer cancel()
	pairs, open, err := s.o.Lanes.Release(ctx, r.Device)
	switch {
	case errors.Is(err, ErrNoDevice):
		return nil, status.Errorf(codes.NotFound, "the daemon does not use a device %q", r.Device)
	case err != nil:
		return nil, status.Errorf(codes.DeadlineExceeded, "%s is not closed yet: %v", r.Device, err)
	}
	s.log.Info("a device was given away", "device", r.Device, "pairs", pairs, "was_open", open, "caller", caller(ctx))
	return &pb.ReleaseDeviceResponse{Pairs: uint32(pairs), WasNotOpen: !open}, nil
}
