package kvcached

import (
	"github.com/cognitora/dataplane/internal/buildinfo"
	"github.com/cognitora/dataplane/internal/metric"
	"github.com/cognitora/dataplane/kv/residency"
	"github.com/cognitora/dataplane/kvcached/accesses"
	"github.com/cognitora/dataplane/kvcached/lease"
	"github.com/cognitora/dataplane/kvcached/resp"
	"github.com/cognitora/dataplane/kvcached/rpc"
	"github.com/cognitora/dataplane/kvcached/s3"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/kvcached/wire"
)

var storeRows = []row[store.Stats]{
	counter("hits_total", "Blocks asked for that were in RAM.", func(s *store.Stats) uint64 { return s.Hits }),
	counter("misses_total", "Blocks asked for that were in no tier of this host.", func(s *store.Stats) uint64 {
		return s.Misses
	}),
	counter("puts_total", "Blocks stored.", func(s *store.Stats) uint64 { return s.Puts }),
	counter("deletes_total", "Blocks deleted by clients.", func(s *store.Stats) uint64 { return s.Deletes }),
	counter("expired_total", "Blocks removed from RAM because their time was over.", func(s *store.Stats) uint64 {
		return s.Expired
	}),
	counter("refused_total", "Blocks that found no room: all of the arena in use, a quota, too many namespaces.",
		func(s *store.Stats) uint64 { return s.Refused }),
	counter("released_twice_total", "References to blocks that were given back again; each is a bug.",
		func(s *store.Stats) uint64 { return s.ReleasedTwice }),
	counter("ram_evictions_total", "Blocks that left RAM to make room.", func(s *store.Stats) uint64 {
		return s.RAM.Evictions
	}),
	counter("ram_quota_evictions_total", "Blocks that left RAM because their account was at its quota.",
		func(s *store.Stats) uint64 { return s.RAM.QuotaEvicted }),
	gauge("ram_bytes", "Size of the arena.", func(s *store.Stats) int64 { return s.RAM.Size }),
	gauge("ram_free_bytes", "Bytes of the arena without a block.", func(s *store.Stats) int64 { return s.RAM.Free }),
	gauge("ram_held_bytes", "Bytes that somebody reads or fills now, which are not evicted.",
		func(s *store.Stats) int64 { return s.RAM.Held }),
	gauge("ram_pinned_bytes", "Bytes of pinned blocks.", func(s *store.Stats) int64 { return s.RAM.Pinned }),
	gauge("ram_blocks", "Blocks in RAM.", func(s *store.Stats) int64 { return int64(s.RAM.Blocks) }),
	gauge("namespaces", "Namespaces with blocks in RAM.", func(s *store.Stats) int64 {
		return int64(s.RAM.Namespaces)
	}),
}

