package kvcached

import (
	"github.com/cognitora/dataplane/internal/metric"
	"github.com/cognitora/dataplane/kvcached/fleet"
	"github.com/cognitora/dataplane/kvcached/transport"
)

var fleetRows = []row[fleet.Stats]{
	{"fleet_named", "1 once this cache has read from etcd the list of all caches, with itself in it.", func(s *fleet.Stats) float64 { return float64(s.Named) }},
	{"fleet_hidden", "1 while all reads are misses because this cache has not read the fleet's purges yet.", func(s *fleet.Stats) float64 { return float64(s.Hidden) }},
	{"fleet_purge_revision", "Number of the last purge that this cache has carried out. It is the same on all caches of a fleet.", func(s *fleet.Stats) float64 { return float64(s.PurgeRevision) }},
	{"fleet_purges", "Purges that this cache remembers. Beyond 10,000, one purge of everything replaces the older half.", func(s *fleet.Stats) float64 { return float64(s.Purges) }},
	{"fleet_members", "Caches in the fleet, this one included.", func(s *fleet.Stats) float64 { return float64(s.Members) }},
	{"fleet_locations", "Blocks whose holders this cache remembers for the fleet.", func(s *fleet.Stats) float64 { return float64(s.Locations) }},
	{"fleet_locations_refused_total", "Blocks whose holders this cache had no room to remember.", func(s *fleet.Stats) float64 { return float64(s.LocationsRefused) }},
	{"fleet_pulled_total", "Blocks brought here from other hosts.", func(s *fleet.Stats) float64 { return float64(s.Pulled) }},
	{"fleet_pulled_bytes_total", "Payload of the blocks brought here from other hosts.", func(s *fleet.Stats) float64 { return float64(s.PulledBytes) }},
	{"fleet_pulled_bytes_per_second", "Speed of blocks and keys of 32 KiB or more from other hosts: sum(bytes * w) / sum(seconds * w) over the time in which any was on its way. w is exp(-s/10 - t/60) for what came t seconds before the last, with s seconds of such time since. 0 until anything came, then 125 MB/s until 256 KiB, or what took a second, came.", func(s *fleet.Stats) float64 { return float64(s.PulledPerSecond) }},
	{"fleet_awaited_total", "Blocks that promotions with a wait have found.", func(s *fleet.Stats) float64 { return float64(s.Awaited) }},
	{"fleet_awaited_in_vain_total", "Blocks that no host had when the wait of a promotion ended.", func(s *fleet.Stats) float64 { return float64(s.AwaitedInVain) }},
	{"fleet_awaiting", "Promotions that wait for blocks now.", func(s *fleet.Stats) float64 { return float64(s.Awaiting) }},
	{"fleet_awaits_refused_total", "Promotions that did not wait, because their host had as many of 128 places as were free.", func(s *fleet.Stats) float64 { return float64(s.AwaitsRefused) }},
	{"fleet_left_out", "Caches that get no requests now because they do not answer.", func(s *fleet.Stats) float64 { return float64(s.LeftOut) }},
	{"fleet_left_out_total", "Times that a cache stopped getting requests because it did not answer.", func(s *fleet.Stats) float64 { return float64(s.TimesLeftOut) }},
	{"fleet_pull_errors_total", "Pulls from a host that failed. The block is then pulled from another host.", func(s *fleet.Stats) float64 { return float64(s.PullErrors) }},
	{"fleet_pulls_refused_total", "Pulls refused because too many were running.", func(s *fleet.Stats) float64 { return float64(s.PullsRefused) }},
	{"fleet_unknown_namespaces_total", "Pulls given up because no client of this host has used the namespace lately.", func(s *fleet.Stats) float64 { return float64(s.UnknownNamespaces) }},
	{"fleet_located_total", "Requests to other caches to locate blocks.", func(s *fleet.Stats) float64 { return float64(s.Located) }},
	{"fleet_locate_errors_total", "Requests to other caches to locate blocks that got no answer.", func(s *fleet.Stats) float64 { return float64(s.LocateErrors) }},
	{"fleet_resyncs_total", "Times that this cache told another cache about all its blocks anew.", func(s *fleet.Stats) float64 { return float64(s.Resyncs) }},
	{"fleet_replicated_total", "Hot blocks copied to another host.", func(s *fleet.Stats) float64 { return float64(s.Replicated) }},
	{"fleet_replicas_dropped_total", "Hot blocks that were not copied to another host, because of an error or because too many waited.", func(s *fleet.Stats) float64 { return float64(s.ReplicasDropped) }},
	{"fleet_differed_total", "Keys set here for which another host had a value with another checksum; that host dropped its value. Keys name content: engines that share keys should share weights, serialisation and chunk size.", func(s *fleet.Stats) float64 { return float64(s.Differed) }},
	{"fleet_notices", "Keys whose write, deletion or new expiry here is still to be told to other hosts.", func(s *fleet.Stats) float64 { return float64(s.Notices) }},
	{"fleet_notices_lost_total", "Keys whose write, deletion or new expiry here was not told to some host, because it did not answer or more than 65,536 keys waited.", func(s *fleet.Stats) float64 { return float64(s.NoticesLost) }},
}

