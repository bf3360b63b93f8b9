package kvcached

import (
	"github.com/cognitora/dataplane/internal/buildinfo"
	"github.com/cognitora/dataplane/internal/metric"
	"github.com/cognitora/dataplane/kv/accesses"
	"github.com/cognitora/dataplane/kv/residency"
	"github.com/cognitora/dataplane/kvcached/chunks"
	"github.com/cognitora/dataplane/kvcached/lease"
	"github.com/cognitora/dataplane/kvcached/resp"
	"github.com/cognitora/dataplane/kvcached/rpc"
	"github.com/cognitora/dataplane/kvcached/s3"
	"github.com/cognitora/dataplane/kvcached/store"
	"github.com/cognitora/dataplane/kvcached/transport"
	"github.com/cognitora/dataplane/kvcached/wire"
)

var storeRows = []row[store.Stats]{
	{"hits_total", "Requested blocks that were in RAM. What a router promotes counts neither here nor as a miss.", func(s *store.Stats) float64 { return float64(s.Hits) }},
	{"misses_total", "Requested blocks that were in no tier of this host.", func(s *store.Stats) float64 { return float64(s.Misses) }},
	{"puts_total", "Blocks stored.", func(s *store.Stats) float64 { return float64(s.Puts) }},
	{"deletes_total", "Blocks deleted by clients.", func(s *store.Stats) float64 { return float64(s.Deletes) }},
	{"expired_total", "Blocks removed from RAM because they had expired.", func(s *store.Stats) float64 { return float64(s.Expired) }},
	{"refused_total", "Blocks refused for want of room: the arena was in use, a quota was reached, or there were too many namespaces.", func(s *store.Stats) float64 { return float64(s.Refused) }},
	{"released_twice_total", "References to blocks that were released twice. Each is a bug.", func(s *store.Stats) float64 { return float64(s.ReleasedTwice) }},
	{"ram_evictions_total", "Blocks that left RAM to make room.", func(s *store.Stats) float64 { return float64(s.RAM.Evictions) }},
	{"ram_quota_evictions_total", "Blocks that left RAM because their [[quota]] was reached.", func(s *store.Stats) float64 { return float64(s.RAM.QuotaEvicted) }},
	{"ram_bytes", "Size of the arena.", func(s *store.Stats) float64 { return float64(s.RAM.Size) }},
	{"ram_free_bytes", "Bytes of the arena without a block.", func(s *store.Stats) float64 { return float64(s.RAM.Free) }},
	{"ram_held_bytes", "Bytes of blocks that are being read or written and so cannot be evicted.", func(s *store.Stats) float64 { return float64(s.RAM.Held) }},
	{"ram_pinned_bytes", "Bytes of pinned blocks.", func(s *store.Stats) float64 { return float64(s.RAM.Pinned) }},
	{"ram_blocks", "Blocks in RAM.", func(s *store.Stats) float64 { return float64(s.RAM.Blocks) }},
	{"namespaces", "Namespaces with blocks in RAM.", func(s *store.Stats) float64 { return float64(s.RAM.Namespaces) }},
	{"namespaces_refused_total", "Blocks refused because the daemon, or their tenant, had too many namespaces.", func(s *store.Stats) float64 { return float64(s.RAM.NamespacesRefused) }},
}