var ssdRows = []row[store.Stats]{
	counter("promotions_total", "Blocks brought from SSD to RAM.", func(s *store.Stats) uint64 { return s.Promotions }),
	counter("promotions_failed_total", "Blocks that were missed because SSD could not be read or had a damaged one.",
		func(s *store.Stats) uint64 { return s.PromotionsFailed }),
	counter("ssd_admitted_total", "Blocks written to SSD after their second use.", func(s *store.Stats) uint64 {
		return s.WrittenBehind
	}),
	counter("ssd_admission_dropped_total", "Blocks that were to be written, but the queue was full.",
		func(s *store.Stats) uint64 { return s.BehindDropped }),
	counter("ssd_admission_failed_total", "Blocks that were to be written, but could not.",
		func(s *store.Stats) uint64 { return s.BehindFailed }),
	counter("ssd_durable_total", "Writes that waited for SSD.", func(s *store.Stats) uint64 { return s.Durable }),
	counter("ssd_reads_total", "Blocks read from SSD.", func(s *store.Stats) uint64 { return s.SSD.Reads }),
	counter("ssd_read_bytes_total", "Payload of the blocks read from SSD.", func(s *store.Stats) uint64 {
		return s.SSD.ReadBytes
	}),
	counter("ssd_corrupt_total", "Records found damaged and dropped.", func(s *store.Stats) uint64 {
		return s.SSD.Corrupt
	}),
	counter("ssd_torn_total", "Records that a crash left unfinished, dropped at the start.",
		func(s *store.Stats) uint64 { return s.SSD.Torn }),
	counter("ssd_lost_total", "Rows dropped at the start because their segment is gone.", func(s *store.Stats) uint64 {
		return s.SSD.Lost
	}),
	counter("ssd_resets_total", "Starts that dropped all blocks because the rows of the index were damaged.",
		func(s *store.Stats) uint64 { return s.SSD.Resets }),
	counter("ssd_read_errors_total", "Reads that the disk failed.", func(s *store.Stats) uint64 {
		return s.SSD.ReadErrors
	}),
	counter("ssd_writes_total", "Blocks written to SSD.", func(s *store.Stats) uint64 { return s.SSD.Writes }),
	counter("ssd_payload_bytes_total", "Payload of the blocks written to SSD.", func(s *store.Stats) uint64 {
		return s.SSD.PayloadBytes
	}),
	counter("ssd_written_bytes_total", "Bytes written to segments, copies and footers included.",
		func(s *store.Stats) uint64 { return s.SSD.WrittenBytes }),
	counter("ssd_moved_bytes_total", "Bytes of the records copied on SSD to make room.", func(s *store.Stats) uint64 {
		return s.SSD.MovedBytes
	}),
	counter("ssd_evictions_total", "Blocks dropped from SSD to make room.", func(s *store.Stats) uint64 {
		return s.SSD.Evicted
	}),
	counter("ssd_expired_total", "Blocks dropped from SSD to make room whose time was over.",
		func(s *store.Stats) uint64 { return s.SSD.Expired }),
	counter("ssd_over_budget_total", "Writes refused because the day's budget was used up.",
		func(s *store.Stats) uint64 { return s.SSD.OverBudget }),
	counter("ssd_over_quota_total", "Writes refused because a [[quota]] was used up.", func(s *store.Stats) uint64 {
		return s.SSD.OverQuota
	}),
	counter("ssd_squeezes_total", "Times that the filesystem had less room than kvcached.ssd allows.",
		func(s *store.Stats) uint64 { return s.SSD.Squeezes }),
	gauge("ssd_segment_limit_bytes", "What segments may take since the filesystem had less room than kvcached.ssd "+
		"allows; 0: as kvcached.ssd says.", func(s *store.Stats) int64 { return s.SSD.SegmentLimit }),
	counter("namespaces_refused_total", "Blocks refused because their namespace was one too many, of all or of its "+
		"tenant's.", func(s *store.Stats) uint64 { return s.RAM.NamespacesRefused }),
	counter("ssd_waits_total", "Times that a write to SSD waited for room.", func(s *store.Stats) uint64 {
		return s.SSD.Waits
	}),
	counter("ssd_write_errors_total", "Writes that the disk failed, those aside that ssd_no_space_errors_total and "+
		"ssd_read_only_errors_total count.", func(s *store.Stats) uint64 { return s.SSD.WriteErrors }),
	counter("ssd_no_space_errors_total", "Writes that failed because the filesystem was full.",
		func(s *store.Stats) uint64 { return s.SSD.NoSpaceErrors }),
	counter("ssd_read_only_errors_total", "Writes that failed because the filesystem was read-only.",
		func(s *store.Stats) uint64 { return s.SSD.ReadOnly }),
	gauge("ssd_bytes", "What the SSD tier may take of the disk.", func(s *store.Stats) int64 { return s.SSD.Cap }),
	gauge("ssd_blocks", "Blocks in the index of the SSD tier.", func(s *store.Stats) int64 { return s.SSD.Records }),
	gauge("ssd_index_bytes", "Memory of the index of the SSD tier.", func(s *store.Stats) int64 {
		return s.SSD.IndexBytes
	}),
	gauge("ssd_segment_bytes", "Size of the segment files.", func(s *store.Stats) int64 { return s.SSD.SegmentBytes }),
	gauge("ssd_live_bytes", "Bytes in segment files that the index points to.", func(s *store.Stats) int64 {
		return s.SSD.LiveBytes
	}),
	gauge("ssd_written_today_bytes", "Bytes written since midnight UTC.", func(s *store.Stats) int64 {
		return s.SSD.WrittenToday
	}),
	gauge("ssd_waiting_bytes", "Bytes of RAM of the blocks that wait to be written to SSD.",
		func(s *store.Stats) int64 { return s.BehindBytes }),
	{"cgn_kvcached_ssd_loaded_ratio", "How much of the index is loaded since the start.", false, func(s *store.Stats) float64 { return s.Loading.Fraction }},
}

