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
	{"hits_total", "Blocks asked for that were in RAM.", func(s *store.Stats) float64 { return float64(s.Hits) }},
	{"misses_total", "Blocks asked for that were in no tier of this host.", func(s *store.Stats) float64 { return float64(s.Misses) }},
	{"puts_total", "Blocks stored.", func(s *store.Stats) float64 { return float64(s.Puts) }},
	{"deletes_total", "Blocks deleted by clients.", func(s *store.Stats) float64 { return float64(s.Deletes) }},
	{"expired_total", "Blocks removed from RAM because their time was over.", func(s *store.Stats) float64 { return float64(s.Expired) }},
	{"refused_total", "Blocks that found no room: all of the arena in use, a quota, too many namespaces.", func(s *store.Stats) float64 { return float64(s.Refused) }},
	{"released_twice_total", "References to blocks that were given back again; each is a bug.", func(s *store.Stats) float64 { return float64(s.ReleasedTwice) }},
	{"ram_evictions_total", "Blocks that left RAM to make room.", func(s *store.Stats) float64 { return float64(s.RAM.Evictions) }},
	{"ram_quota_evictions_total", "Blocks that left RAM because their account was at its quota.", func(s *store.Stats) float64 { return float64(s.RAM.QuotaEvicted) }},
	{"ram_bytes", "Size of the arena.", func(s *store.Stats) float64 { return float64(s.RAM.Size) }},
	{"ram_free_bytes", "Bytes of the arena without a block.", func(s *store.Stats) float64 { return float64(s.RAM.Free) }},
	{"ram_held_bytes", "Bytes that somebody reads or fills now, which are not evicted.", func(s *store.Stats) float64 { return float64(s.RAM.Held) }},
	{"ram_pinned_bytes", "Bytes of pinned blocks.", func(s *store.Stats) float64 { return float64(s.RAM.Pinned) }},
	{"ram_blocks", "Blocks in RAM.", func(s *store.Stats) float64 { return float64(s.RAM.Blocks) }},
	{"namespaces", "Namespaces with blocks in RAM.", func(s *store.Stats) float64 { return float64(s.RAM.Namespaces) }},
	{"namespaces_refused_total", "Blocks refused because their namespace was one too many, of all or of its tenant's.", func(s *store.Stats) float64 { return float64(s.RAM.NamespacesRefused) }},
}

