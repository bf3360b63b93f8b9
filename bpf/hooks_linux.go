package bpf

import (
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
)

// hook is a place in the kernel, and the program for it. A tracepoint has a dispatcher and a slot,
// a cgroup an attach type.
type hook struct {
	program    string
	tells      string // figure that is missing without the hook
	tracepoint string
	dispatcher string
	slot       string
	attach     ebpf.AttachType
}

// place returns the hook's place for people: a tracepoint, or a type of cgroup program.
func (h hook) place() string {
	switch {
	case h.tracepoint != "":
		return h.tracepoint
	case h.attach == ebpf.AttachCGroupInetIngress:
		return "CGroupInetIngress" // its value is 0, which String calls None
	}
	return h.attach.String()
}

const (
	tellsCPU     = "CPU utilisation, run-queue delay and CPU time of groups"
	tellsFork    = "processes that watched ones start"
	tellsExit    = "removal of ended processes from groups"
	tellsSockets = "new connections and retransmission timeouts"
	tellsClose   = "how connections end"
	tellsRetrans = "retransmissions"
	tellsIn      = "bytes received, round trips, requests"
	tellsOut     = "bytes sent, time to first token and between tokens"
)

// hooks are attached in this order: a program that makes state comes before the programs that use
// the state.
var hooks = []hook{
	{program: "cgn_fork", tells: tellsFork, tracepoint: "sched_process_fork", dispatcher: "cgn_on_fork", slot: "cgn_to_fork"},
	{program: "cgn_exit", tells: tellsExit, tracepoint: "sched_process_exit", dispatcher: "cgn_on_exit", slot: "cgn_to_exit"},
	{program: "cgn_switch", tells: tellsCPU, tracepoint: "sched_switch", dispatcher: "cgn_on_switch", slot: "cgn_to_switch"},
	{program: "cgn_set_state", tells: tellsClose, tracepoint: "inet_sock_set_state", dispatcher: "cgn_on_state", slot: "cgn_to_state"},
	{program: "cgn_retransmit", tells: tellsRetrans, tracepoint: "tcp_retransmit_skb", dispatcher: "cgn_on_retrans", slot: "cgn_to_retrans"},
	{program: "cgn_skb_in", tells: tellsIn, attach: ebpf.AttachCGroupInetIngress},
	{program: "cgn_skb_out", tells: tellsOut, attach: ebpf.AttachCGroupInetEgress},
	{program: "cgn_sockops", tells: tellsSockets, attach: ebpf.AttachCGroupSockOps},
}

// prime is the program that runs once, after fork has been attached.
const prime = "cgn_prime"

// programs joins all objects into one. Maps of the same name are the same map.
func programs() (*ebpf.CollectionSpec, error) {
	all := &ebpf.CollectionSpec{Maps: map[string]*ebpf.MapSpec{}, Programs: map[string]*ebpf.ProgramSpec{}}
	for _, load := range []func() (*ebpf.CollectionSpec, error){loadSched, loadSockets, loadTokens, loadDispatch} {
		spec, err := load()
		if err != nil {
			return nil, fmt.Errorf("bpf: read an embedded object: %w", err)
		}
		for name, m := range spec.Maps {
			if strings.HasPrefix(name, "cgn_") {
				all.Maps[name] = m
			}
		}
		for name, p := range spec.Programs {
			all.Programs[name] = p
		}
	}
	return all, nil
}

// short returns the name of a pin. bpftool shows the full name.
func short(name string) string { return strings.TrimPrefix(name, "cgn_") }