var ssdRows = []row[store.Stats]{
	{"promotions_total", "Blocks brought from SSD to RAM.", func(s *store.Stats) float64 { return float64(s.Promotions) }},
	{"promotions_failed_total", "Blocks that were misses because SSD could not be read or had damaged bytes.", func(s *store.Stats) float64 { return float64(s.PromotionsFailed) }},
	{"ssd_admitted_total", "Blocks written to SSD after their first read.", func(s *store.Stats) float64 { return float64(s.WrittenBehind) }},
	{"ssd_admission_dropped_total", "Blocks that were not written to SSD because the queue was full.", func(s *store.Stats) float64 { return float64(s.BehindDropped) }},
	{"ssd_admission_failed_total", "Blocks that were not written to SSD because the write failed.", func(s *store.Stats) float64 { return float64(s.BehindFailed) }},
	{"ssd_durable_total", "Durable writes, which wait for SSD.", func(s *store.Stats) float64 { return float64(s.Durable) }},
	{"ssd_annotated_bytes_total", "Payload of the blocks written to SSD again because it was told only then which blocks their chunk stands for.", func(s *store.Stats) float64 { return float64(s.AnnotatedBytes) }},
	{"ssd_reads_total", "Blocks read from SSD.", func(s *store.Stats) float64 { return float64(s.SSD.Reads) }},
	{"ssd_read_bytes_total", "Payload of the blocks read from SSD.", func(s *store.Stats) float64 { return float64(s.SSD.ReadBytes) }},
	{"ssd_corrupt_total", "Damaged records that were found and dropped.", func(s *store.Stats) float64 { return float64(s.SSD.Corrupt) }},
	{"ssd_torn_total", "Records that a crash had left unfinished and the start dropped.", func(s *store.Stats) float64 { return float64(s.SSD.Torn) }},
	{"ssd_lost_total", "Rows of the index that the start dropped because their segment was gone.", func(s *store.Stats) float64 { return float64(s.SSD.Lost) }},
	{"ssd_resets_total", "Starts that dropped all blocks because the rows of the index were damaged.", func(s *store.Stats) float64 { return float64(s.SSD.Resets) }},
	{"ssd_read_errors_total", "Reads that failed at the disk.", func(s *store.Stats) float64 { return float64(s.SSD.ReadErrors) }},
	{"ssd_writes_total", "Blocks written to SSD.", func(s *store.Stats) float64 { return float64(s.SSD.Writes) }},
	{"ssd_payload_bytes_total", "Payload of the blocks written to SSD.", func(s *store.Stats) float64 { return float64(s.SSD.PayloadBytes) }},
	{"ssd_written_bytes_total", "Bytes written to segments, copies and footers included.", func(s *store.Stats) float64 { return float64(s.SSD.WrittenBytes) }},
	{"ssd_moved_bytes_total", "Bytes of the records copied on SSD to make room.", func(s *store.Stats) float64 { return float64(s.SSD.MovedBytes) }},
	{"ssd_evictions_total", "Blocks dropped from SSD to make room.", func(s *store.Stats) float64 { return float64(s.SSD.Evicted) }},
	{"ssd_expired_total", "Blocks dropped from SSD because they had expired.", func(s *store.Stats) float64 { return float64(s.SSD.Expired) }},
	{"ssd_over_budget_total", "Writes refused because ssd.daily_writes was used up.", func(s *store.Stats) float64 { return float64(s.SSD.OverBudget) }},
	{"ssd_over_quota_total", "Writes refused because a [[quota]] was used up.", func(s *store.Stats) float64 { return float64(s.SSD.OverQuota) }},
	{"ssd_squeezes_total", "Times that the filesystem had less room than kvcached.ssd allows.", func(s *store.Stats) float64 { return float64(s.SSD.Squeezes) }},
	{"ssd_segment_limit_bytes", "Bound on the segment files because the filesystem had less room than kvcached.ssd allows; 0: kvcached.ssd is the bound.", func(s *store.Stats) float64 { return float64(s.SSD.SegmentLimit) }},
	{"ssd_waits_total", "Times that a write to SSD waited for room.", func(s *store.Stats) float64 { return float64(s.SSD.Waits) }},
	{"ssd_write_errors_total", "Writes that failed at the disk, without those in ssd_no_space_errors_total and ssd_read_only_errors_total.", func(s *store.Stats) float64 { return float64(s.SSD.WriteErrors) }},
	{"ssd_no_space_errors_total", "Writes that failed because the filesystem was full.", func(s *store.Stats) float64 { return float64(s.SSD.NoSpaceErrors) }},
	{"ssd_read_only_errors_total", "Writes that failed because the filesystem was read-only.", func(s *store.Stats) float64 { return float64(s.SSD.ReadOnly) }},
	{"ssd_bytes", "Bound on the disk space of the SSD tier.", func(s *store.Stats) float64 { return float64(s.SSD.Cap) }},
	{"ssd_blocks", "Blocks in the index of the SSD tier.", func(s *store.Stats) float64 { return float64(s.SSD.Records) }},
	{"ssd_index_bytes", "Memory of the index of the SSD tier.", func(s *store.Stats) float64 { return float64(s.SSD.IndexBytes) }},
	{"ssd_segment_bytes", "Size of the segment files.", func(s *store.Stats) float64 { return float64(s.SSD.SegmentBytes) }},
	{"ssd_live_bytes", "Bytes of the segment files that hold blocks of the index.", func(s *store.Stats) float64 { return float64(s.SSD.LiveBytes) }},
	{"ssd_written_today_bytes", "Bytes written to SSD since midnight UTC.", func(s *store.Stats) float64 { return float64(s.SSD.WrittenToday) }},
	{"ssd_waiting_bytes", "RAM of the blocks that wait to be written to SSD.", func(s *store.Stats) float64 { return float64(s.BehindBytes) }},
	{"ssd_loaded_ratio", "Share of the index that has been loaded since the start.", func(s *store.Stats) float64 { return s.Loading.Fraction }},
}