var ssdRows = []row[store.Stats]{
	{"promotions_total", "Blocks brought from SSD to RAM.", func(s *store.Stats) float64 { return float64(s.Promotions) }},
	{"promotions_failed_total", "Blocks that were missed because SSD could not be read or had a damaged one.", func(s *store.Stats) float64 { return float64(s.PromotionsFailed) }},
	{"ssd_admitted_total", "Blocks written to SSD after their first read.", func(s *store.Stats) float64 { return float64(s.WrittenBehind) }},
	{"ssd_admission_dropped_total", "Blocks that were to be written, but the queue was full.", func(s *store.Stats) float64 { return float64(s.BehindDropped) }},
	{"ssd_admission_failed_total", "Blocks that were to be written, but could not.", func(s *store.Stats) float64 { return float64(s.BehindFailed) }},
	{"ssd_durable_total", "Writes that waited for SSD.", func(s *store.Stats) float64 { return float64(s.Durable) }},
	{"ssd_reads_total", "Blocks read from SSD.", func(s *store.Stats) float64 { return float64(s.SSD.Reads) }},
	{"ssd_read_bytes_total", "Payload of the blocks read from SSD.", func(s *store.Stats) float64 { return float64(s.SSD.ReadBytes) }},
	{"ssd_corrupt_total", "Records found damaged and dropped.", func(s *store.Stats) float64 { return float64(s.SSD.Corrupt) }},
	{"ssd_torn_total", "Records that a crash left unfinished, dropped at the start.", func(s *store.Stats) float64 { return float64(s.SSD.Torn) }},
	{"ssd_lost_total", "Rows dropped at the start because their segment is gone.", func(s *store.Stats) float64 { return float64(s.SSD.Lost) }},
	{"ssd_resets_total", "Starts that dropped all blocks because the rows of the index were damaged.", func(s *store.Stats) float64 { return float64(s.SSD.Resets) }},
	{"ssd_read_errors_total", "Reads that the disk failed.", func(s *store.Stats) float64 { return float64(s.SSD.ReadErrors) }},
	{"ssd_writes_total", "Blocks written to SSD.", func(s *store.Stats) float64 { return float64(s.SSD.Writes) }},
	{"ssd_payload_bytes_total", "Payload of the blocks written to SSD.", func(s *store.Stats) float64 { return float64(s.SSD.PayloadBytes) }},
	{"ssd_written_bytes_total", "Bytes written to segments, copies and footers included.", func(s *store.Stats) float64 { return float64(s.SSD.WrittenBytes) }},
	{"ssd_moved_bytes_total", "Bytes of the records copied on SSD to make room.", func(s *store.Stats) float64 { return float64(s.SSD.MovedBytes) }},
	{"ssd_evictions_total", "Blocks dropped from SSD to make room.", func(s *store.Stats) float64 { return float64(s.SSD.Evicted) }},
	{"ssd_expired_total", "Blocks dropped from SSD to make room whose time was over.", func(s *store.Stats) float64 { return float64(s.SSD.Expired) }},
	{"ssd_over_budget_total", "Writes refused because the day's budget was used up.", func(s *store.Stats) float64 { return float64(s.SSD.OverBudget) }},
	{"ssd_over_quota_total", "Writes refused because a [[quota]] was used up.", func(s *store.Stats) float64 { return float64(s.SSD.OverQuota) }},
	{"ssd_squeezes_total", "Times that the filesystem had less room than kvcached.ssd allows.", func(s *store.Stats) float64 { return float64(s.SSD.Squeezes) }},
	{"ssd_segment_limit_bytes", "What segments may take since the filesystem had less room than kvcached.ssd allows; 0: as kvcached.ssd says.", func(s *store.Stats) float64 { return float64(s.SSD.SegmentLimit) }},
	{"ssd_waits_total", "Times that a write to SSD waited for room.", func(s *store.Stats) float64 { return float64(s.SSD.Waits) }},
	{"ssd_write_errors_total", "Writes that the disk failed, those aside that ssd_no_space_errors_total and ssd_read_only_errors_total count.", func(s *store.Stats) float64 { return float64(s.SSD.WriteErrors) }},
	{"ssd_no_space_errors_total", "Writes that failed because the filesystem was full.", func(s *store.Stats) float64 { return float64(s.SSD.NoSpaceErrors) }},
	{"ssd_read_only_errors_total", "Writes that failed because the filesystem was read-only.", func(s *store.Stats) float64 { return float64(s.SSD.ReadOnly) }},
	{"ssd_bytes", "What the SSD tier may take of the disk.", func(s *store.Stats) float64 { return float64(s.SSD.Cap) }},
	{"ssd_blocks", "Blocks in the index of the SSD tier.", func(s *store.Stats) float64 { return float64(s.SSD.Records) }},
	{"ssd_index_bytes", "Memory of the index of the SSD tier.", func(s *store.Stats) float64 { return float64(s.SSD.IndexBytes) }},
	{"ssd_segment_bytes", "Size of the segment files.", func(s *store.Stats) float64 { return float64(s.SSD.SegmentBytes) }},
	{"ssd_live_bytes", "Bytes in segment files that the index points to.", func(s *store.Stats) float64 { return float64(s.SSD.LiveBytes) }},
	{"ssd_written_today_bytes", "Bytes written since midnight UTC.", func(s *store.Stats) float64 { return float64(s.SSD.WrittenToday) }},
	{"ssd_waiting_bytes", "Bytes of RAM of the blocks that wait to be written to SSD.", func(s *store.Stats) float64 { return float64(s.BehindBytes) }},
	{"ssd_loaded_ratio", "How much of the index is loaded since the start.", func(s *store.Stats) float64 { return s.Loading.Fraction }},
}

var rpcRows = []row[rpc.Stats]{
	{"grpc_connections", "gRPC connections.", func(s *rpc.Stats) float64 { return float64(s.Connections) }},
	{"grpc_denied_total", "Connections to the Unix socket refused for their user and groups.", func(s *rpc.Stats) float64 { return float64(s.Denied) }},
	{"grpc_turned_away_total", "Connections that were one too many.", func(s *rpc.Stats) float64 { return float64(s.TurnedAway) }},
	{"grpc_refused_total", "Calls for which the certificate's role has no right.", func(s *rpc.Stats) float64 { return float64(s.Refused) }},
	{"grpc_in_bytes_total", "Payload stored.", func(s *rpc.Stats) float64 { return float64(s.BytesIn) }},
	{"grpc_out_bytes_total", "Payload sent.", func(s *rpc.Stats) float64 { return float64(s.BytesOut) }},
}

