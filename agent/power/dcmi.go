package power

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// DCMI's Get Power Reading: Data Center Manageability Interface v1.5, 6.6.1.
const (
	netfnGroup    = 0x2c // group extension
	netfnResponse = 0x01 // bit in the network function of an answer
	groupDCMI     = 0xdc
	cmdPower      = 0x02
	modeSystem    = 0x01 // system power statistics

	dcmiLength  = 19 // bytes of an answer, its completion code included
	dcmiActive  = 0x40
	ipmiTimeout = 3 * time.Second
	maxAnswers  = 16 // answers read per question, in case late answers to older questions come first
)

var powerRequest = [...]byte{groupDCMI, modeSystem, 0, 0}

// message is an IPMI answer from the kernel's driver. A message's data begins with the completion
// code.
type message struct {
	id         int64
	netfn, cmd byte
	data       []byte // valid until the next receive
}

// port is an open IPMI device. An implementation wraps the device's ioctls, or replaces the device
// in tests.
type port interface {
	send(id int64, netfn, cmd byte, data []byte) error
	// receive waits for an answer until ctx ends.
	receive(ctx context.Context) (message, error)
	Close() error
}

// dcmi reads power from the BMC through port.
type dcmi struct {
	port  port
	limit time.Duration // time limit of one answer
	id    int64
}

// read returns the power of the whole system by the BMC, in watts.
func (d *dcmi) read(ctx context.Context) (watts float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, d.limit)
	defer cancel()
	d.id++
	if err := d.port.send(d.id, netfnGroup, cmdPower, powerRequest[:]); err != nil {
		return 0, err
	}
	for range maxAnswers {
		m, err := d.port.receive(ctx)
		if err != nil {
			return 0, err
		}
		if m.id != d.id {
			continue // a late answer to an earlier question
		}
		if m.netfn != netfnGroup|netfnResponse || m.cmd != cmdPower {
			return 0, fmt.Errorf("the BMC answers command %#x of network function %#x", m.cmd, m.netfn)
		}
		return parsePower(m.data)
	}
	return 0, errors.New("the BMC sends answers to other questions")
}

// parsePower parses the answer to Get Power Reading: completion code, group, current, least, most
// and mean watts (16 bits each, little-endian), time stamp and period (32 bits each), state.
func parsePower(data []byte) (watts float64, err error) {
	if len(data) == 0 {
		return 0, errors.New("the BMC's answer is empty")
	}
	switch code := data[0]; code {
	case 0:
	case 0xc0, 0xc3, 0xce, 0xd2:
		return 0, fmt.Errorf("the BMC is busy (completion code %#x)", code)
	case 0xc1, 0xc2, 0xd6:
		return 0, fmt.Errorf("%w (completion code %#x)", errNoDCMI, code)
	case 0xd4:
		return 0, errors.New("the BMC does not permit power readings through this device")
	default:
		return 0, fmt.Errorf("the BMC refuses a power reading: completion code %#x", code)
	}
	if len(data) < dcmiLength {
		return 0, fmt.Errorf("the BMC's answer has %d bytes, not %d", len(data), dcmiLength)
	}
	if data[1] != groupDCMI {
		return 0, fmt.Errorf("the BMC answers for group %#x, not DCMI", data[1])
	}
	if data[18]&dcmiActive == 0 {
		return 0, errors.New("the BMC says that it does not measure power now")
	}
	watts = float64(binary.LittleEndian.Uint16(data[2:]))
	if watts == 0 {
		return 0, errZero
	}
	return watts, nil
}

var (
	errNoDCMI = errors.New("the BMC has no DCMI power readings")
	// errZero: a host that runs this program draws power.
	errZero = errors.New("the BMC says 0 W, which cannot be")
)