var rpcRows = []row[rpc.Stats]{
	{"grpc_connections", "Open gRPC connections.", func(s *rpc.Stats) float64 { return float64(s.Connections) }},
	{"grpc_denied_total", "Connections to the Unix socket refused because of their user and groups.", func(s *rpc.Stats) float64 { return float64(s.Denied) }},
	{"grpc_turned_away_total", "gRPC connections refused because there were too many.", func(s *rpc.Stats) float64 { return float64(s.TurnedAway) }},
	{"grpc_refused_total", "gRPC calls refused because the certificate's role has no right to them.", func(s *rpc.Stats) float64 { return float64(s.Refused) }},
	{"grpc_in_bytes_total", "Payload stored over gRPC.", func(s *rpc.Stats) float64 { return float64(s.BytesIn) }},
	{"grpc_out_bytes_total", "Payload sent over gRPC.", func(s *rpc.Stats) float64 { return float64(s.BytesOut) }},
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
	{"lease_leases", "Leases that clients hold now.", func(s *lease.Stats) float64 { return float64(s.Leases) }},
	{"lease_leased_bytes", "Bytes of leased blocks. A block with two leases counts twice.", func(s *lease.Stats) float64 { return float64(s.LeasedBytes) }},
	{"lease_staging_bytes", "Memory in which clients prepare blocks before they are stored.", func(s *lease.Stats) float64 { return float64(s.StagingBytes) }},
	{"lease_denied_total", "Connections to the lease socket refused because of their user and groups.", func(s *lease.Stats) float64 { return float64(s.Denied) }},
	{"lease_busy_total", "Connections to the lease socket refused because there were too many.", func(s *lease.Stats) float64 { return float64(s.Busy) }},
	{"lease_bad_frames_total", "Connections to the lease socket ended because of a frame that the daemon could not read.", func(s *lease.Stats) float64 { return float64(s.BadFrames) }},
	{"lease_stalled_total", "Connections to the lease socket ended because the client did not complete a frame, or read an answer, in time.", func(s *lease.Stats) float64 { return float64(s.Stalled) }},
	{"lease_hits_total", "Blocks leased.", func(s *lease.Stats) float64 { return float64(s.Hits) }},
	{"lease_out_bytes_total", "Payload of the blocks leased. A block counts for each of its leases.", func(s *lease.Stats) float64 { return float64(s.HitBytes) }},
	{"lease_misses_total", "Requested leases whose block was a miss.", func(s *lease.Stats) float64 { return float64(s.Misses) }},
	{"lease_refused_total", "Leases, and memory to prepare blocks, refused because of a bound in [lease].", func(s *lease.Stats) float64 { return float64(s.Refused) }},
	{"lease_puts_total", "Blocks stored over the lease socket.", func(s *lease.Stats) float64 { return float64(s.Puts) }},
	{"lease_put_bytes_total", "Payload of the blocks stored over the lease socket.", func(s *lease.Stats) float64 { return float64(s.PutBytes) }},
	{"lease_failed_puts_total", "Commits over the lease socket that failed to store the block.", func(s *lease.Stats) float64 { return float64(s.FailedPuts) }},
	{"lease_expired_total", "Leases that ended because their time was over.", func(s *lease.Stats) float64 { return float64(s.Expired) }},
}

