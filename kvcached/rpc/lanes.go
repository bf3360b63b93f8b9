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

// Lanes tells how blocks come from other hosts, and lets go of the devices that carry them.
type Lanes interface {
	// Paths are of the other hosts of the fleet; unknown says why they are not all known yet.
	Paths(ctx context.Context) (all []Path, unknown string)
	Devices() []Device
	// Release closes a device, and with it so many queue pairs; !open: there was nothing to close.
	// ErrNoDevice.
	Release(ctx context.Context, device string) (pairs int, open bool, err error)
}

// Path is how blocks come from one host, and go there.
type Path struct {
	Peer, Address string
	Wanted        string // auto, rdma, quic or tls
	Lane          string // in use for large blocks; empty: nothing gets through, or it is not connected
	WhyNotRDMA    string
	Lanes         []Use
	Pairs         int
	Held          int // blocks of the other host that this one may read now
	Granted       int // the other way round
	Error         string
	ErrorAt       time.Time
	Silent        time.Time // it does not answer since then; zero: it does
}

// Use is what went over one lane.
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
	Released bool // it was asked for
	Why      string
}

// releaseWithin is how long a device may take to be closed.
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