var rpcRows = []row[rpc.Stats]{
	gauge("grpc_connections", "gRPC connections.", func(s *rpc.Stats) int64 { return s.Connections }),
	counter("grpc_denied_total", "Connections to the Unix socket refused for their user and groups.",
		func(s *rpc.Stats) uint64 { return s.Denied }),
	counter("grpc_turned_away_total", "Connections that were one too many.", func(s *rpc.Stats) uint64 {
		return s.TurnedAway
	}),
	counter("grpc_refused_total", "Calls for which the certificate's role has no right.", func(s *rpc.Stats) uint64 {
		return s.Refused
	}),
	counter("grpc_in_bytes_total", "Payload stored.", func(s *rpc.Stats) uint64 { return s.BytesIn }),
	counter("grpc_out_bytes_total", "Payload sent.", func(s *rpc.Stats) uint64 { return s.BytesOut }),
}

// rpcDefs are the gRPC metrics with a label. Their values come in the order calls, failed.
var rpcDefs = []metric.Def{
	{Name: "cgn_kvcached_grpc_calls_total", Kind: metric.Counter, Labels: []string{"method"}, Help: "gRPC calls."},
	{Name: "cgn_kvcached_grpc_failed_total", Kind: metric.Counter, Labels: []string{"method"}, Help: "gRPC calls that were answered with an error."},
}

func (in *instruments) defineCalls() {
	in.set.Read(rpcDefs, func(emit func(def int, value float64, labels ...string)) {
		if in.rpc == nil {
			return
		}
		s := in.rpc.Stats()
		for method, n := range s.Calls {
			emit(0, float64(n), method)
			emit(1, float64(s.Failed[method]), method)
		}
	})
}

var leaseRows = []row[lease.Stats]{
	gauge("lease_clients", "Connections to the lease socket that are open or hold leases.",
		func(s *lease.Stats) int64 { return s.Clients }),
	gauge("lease_leases", "Leases held.", func(s *lease.Stats) int64 { return s.Leases }),
	gauge("lease_leased_bytes", "Bytes under leases; a block under two counts twice.", func(s *lease.Stats) int64 {
		return s.LeasedBytes
	}),
	gauge("lease_staging_bytes", "Memory in which clients fill blocks.", func(s *lease.Stats) int64 {
		return s.StagingBytes
	}),
	counter("lease_denied_total", "Connections refused for their user and groups.", func(s *lease.Stats) uint64 {
		return s.Denied
	}),
	counter("lease_busy_total", "Connections refused because there were too many.", func(s *lease.Stats) uint64 {
		return s.Busy
	}),
	counter("lease_bad_frames_total", "Connections ended because of what they sent.", func(s *lease.Stats) uint64 {
		return s.BadFrames
	}),
	counter("lease_stalled_total", "Connections ended because a frame was not completed, or an answer not taken, "+
		"in time.", func(s *lease.Stats) uint64 { return s.Stalled }),
	counter("lease_hits_total", "Blocks leased.", func(s *lease.Stats) uint64 { return s.Hits }),
	counter("lease_misses_total", "Blocks asked for that are not there.", func(s *lease.Stats) uint64 {
		return s.Misses
	}),
	counter("lease_refused_total", "Leases and staging refused because of a quota.", func(s *lease.Stats) uint64 {
		return s.Refused
	}),
	counter("lease_puts_total", "Blocks stored over the lease socket.", func(s *lease.Stats) uint64 { return s.Puts }),
	counter("lease_put_bytes_total", "Payload of the blocks stored over the lease socket.",
		func(s *lease.Stats) uint64 { return s.PutBytes }),
	counter("lease_failed_puts_total", "Commits that stored nothing.", func(s *lease.Stats) uint64 {
		return s.FailedPuts
	}),
	counter("lease_expired_total", "Leases that ended by themselves.", func(s *lease.Stats) uint64 {
		return s.Expired
	}),
}

