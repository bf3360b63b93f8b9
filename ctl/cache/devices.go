package cache

import (
	"github.com/cognitora/dataplane/ctl/cell"
	"github.com/cognitora/dataplane/ctl/cli"
	pb "github.com/cognitora/dataplane/proto/cognitora/v1"
)

// Device is an RDMA device in the daemon's view.
type Device struct {
	Name  string `json:"device"`
	State string `json:"state"`
	Why   string `json:"why,omitempty"`
}

// deviceStates are the texts for the states of a device.
var deviceStates = map[pb.RdmaDevice_State]string{pb.RdmaDevice_STATE_OPEN: "open",
	pb.RdmaDevice_STATE_RELEASED: "released", pb.RdmaDevice_STATE_UNUSABLE: "unusable"}

// DevicesOf returns the devices in a daemon's answer.
func DevicesOf(r *pb.PeersResponse) *[]Device {
	all := []Device{}
	for _, d := range r.Devices {
		all = append(all, Device{d.Name, cell.Dash(deviceStates[d.State]), d.Why})
	}
	return &all
}

// WriteDevices writes the devices as a table.
func WriteDevices(t *cli.Table, all []Device) {
	t.Row("DEVICE", "STATE", "WHY")
	for _, d := range all {
		t.Row(d.Name, d.State, cell.Dash(d.Why))
	}
}