var respRows = []row[resp.Stats]{
	{"resp_connections", "Open RESP connections.", func(s *resp.Stats) float64 { return float64(s.Connections) }},
	{"resp_refused_total", "RESP connections refused because there were too many, or no file descriptor was free.", func(s *resp.Stats) float64 { return float64(s.Refused) }},
	{"resp_commands_total", "RESP commands executed or refused.", func(s *resp.Stats) float64 { return float64(s.Commands) }},
	{"resp_errors_total", "RESP commands answered with an error.", func(s *resp.Stats) float64 { return float64(s.Errors) }},
	{"resp_protocol_errors_total", "RESP connections closed because the client did not speak RESP.", func(s *resp.Stats) float64 { return float64(s.ProtocolErrors) }},
	{"resp_auth_failures_total", "RESP logins with a wrong user or password.", func(s *resp.Stats) float64 { return float64(s.AuthFailures) }},
	{"resp_stalled_total", "RESP connections closed because a command or a reply took longer than resp.stall.", func(s *resp.Stats) float64 { return float64(s.Stalled) }},
	{"resp_hits_total", "Values that RESP commands found.", func(s *resp.Stats) float64 { return float64(s.Hits) }},
	{"resp_misses_total", "Values that RESP commands did not find.", func(s *resp.Stats) float64 { return float64(s.Misses) }},
	{"resp_read_failures_total", "Values that RESP commands could not read. They were answered as misses.", func(s *resp.Stats) float64 { return float64(s.ReadFailures) }},
	{"resp_hosts_failures_total", "RESP commands refused because other caches, which may have the key, did not answer.", func(s *resp.Stats) float64 { return float64(s.HostsFailures) }},
	{"resp_store_failures_total", "RESP writes that failed for another reason than want of room.", func(s *resp.Stats) float64 { return float64(s.StoreFailures) }},
	{"resp_full_total", "RESP writes refused because the arena or a quota was full.", func(s *resp.Stats) float64 { return float64(s.Full) }},
	{"resp_writes_total", "Values stored over RESP.", func(s *resp.Stats) float64 { return float64(s.Writes) }},
	{"resp_aborted_total", "Values whose RESP command broke off before its end.", func(s *resp.Stats) float64 { return float64(s.Aborted) }},
	{"resp_in_bytes_total", "Payload stored over RESP.", func(s *resp.Stats) float64 { return float64(s.BytesIn) }},
	{"resp_out_bytes_total", "Payload sent over RESP.", func(s *resp.Stats) float64 { return float64(s.BytesOut) }},
}

var s3Rows = []row[s3.Stats]{
	{"s3_uploads", "Multipart uploads that are not complete.", func(s *s3.Stats) float64 { return float64(s.Uploads) }},
	{"s3_upload_bytes", "Memory of the parts of multipart uploads that are not complete.", func(s *s3.Stats) float64 { return float64(s.UploadBytes) }},
	{"s3_requests_total", "S3 requests.", func(s *s3.Stats) float64 { return float64(s.Requests) }},
	{"s3_hits_total", "S3 GET and HEAD requests that found their object.", func(s *s3.Stats) float64 { return float64(s.Hits) }},
	{"s3_misses_total", "S3 GET and HEAD requests that did not find their object.", func(s *s3.Stats) float64 { return float64(s.Misses) }},
	{"s3_puts_total", "Objects stored over S3.", func(s *s3.Stats) float64 { return float64(s.Puts) }},
	{"s3_in_bytes_total", "Payload stored over S3.", func(s *s3.Stats) float64 { return float64(s.BytesIn) }},
	{"s3_out_bytes_total", "Payload sent over S3.", func(s *s3.Stats) float64 { return float64(s.BytesOut) }},
	{"s3_denied_total", "S3 requests refused because credentials were missing or wrong, or did not allow the request.", func(s *s3.Stats) float64 { return float64(s.Denied) }},
	{"s3_refused_total", "S3 requests refused because of another mistake of the client.", func(s *s3.Stats) float64 { return float64(s.Refused) }},
	{"s3_slowed_down_total", "S3 requests answered SlowDown because memory was short or a bound was reached.", func(s *s3.Stats) float64 { return float64(s.SlowedDown) }},
	{"s3_failed_total", "S3 requests answered InternalError.", func(s *s3.Stats) float64 { return float64(s.Failed) }},
	{"s3_aborted_total", "S3 bodies that broke off or were too slow.", func(s *s3.Stats) float64 { return float64(s.Aborted) }},
	{"s3_bad_digests_total", "S3 bodies with a wrong checksum.", func(s *s3.Stats) float64 { return float64(s.BadDigests) }},
}