// rpcDefs are the gRPC metrics with a label. The metrics' values come in the order calls, failed.
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
	{"lease_clients", "Connections to the lease socket that are open or hold leases.", func(s *lease.Stats) float64 { return float64(s.Clients) }},
	{"lease_leases", "Leases held.", func(s *lease.Stats) float64 { return float64(s.Leases) }},
	{"lease_leased_bytes", "Bytes under leases; a block under two counts twice.", func(s *lease.Stats) float64 { return float64(s.LeasedBytes) }},
	{"lease_staging_bytes", "Memory in which clients fill blocks.", func(s *lease.Stats) float64 { return float64(s.StagingBytes) }},
	{"lease_denied_total", "Connections refused for their user and groups.", func(s *lease.Stats) float64 { return float64(s.Denied) }},
	{"lease_busy_total", "Connections refused because there were too many.", func(s *lease.Stats) float64 { return float64(s.Busy) }},
	{"lease_bad_frames_total", "Connections ended because of what they sent.", func(s *lease.Stats) float64 { return float64(s.BadFrames) }},
	{"lease_stalled_total", "Connections ended because a frame was not completed, or an answer not taken, in time.", func(s *lease.Stats) float64 { return float64(s.Stalled) }},
	{"lease_hits_total", "Blocks leased.", func(s *lease.Stats) float64 { return float64(s.Hits) }},
	{"lease_misses_total", "Blocks asked for that are not there.", func(s *lease.Stats) float64 { return float64(s.Misses) }},
	{"lease_refused_total", "Leases and staging refused because of a quota.", func(s *lease.Stats) float64 { return float64(s.Refused) }},
	{"lease_puts_total", "Blocks stored over the lease socket.", func(s *lease.Stats) float64 { return float64(s.Puts) }},
	{"lease_put_bytes_total", "Payload of the blocks stored over the lease socket.", func(s *lease.Stats) float64 { return float64(s.PutBytes) }},
	{"lease_failed_puts_total", "Commits that stored nothing.", func(s *lease.Stats) float64 { return float64(s.FailedPuts) }},
	{"lease_expired_total", "Leases that ended by themselves.", func(s *lease.Stats) float64 { return float64(s.Expired) }},
}

var respRows = []row[resp.Stats]{
	{"resp_connections", "Connections open.", func(s *resp.Stats) float64 { return float64(s.Connections) }},
	{"resp_refused_total", "Connections refused: too many, or no file descriptor.", func(s *resp.Stats) float64 { return float64(s.Refused) }},
	{"resp_commands_total", "Commands executed or refused.", func(s *resp.Stats) float64 { return float64(s.Commands) }},
	{"resp_errors_total", "Error replies.", func(s *resp.Stats) float64 { return float64(s.Errors) }},
	{"resp_protocol_errors_total", "Connections closed because what they sent is not RESP.", func(s *resp.Stats) float64 { return float64(s.ProtocolErrors) }},
	{"resp_auth_failures_total", "Wrong passwords.", func(s *resp.Stats) float64 { return float64(s.AuthFailures) }},
	{"resp_stalled_total", "Connections closed because a command or a reply took too long.", func(s *resp.Stats) float64 { return float64(s.Stalled) }},
	{"resp_hits_total", "Values found by commands that read them.", func(s *resp.Stats) float64 { return float64(s.Hits) }},
	{"resp_misses_total", "Values not found.", func(s *resp.Stats) float64 { return float64(s.Misses) }},
	{"resp_read_failures_total", "Values that could not be read, answered as misses.", func(s *resp.Stats) float64 { return float64(s.ReadFailures) }},
	{"resp_hosts_failures_total", "Commands refused because other caches, which may have the key, could not be asked.", func(s *resp.Stats) float64 { return float64(s.HostsFailures) }},
	{"resp_store_failures_total", "Writes that failed, want of room aside.", func(s *resp.Stats) float64 { return float64(s.StoreFailures) }},
	{"resp_full_total", "Writes refused because the arena or a quota is full.", func(s *resp.Stats) float64 { return float64(s.Full) }},
	{"resp_writes_total", "Values stored.", func(s *resp.Stats) float64 { return float64(s.Writes) }},
	{"resp_aborted_total", "Values that broke off on the way.", func(s *resp.Stats) float64 { return float64(s.Aborted) }},
	{"resp_in_bytes_total", "Payload stored.", func(s *resp.Stats) float64 { return float64(s.BytesIn) }},
	{"resp_out_bytes_total", "Payload sent.", func(s *resp.Stats) float64 { return float64(s.BytesOut) }},
}