var respRows = []row[resp.Stats]{
	gauge("resp_connections", "Connections open.", func(s *resp.Stats) int64 { return s.Connections }),
	counter("resp_refused_total", "Connections refused: too many, or no file descriptor.",
		func(s *resp.Stats) uint64 { return s.Refused }),
	counter("resp_commands_total", "Commands executed or refused.", func(s *resp.Stats) uint64 { return s.Commands }),
	counter("resp_errors_total", "Error replies.", func(s *resp.Stats) uint64 { return s.Errors }),
	counter("resp_protocol_errors_total", "Connections closed because what they sent is not RESP.",
		func(s *resp.Stats) uint64 { return s.ProtocolErrors }),
	counter("resp_auth_failures_total", "Wrong passwords.", func(s *resp.Stats) uint64 { return s.AuthFailures }),
	counter("resp_stalled_total", "Connections closed because a command or a reply took too long.",
		func(s *resp.Stats) uint64 { return s.Stalled }),
	counter("resp_hits_total", "Values found by commands that read them.", func(s *resp.Stats) uint64 {
		return s.Hits
	}),
	counter("resp_misses_total", "Values not found.", func(s *resp.Stats) uint64 { return s.Misses }),
	counter("resp_read_failures_total", "Values that could not be read, answered as misses.",
		func(s *resp.Stats) uint64 { return s.ReadFailures }),
	counter("resp_hosts_failures_total", "Commands refused because other caches, which may have the key, could not "+
		"be asked.", func(s *resp.Stats) uint64 { return s.HostsFailures }),
	counter("resp_store_failures_total", "Writes that failed, want of room aside.", func(s *resp.Stats) uint64 {
		return s.StoreFailures
	}),
	counter("resp_full_total", "Writes refused because the arena or a quota is full.", func(s *resp.Stats) uint64 {
		return s.Full
	}),
	counter("resp_writes_total", "Values stored.", func(s *resp.Stats) uint64 { return s.Writes }),
	counter("resp_aborted_total", "Values that broke off on the way.", func(s *resp.Stats) uint64 { return s.Aborted }),
	counter("resp_in_bytes_total", "Payload stored.", func(s *resp.Stats) uint64 { return s.BytesIn }),
	counter("resp_out_bytes_total", "Payload sent.", func(s *resp.Stats) uint64 { return s.BytesOut }),
}

