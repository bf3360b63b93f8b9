package devices

import (
	"path/filepath"
	"strconv"
)

// Counter is a counter of a known meaning. Cards have more counters, under names of their own,
// which are left out.
type Counter struct {
	Name string // our name without unit prefix, such as out_of_sequence_total
	Help string

	from  []string // files below a port's folder; the first readable one is used
	times uint64   // factor of the file's value; 0: 1
}

// Counters are the known counters, of cards with mlx5 and of soft-RoCE (rxe). The counters do not
// start at 0 with a process, so only their growth has a meaning.
var Counters = []Counter{
	{Name: "received_bytes_total", from: []string{"counters/port_rcv_data"}, times: 4,
		Help: "Bytes that the port received, by RDMA and otherwise. Not counted by soft-RoCE."},
	{Name: "sent_bytes_total", from: []string{"counters/port_xmit_data"}, times: 4,
		Help: "Bytes that the port sent, by RDMA and otherwise. Not counted by soft-RoCE."},
	{Name: "received_packets_total", from: []string{"counters/port_rcv_packets", "hw_counters/rcvd_pkts"},
		Help: "Packets that the port received. Soft-RoCE counts only those of RDMA."},
	{Name: "sent_packets_total", from: []string{"counters/port_xmit_packets", "hw_counters/sent_pkts"},
		Help: "Packets that the port sent. Soft-RoCE counts only those of RDMA."},
	{Name: "receive_errors_total", from: []string{"counters/port_rcv_errors"},
		Help: "Packets received with an error, as with a bad cable or transceiver."},
	{Name: "send_discards_total", from: []string{"counters/port_xmit_discards"},
		Help: "Packets not sent because the port was down or congested."},
	{Name: "send_wait_ticks_total", from: []string{"counters/port_xmit_wait"},
		Help: "Ticks in which the port had data to send but could not, as when the switch pauses it (PFC)."},
	{Name: "link_downs_total", from: []string{"counters/link_downed", "hw_counters/link_downed"},
		Help: "Times that the link went down."},
	{Name: "out_of_sequence_total", from: []string{"hw_counters/out_of_sequence", "hw_counters/out_of_seq_request"},
		Help: "Packets received out of order: earlier packets were lost on the way here or overtaken."},
	{Name: "sequence_errors_total", from: []string{"hw_counters/packet_seq_err", "hw_counters/rcvd_seq_err"},
		Help: "Times that the other side reported a missing packet. It was lost on the way there, and is sent again."},
	{Name: "ack_timeouts_total", from: []string{"hw_counters/local_ack_timeout_err"},
		Help: "Times that the other side did not acknowledge in time, so that everything since was sent again. Not " +
			"counted by soft-RoCE."},
	{Name: "retries_total", from: []string{"hw_counters/completer_retry_err"},
		Help: "Times that soft-RoCE sent requests again that were lost or not answered. Counted by soft-RoCE only."},
	{Name: "retries_exceeded_total",
		from: []string{"hw_counters/req_transport_retries_exceeded", "hw_counters/retry_exceeded_err"},
		Help: "Times that the other side did not answer any retry, which ends the queue pair."},
	{Name: "receiver_not_ready_total", from: []string{"hw_counters/rnr_nak_retry_err", "hw_counters/rcvd_rnr_err"},
		Help: "Times that the other side was not ready to receive; reads need no such readiness."},
	{Name: "refused_access_total", from: []string{"hw_counters/req_remote_access_errors"},
		Help: "Reads of this host that another card refused: a window was revoked, or its key is wrong. Not counted " +
			"by soft-RoCE."},
	{Name: "refused_others_total", from: []string{"hw_counters/resp_remote_access_errors"},
		Help: "Reads of other hosts that this card refused: a window was revoked, or its key is wrong. Not counted " +
			"by soft-RoCE."},
	{Name: "checksum_errors_total", from: []string{"hw_counters/rx_icrc_encapsulated"},
		Help: "RoCE packets received whose checksum (ICRC) was wrong. Not counted by soft-RoCE."},
	{Name: "congestion_marks_total", from: []string{"hw_counters/np_ecn_marked_roce_packets"},
		Help: "RoCE packets received that a switch had marked as congested (ECN). Not counted by soft-RoCE."},
	{Name: "congestion_handled_total", from: []string{"hw_counters/rp_cnp_handled"},
		Help: "Congestion notifications received, after which this card sent slower. Not counted by soft-RoCE."},
}

// Reading holds the counters of a port: Values[i] is the value of Counters[i], if Known[i].
type Reading struct {
	Port   int
	Up     bool // the port is active
	Values []uint64
	Known  []bool
}

// Read returns the present counters of a device's ports; none if the device is gone. Read reads
// several small files, for which the driver may ask the card.
func Read(root, device string) (all []Reading) {
	if device == "" || device != filepath.Base(device) || device == ".." || device == "." {
		return nil
	}
	ports := below(root, classDir, device, "ports")
	for _, number := range numbered(ports, maxPorts) {
		dir := filepath.Join(ports, strconv.Itoa(number))
		r := Reading{Port: number, Up: parseState(text(dir, "state")) == "ACTIVE",
			Values: make([]uint64, len(Counters)), Known: make([]bool, len(Counters))}
		for i, c := range Counters {
			r.Values[i], r.Known[i] = c.read(dir)
		}
		all = append(all, r)
	}
	return all
}

func (c *Counter) read(dir string) (uint64, bool) {
	for _, name := range c.from {
		if n, ok := parseCounter(text(dir, name)); ok {
			return n * max(c.times, 1), true
		}
	}
	return 0, false
}