var s3Rows = []row[s3.Stats]{
	{"s3_uploads", "Multipart uploads that are not complete.", func(s *s3.Stats) float64 { return float64(s.Uploads) }},
	{"s3_upload_bytes", "Memory of the parts of multipart uploads that are not complete.", func(s *s3.Stats) float64 { return float64(s.UploadBytes) }},
	{"s3_requests_total", "Requests.", func(s *s3.Stats) float64 { return float64(s.Requests) }},
	{"s3_hits_total", "GET and HEAD of an object that is there.", func(s *s3.Stats) float64 { return float64(s.Hits) }},
	{"s3_misses_total", "GET and HEAD of an object that is not there.", func(s *s3.Stats) float64 { return float64(s.Misses) }},
	{"s3_puts_total", "Objects written.", func(s *s3.Stats) float64 { return float64(s.Puts) }},
	{"s3_in_bytes_total", "Payload stored.", func(s *s3.Stats) float64 { return float64(s.BytesIn) }},
	{"s3_out_bytes_total", "Payload sent.", func(s *s3.Stats) float64 { return float64(s.BytesOut) }},
	{"s3_denied_total", "Requests without or with wrong credentials, or not allowed.", func(s *s3.Stats) float64 { return float64(s.Denied) }},
	{"s3_refused_total", "Requests refused for other mistakes of clients than credentials.", func(s *s3.Stats) float64 { return float64(s.Refused) }},
	{"s3_slowed_down_total", "Requests answered SlowDown: no memory, or a bound reached.", func(s *s3.Stats) float64 { return float64(s.SlowedDown) }},
	{"s3_failed_total", "Requests answered InternalError.", func(s *s3.Stats) float64 { return float64(s.Failed) }},
	{"s3_aborted_total", "Bodies that broke off or were too slow.", func(s *s3.Stats) float64 { return float64(s.Aborted) }},
	{"s3_bad_digests_total", "Payloads whose checksum was wrong.", func(s *s3.Stats) float64 { return float64(s.BadDigests) }},
}

var peerRows = []row[transport.ServerStats]{
	{"peer_connections", "Connections of other hosts' caches.", func(s *transport.ServerStats) float64 { return float64(s.Conns) }},
	{"peer_in_flight_bytes", "Payload of operations under way.", func(s *transport.ServerStats) float64 { return float64(s.InFlight) }},
	{"peer_sent_bytes_total", "Payload sent to other hosts.", func(s *transport.ServerStats) float64 { return float64(s.Sent) }},
	{"peer_received_bytes_total", "Payload that other hosts have stored here.", func(s *transport.ServerStats) float64 { return float64(s.Received) }},
	{"peer_gave_up_total", "Operations that the peer broke off.", func(s *transport.ServerStats) float64 { return float64(s.GaveUp) }},
	{"peer_stalled_total", "Operations broken off because the peer neither read nor wrote.", func(s *transport.ServerStats) float64 { return float64(s.Stalled) }},
	{"peer_refused_connections_total", "Connections beyond a bound.", func(s *transport.ServerStats) float64 { return float64(s.RefusedConns) }},
	{"peer_failed_handshakes_total", "TLS handshakes on TCP that failed.", func(s *transport.ServerStats) float64 { return float64(s.Handshakes) }},
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
	{"residency_blocks", "Blocks known to be somewhere on this host, once for each holder.", func(s *residency.Stats) float64 { return float64(s.Blocks) }},
	{"residency_own_blocks", "Blocks of the daemon's own tiers known to be on this host.", func(s *residency.Stats) float64 { return float64(s.OwnBlocks) }},
	{"residency_engines", "Engines that report what they hold.", func(s *residency.Stats) float64 { return float64(s.Engines) }},
	{"residency_watchers", "Routers and others that are told which blocks are on this host.", func(s *residency.Stats) float64 { return float64(s.Watchers) }},
	{"residency_changes_total", "Changes of which block is where on this host that were told.", func(s *residency.Stats) float64 { return float64(s.Changes) }},
	{"residency_resyncs_total", "Watchers that were too slow and got a new snapshot.", func(s *residency.Stats) float64 { return float64(s.Resyncs) }},
	{"residency_overflow_total", "Blocks not told of because there are too many blocks or namespaces.", func(s *residency.Stats) float64 { return float64(s.Overflow) }},
	{"residency_expired_total", "Engines that have stopped to report.", func(s *residency.Stats) float64 { return float64(s.Expired) }},
}

var traceRows = []row[accesses.RecorderStats]{
	{"trace_left_out_total", "Accesses not recorded because the file is full or cannot be written.", func(s *accesses.RecorderStats) float64 { return float64(s.Dropped) }},
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
