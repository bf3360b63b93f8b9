//go:build linux

package power

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestDevice reads the BMC of the machine on which the test runs. TestBMC runs TestDevice in an
// emulated machine, and is that machine's BMC.
func TestDevice(t *testing.T) {
	if os.Getenv("IPMI_REQUIRED") == "" {
		t.Skip("runs in the machine that TestBMC starts")
	}
	path := ipmiAuto
	for deadline, tick := time.After(2*time.Minute), time.Tick(100*time.Millisecond); ; {
		if _, err := os.Stat(path); err == nil {
			break
		}
		select {
		case <-tick:
		case <-deadline:
			t.Fatalf("%s does not appear", path)
		}
	}
	p, err := openIPMI(path)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	d := &dcmi{port: p, limit: time.Minute} // an emulated machine is slow
	// The answers of TestBMC, in order.
	for i, want := range []string{"250", "251", "does not measure power now", "no DCMI", "bytes, not 19", "busy",
		"250"} {
		watts, err := d.read(t.Context())
		if got := fmt.Sprint(watts, err); !strings.Contains(got, want) {
			t.Errorf("answer %d: %s, want %s", i, got, want)
		}
	}
	// The BMC falls silent. The reading ends at its time limit, and the late answer is not taken
	// for the next one.
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if watts, err := d.read(ctx); err == nil || !strings.Contains(err.Error(), "does not answer") {
		t.Errorf("silent: %v, %v", watts, err)
	}
	var watts float64
	for range 20 {
		if watts, err = d.read(t.Context()); err == nil {
			break
		}
	}
	if watts != 253 {
		t.Errorf("after the silence: %v, %v", watts, err)
	}
}

// TestBMC is the BMC of an emulated machine, and runs TestDevice in that machine: with real ioctls,
// the kernel's real driver, KCS ports, and answers from this test. TestBMC speaks the protocol
// between qemu's ipmi-bmc-extern and OpenIPMI's ipmi_sim. The test does not use ipmi_sim itself
// (2.0.33), which has no DCMI and takes additional commands only as a C module.
func TestBMC(t *testing.T) {
	script := os.Getenv("IPMI_VM")
	if script == "" {
		t.Skip("IPMI_VM names no perf/vm/vm.sh: make check-ipmi-vm")
	}
	socket := filepath.Join(t.TempDir(), "bmc")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	b := &responder{power: [][]byte{
		golden, with(2, 251), with(18, 0), {0xc1}, golden[:18], {0xc0}, golden, nil, with(2, 253),
	}}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer ln.Close()
	wg.Go(func() { b.serve(ln) })
	cmd := exec.CommandContext(t.Context(), script, "run", os.Args[0], "-test.run=^TestDevice$")
	cmd.Env = append(os.Environ(), "VM_MODULES=ipmi_msghandler ipmi_devintf ipmi_si", "VM_ENV=IPMI_REQUIRED=1",
		"VM_QEMU=-chardev socket,id=bmc,path="+socket+",reconnect=1 -device ipmi-bmc-extern,id=bmc0,chardev=bmc "+
			"-device isa-ipmi-kcs,bmc=bmc0")
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Fatal(err)
	}
	if n := b.asked.Load(); n < 9 {
		t.Errorf("the machine asked for %d power readings", n)
	}
}

// Bytes of the protocol between qemu and an external BMC.
const (
	vmEndMessage = 0xa0
	vmEndCommand = 0xa1
	vmEscape     = 0xaa
)

// responder is a BMC. The responder holds back the answer to a nil power reading until the next
// question.
type responder struct {
	power [][]byte
	asked atomic.Int32
	late  []byte
}

func (b *responder) serve(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		b.talk(c)
		c.Close()
	}
}

func (b *responder) talk(c net.Conn) {
	r := bufio.NewReader(c)
	var m []byte
	for {
		x, err := r.ReadByte()
		switch {
		case err != nil:
			return
		case x == vmEscape:
			if x, err = r.ReadByte(); err != nil {
				return
			}
			m = append(m, x&^0x10)
		case x == vmEndCommand: // qemu announces its abilities
			m = m[:0]
		case x == vmEndMessage:
			if len(m) >= 4 { // sequence, network function and LUN, command, data, checksum
				b.send(c, m)
			}
			m = m[:0]
		default:
			m = append(m, x)
		}
	}
}

func (b *responder) send(c net.Conn, question []byte) {
	if b.late != nil {
		_, _ = c.Write(b.late)
		b.late = nil
	}
	data := b.answer(question[1]>>2, question[2])
	silent := data == nil
	if silent {
		data = with(2, 252)
	}
	answer := append([]byte{question[0], question[1] | 0x04, question[2]}, data...)
	sum := byte(0)
	for _, x := range answer {
		sum += x
	}
	var wire []byte
	for _, x := range append(answer, -sum) {
		if x == vmEndMessage || x == vmEndCommand || x == vmEscape {
			wire = append(wire, vmEscape, x|0x10)
		} else {
			wire = append(wire, x)
		}
	}
	wire = append(wire, vmEndMessage)
	if silent {
		b.late = wire
		return
	}
	_, _ = c.Write(wire)
}

// answer returns the completion code and data; nil: no answer now.
func (b *responder) answer(netfn, cmd byte) []byte {
	switch {
	case netfn == 0x06 && cmd == 0x01: // Get Device ID: IPMI 2.0
		return []byte{0, 0x20, 0x01, 0x01, 0x00, 0x02, 0x80, 0x57, 0x01, 0x00, 0x01, 0x00}
	case netfn == 0x06 && cmd == 0x2f: // Get BMC Global Enables
		return []byte{0, 0x08}
	case netfn == 0x06 && (cmd == 0x2e || cmd == 0x30): // set them, clear flags
		return []byte{0}
	case netfn == 0x06 && cmd == 0x31: // Get Message Flags
		return []byte{0, 0}
	case netfn == netfnGroup && cmd == cmdPower:
		return b.power[min(int(b.asked.Add(1)), len(b.power))-1]
	}
	return []byte{0xc1}
}