var peerRows = []row[transport.ServerStats]{
	{"peer_connections", "Open connections from other hosts' caches.", func(s *transport.ServerStats) float64 { return float64(s.Conns) }},
	{"peer_in_flight_bytes", "Payload of other hosts' operations that are running.", func(s *transport.ServerStats) float64 { return float64(s.InFlight) }},
	{"peer_sent_bytes_total", "Payload sent to other hosts.", func(s *transport.ServerStats) float64 { return float64(s.Sent) }},
	{"peer_received_bytes_total", "Payload that other hosts have stored here.", func(s *transport.ServerStats) float64 { return float64(s.Received) }},
	{"peer_gave_up_total", "Operations that the other host broke off.", func(s *transport.ServerStats) float64 { return float64(s.GaveUp) }},
	{"peer_stalled_total", "Operations that this host broke off because the other host neither read nor wrote.", func(s *transport.ServerStats) float64 { return float64(s.Stalled) }},
	{"peer_refused_connections_total", "Connections of other hosts refused because there were too many.", func(s *transport.ServerStats) float64 { return float64(s.RefusedConns) }},
	{"peer_failed_handshakes_total", "TLS handshakes of other hosts over TCP that failed.", func(s *transport.ServerStats) float64 { return float64(s.Handshakes) }},
}

// peerDefs are the metrics of other hosts' requests with a label.
var peerDefs = []metric.Def{
	{Name: "cgn_kvcached_peer_operations_total", Kind: metric.Counter, Labels: []string{"op"}, Help: "Ended operations of other hosts, by operation."},
	{Name: "cgn_kvcached_peer_statuses_total", Kind: metric.Counter, Labels: []string{"status"}, Help: "Ended operations of other hosts, by status."},
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
	{"residency_blocks", "Blocks that the daemon or an engine of this host holds, counted once for each holder.", func(s *residency.Stats) float64 { return float64(s.Blocks) }},
	{"residency_own_blocks", "Blocks in the daemon's own tiers that routers can learn of.", func(s *residency.Stats) float64 { return float64(s.OwnBlocks) }},
	{"residency_engines", "Engines that report their blocks.", func(s *residency.Stats) float64 { return float64(s.Engines) }},
	{"residency_readers", "Nodes whose engines have told which blocks they can read.", func(s *residency.Stats) float64 { return float64(s.Readers) }},
	{"residency_reads_refused_total", "Namespaces that engines read and that were not noted, because 64 nodes or 64 of the node were.", func(s *residency.Stats) float64 { return float64(s.ReadsRefused) }},
	{"residency_watchers", "Routers and other watchers that follow this host's blocks.", func(s *residency.Stats) float64 { return float64(s.Watchers) }},
	{"residency_changes_total", "Changes of this host's blocks that watchers could follow.", func(s *residency.Stats) float64 { return float64(s.Changes) }},
	{"residency_resyncs_total", "Watchers that were too slow and got a new snapshot.", func(s *residency.Stats) float64 { return float64(s.Resyncs) }},
	{"residency_overflow_total", "Blocks left out of residency because there are too many blocks or namespaces.", func(s *residency.Stats) float64 { return float64(s.Overflow) }},
	{"residency_expired_total", "Engines whose blocks were forgotten because they stopped reporting.", func(s *residency.Stats) float64 { return float64(s.Expired) }},
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
	defInfo:     {Name: "cgn_kvcached_info", Labels: []string{"cache", "version", "pages"}, Help: "Always 1; pages is the kind of pages of the arena: hugetlb, thp or 4k."},
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
	export(in, chunkRows, snapshotOf(in.chunks, (*chunks.Table).Stats))
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
	in.store, in.index, in.chunks, in.fleet, in.pool = d.store, d.index, d.chunks, d.view.Load(), d.pool
	in.rails = d.rails
	if d.recorder != nil {
		in.trace = d.recorder.Recorder
	}
	pages := string(d.store.Stats().Backing)
	in.define(func(emit func(def int, value float64, labels ...string)) {
		emit(defReady, metric.Bool(d.unready() == ""))
		emit(defDraining, metric.Bool(d.draining.Load()))
		emit(defInfo, 1, d.config.cacheID(), buildinfo.Version(), pages)
	})
}

// Metrics returns the table of a cache daemon's metrics, sorted by name.
func Metrics() []metric.Def {
	in := newInstruments()
	in.define(func(func(int, float64, ...string)) {})
	return in.set.Defs()
}