var s3Rows = []row[s3.Stats]{
	gauge("s3_uploads", "Multipart uploads that are not complete.", func(s *s3.Stats) int64 { return s.Uploads }),
	gauge("s3_upload_bytes", "Memory of the parts of multipart uploads that are not complete.",
		func(s *s3.Stats) int64 { return s.UploadBytes }),
	counter("s3_requests_total", "Requests.", func(s *s3.Stats) uint64 { return s.Requests }),
	counter("s3_hits_total", "GET and HEAD of an object that is there.", func(s *s3.Stats) uint64 { return s.Hits }),
	counter("s3_misses_total", "GET and HEAD of an object that is not there.", func(s *s3.Stats) uint64 {
		return s.Misses
	}),
	counter("s3_puts_total", "Objects written.", func(s *s3.Stats) uint64 { return s.Puts }),
	counter("s3_in_bytes_total", "Payload stored.", func(s *s3.Stats) uint64 { return s.BytesIn }),
	counter("s3_out_bytes_total", "Payload sent.", func(s *s3.Stats) uint64 { return s.BytesOut }),
	counter("s3_denied_total", "Requests without or with wrong credentials, or not allowed.",
		func(s *s3.Stats) uint64 { return s.Denied }),
	counter("s3_refused_total", "Requests refused for other mistakes of clients than credentials.",
		func(s *s3.Stats) uint64 { return s.Refused }),
	counter("s3_slowed_down_total", "Requests answered SlowDown: no memory, or a bound reached.",
		func(s *s3.Stats) uint64 { return s.SlowedDown }),
	counter("s3_failed_total", "Requests answered InternalError.", func(s *s3.Stats) uint64 { return s.Failed }),
	counter("s3_aborted_total", "Bodies that broke off or were too slow.", func(s *s3.Stats) uint64 {
		return s.Aborted
	}),
	counter("s3_bad_digests_total", "Payloads whose checksum was wrong.", func(s *s3.Stats) uint64 {
		return s.BadDigests
	}),
}

var peerRows = []row[transport.ServerStats]{
	gauge("peer_connections", "Connections of other hosts' caches.", func(s *transport.ServerStats) int64 {
		return s.Conns
	}),
	gauge("peer_in_flight_bytes", "Payload of operations under way.", func(s *transport.ServerStats) int64 {
		return s.InFlight
	}),
	counter("peer_sent_bytes_total", "Payload sent to other hosts.", func(s *transport.ServerStats) uint64 {
		return s.Sent
	}),
	counter("peer_received_bytes_total", "Payload that other hosts have stored here.",
		func(s *transport.ServerStats) uint64 { return s.Received }),
	counter("peer_gave_up_total", "Operations that the peer broke off.", func(s *transport.ServerStats) uint64 {
		return s.GaveUp
	}),
	counter("peer_stalled_total", "Operations broken off because the peer neither read nor wrote.",
		func(s *transport.ServerStats) uint64 { return s.Stalled }),
	counter("peer_refused_connections_total", "Connections beyond a bound.", func(s *transport.ServerStats) uint64 {
		return s.RefusedConns
	}),
	counter("peer_failed_handshakes_total", "TLS handshakes on TCP that failed.",
		func(s *transport.ServerStats) uint64 { return s.Handshakes }),
}

// peerDefs are the metrics of other hosts' requests with a label.
var peerDefs = []metric.Def{
	{Name: "cgn_kvcached_peer_operations_total", Kind: metric.Counter, Labels: []string{"op"}, Help: "Operations of other hosts that ended."},
	{Name: "cgn_kvcached_peer_statuses_total", Kind: metric.Counter, Labels: []string{"status"}, Help: "Operations of other hosts that ended, by how they did."},
}

func (in *instruments) definePeers() {
	in.set.Read(peerDefs, func(emit func(def int, value float64, labels ...string)) {
		if in.peers == nil {
			return
		}
		s := in.peers.Stats()
		emit(0, float64(s.Ops[0]), "unknown")
		for op := range wire.Ops {
			if !wire.Op(op).Known() {
				continue
			}
			emit(0, float64(s.Ops[op]), wire.Op(op).String())
		}
		for status, n := range s.Statuses {
			emit(1, float64(n), wire.Status(status).String())
		}
	})
}