// pullDefs are the metrics of pulls that ended in a miss.
var pullDefs = []metric.Def{
	{Name: "cgn_kvcached_fleet_pull_misses_total", Kind: metric.Counter, Labels: []string{"reason"}, Help: "Pulls that ended in a miss: no host that answers has the block (nowhere), the hosts that have it failed (failed), or they were busy for fleet.pull_timeout (busy)."},
}

func (in *instruments) defineFleet() {
	export(in, fleetRows, snapshotOf(in.fleet, (*fleet.View).Stats))
	in.set.Read(pullDefs, func(emit func(def int, value float64, labels ...string)) {
		if in.fleet == nil {
			return
		}
		s := in.fleet.Stats()
		emit(0, float64(s.PullMisses), "nowhere")
		emit(0, float64(s.PullsFailed), "failed")
		emit(0, float64(s.PullsBusy), "busy")
	})
}

// poolDefs are the metrics of the connections to other caches.
var poolDefs = []metric.Def{
	{Name: "cgn_kvcached_pool_dials_total", Kind: metric.Counter, Labels: []string{"lane"}, Help: "Connections made to other caches."},
	{Name: "cgn_kvcached_pool_dial_errors_total", Kind: metric.Counter, Labels: []string{"lane"}, Help: "Connections to other caches that failed to open."},
	{Name: "cgn_kvcached_pool_sent_bytes_total", Kind: metric.Counter, Labels: []string{"lane"}, Help: "Payload sent to other caches."},
	{Name: "cgn_kvcached_pool_received_bytes_total", Kind: metric.Counter, Labels: []string{"lane"}, Help: "Payload pulled from other caches."},
	{Name: "cgn_kvcached_pool_lane_changes_total", Kind: metric.Counter, Labels: []string{"lane"}, Help: "Times that the connection to another cache changed to this lane, because the other lane was slower or timed out."},
	{Name: "cgn_kvcached_pool_peers", Help: "Other caches to which this cache has connections."},
}

func (in *instruments) definePool() {
	in.set.Read(poolDefs, func(emit func(def int, value float64, labels ...string)) {
		if in.pool == nil {
			return
		}
		s := in.pool.Stats()
		for lane, l := range map[transport.Lane]transport.LaneStats{transport.QUIC: s.QUIC, transport.TLS: s.TLS} {
			for def, n := range []uint64{l.Dials, l.DialErrors, l.Sent, l.Received, l.Chosen} {
				emit(def, float64(n), string(lane))
			}
		}
		emit(5, float64(s.Peers))
	})
}