var residencyRows = []row[residency.Stats]{
	gauge("residency_blocks", "Blocks known to be somewhere on this host, once for each holder.",
		func(s *residency.Stats) int64 { return s.Blocks }),
	gauge("residency_own_blocks", "Blocks of the daemon's own tiers known to be on this host.",
		func(s *residency.Stats) int64 { return s.OwnBlocks }),
	gauge("residency_engines", "Engines that report what they hold.", func(s *residency.Stats) int64 {
		return s.Engines
	}),
	gauge("residency_watchers", "Routers and others that are told which blocks are on this host.",
		func(s *residency.Stats) int64 { return s.Watchers }),
	counter("residency_changes_total", "Changes of which block is where on this host that were told.",
		func(s *residency.Stats) uint64 { return s.Changes }),
	counter("residency_resyncs_total", "Watchers that were too slow and got a new snapshot.",
		func(s *residency.Stats) uint64 { return s.Resyncs }),
	counter("residency_overflow_total", "Blocks not told of because there are too many blocks or namespaces.",
		func(s *residency.Stats) uint64 { return s.Overflow }),
	counter("residency_expired_total", "Engines that have stopped to report.", func(s *residency.Stats) uint64 {
		return s.Expired
	}),
}

var traceRows = []row[accesses.RecorderStats]{
	counter("trace_left_out_total", "Accesses not recorded because the file is full or cannot be written.",
		func(s *accesses.RecorderStats) uint64 { return s.Dropped }),
}

// Indexes of stateDefs.
const (
	defReady = iota
	defDraining
	defInfo
)

var stateDefs = []metric.Def{
	defReady:    {Name: "cgn_kvcached_ready", Help: "1 while the daemon serves."},
	defDraining: {Name: "cgn_kvcached_draining", Help: "1 while the daemon is being stopped."},
	defInfo:     {Name: "cgn_kvcached_info", Labels: []string{"cache", "version", "pages"}, Help: "Always 1; pages is what the arena is made of: hugetlb, thp or 4k."},
}

// define defines every metric. Parts that are not served have no values.
func (in *instruments) define(state func(emit func(def int, value float64, labels ...string))) {
	in.set.Read(stateDefs, state)
	export(in, storeRows, snapshotOf(in.store, (*store.Store).Stats))
	export(in, ssdRows, onlyWith(in.store))
	export(in, rpcRows, snapshotOf(in.rpc, (*rpc.Server).Stats))
	in.defineCalls()
	export(in, leaseRows, snapshotOf(in.lease, (*lease.Server).Stats))
	export(in, respRows, snapshotOf(in.resp, (*resp.Server).Stats))
	export(in, s3Rows, snapshotOf(in.s3, (*s3.Server).Stats))
	export(in, peerRows, snapshotOf(in.peers, (*transport.Server).Stats))
	in.definePeers()
	in.defineFleet()
	in.definePool()
	in.defineRDMA()
	in.defineGranted()
	export(in, residencyRows, snapshotOf(in.index, (*residency.Index).Stats))
	export(in, traceRows, snapshotOf(in.trace, (*accesses.Recorder).Stats))
}

// onlyWith returns the snapshot of a store with an SSD tier, else nil.
func onlyWith(s *store.Store) func() store.Stats {
	if s == nil || !s.Stats().HasSSD {
		return nil
	}
	return s.Stats
}

// watch connects the metrics with the daemon's parts.
func (in *instruments) watch(d *Daemon) {
	in.store, in.index, in.fleet, in.pool = d.store, d.index, d.view.Load(), d.pool
	in.rails = d.rails
	if d.recorder != nil {
		in.trace = d.recorder.Recorder
	}
	pages := string(d.store.Stats().Backing)
	in.define(func(emit func(def int, value float64, labels ...string)) {
		emit(defReady, oneIf(d.unready() == ""))
		emit(defDraining, oneIf(d.draining.Load()))
		emit(defInfo, 1, d.config.cacheID(), buildinfo.Version(), pages)
	})
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Metrics returns the table of a cache daemon's metrics, sorted by name.
func Metrics() []metric.Def {
	in := newInstruments()
	in.define(func(func(int, float64, ...string)) {})
	return in.set.Defs()
}
