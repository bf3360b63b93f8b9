package kvcached

import (
	"github.com/cognitora/dataplane/internal/metric"
	"github.com/cognitora/dataplane/kvcached/fleet"
	"github.com/cognitora/dataplane/kvcached/transport"
)

var fleetRows = []row[fleet.Stats]{
	{"fleet_named", "1 once etcd has named all caches, this one among them.", func(s *fleet.Stats) float64 { return float64(s.Named) }},
	{"fleet_hidden", "1 while reads are misses because the fleet's purges are not read yet.", func(s *fleet.Stats) float64 { return float64(s.Hidden) }},
	{"fleet_purge_revision", "Number of the last purge that this cache has carried out. It is the same on all caches of a fleet.", func(s *fleet.Stats) float64 { return float64(s.PurgeRevision) }},
	{"fleet_purges", "Purges that this cache remembers; past 10,000 the older half becomes one of everything.", func(s *fleet.Stats) float64 { return float64(s.Purges) }},
	{"fleet_members", "Caches in the fleet, this one included.", func(s *fleet.Stats) float64 { return float64(s.Members) }},
	{"fleet_locations", "Blocks whose holders this cache remembers for the fleet.", func(s *fleet.Stats) float64 { return float64(s.Locations) }},
	{"fleet_locations_refused_total", "Blocks whose holders this cache had no room to remember.", func(s *fleet.Stats) float64 { return float64(s.LocationsRefused) }},
	{"fleet_pulled_total", "Blocks brought here from other hosts.", func(s *fleet.Stats) float64 { return float64(s.Pulled) }},
	{"fleet_pulled_bytes_total", "Payload of the blocks brought here from other hosts.", func(s *fleet.Stats) float64 { return float64(s.PulledBytes) }},
	{"fleet_left_out", "Caches that are not asked now because they do not answer.", func(s *fleet.Stats) float64 { return float64(s.LeftOut) }},
	{"fleet_left_out_total", "Times that a cache began not to be asked because it did not answer.", func(s *fleet.Stats) float64 { return float64(s.TimesLeftOut) }},
	{"fleet_pull_errors_total", "Pulls from a host that failed; another one is asked then.", func(s *fleet.Stats) float64 { return float64(s.PullErrors) }},
	{"fleet_pulls_refused_total", "Pulls that were too many at a time.", func(s *fleet.Stats) float64 { return float64(s.PullsRefused) }},
	{"fleet_unknown_namespaces_total", "Pulls given up because no client of this host has named the namespace lately.", func(s *fleet.Stats) float64 { return float64(s.UnknownNamespaces) }},
	{"fleet_located_total", "Questions to other caches who has blocks.", func(s *fleet.Stats) float64 { return float64(s.Located) }},
	{"fleet_locate_errors_total", "Questions to other caches who has blocks that got no answer.", func(s *fleet.Stats) float64 { return float64(s.LocateErrors) }},
	{"fleet_resyncs_total", "Times that another cache was told everything anew.", func(s *fleet.Stats) float64 { return float64(s.Resyncs) }},
	{"fleet_replicated_total", "Hot blocks handed to another host.", func(s *fleet.Stats) float64 { return float64(s.Replicated) }},
	{"fleet_replicas_dropped_total", "Hot blocks that were not handed to another host, because of an error or too many.", func(s *fleet.Stats) float64 { return float64(s.ReplicasDropped) }},
	{"fleet_differed_total", "Keys set here of which another host had a value with another checksum, and dropped it. Keys name content: engines that share keys should share weights, serialisation and chunk size.", func(s *fleet.Stats) float64 { return float64(s.Differed) }},
	{"fleet_notices", "Keys set, deleted or timed here that other hosts are still to be told of.", func(s *fleet.Stats) float64 { return float64(s.Notices) }},
	{"fleet_notices_lost_total", "Keys set, deleted or timed here that some host was not told of, because it did not answer or more than 65,536 waited.", func(s *fleet.Stats) float64 { return float64(s.NoticesLost) }},
}

// pullDefs are the metrics of pulls that ended in a miss.
var pullDefs = []metric.Def{
	{Name: "cgn_kvcached_fleet_pull_misses_total", Kind: metric.Counter, Labels: []string{"reason"}, Help: "Pulls that brought nothing: nowhere, no host that answers has the block; failed, those asked did not give it; busy, they had too much to do until fleet.pull_timeout had passed."},
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
	{Name: "cgn_kvcached_pool_dial_errors_total", Kind: metric.Counter, Labels: []string{"lane"}, Help: "Connections that could not be made."},
	{Name: "cgn_kvcached_pool_sent_bytes_total", Kind: metric.Counter, Labels: []string{"lane"}, Help: "Payload handed to other caches."},
	{Name: "cgn_kvcached_pool_received_bytes_total", Kind: metric.Counter, Labels: []string{"lane"}, Help: "Payload pulled from other caches."},
	{Name: "cgn_kvcached_pool_lane_changes_total", Kind: metric.Counter, Labels: []string{"lane"}, Help: "Times that another cache was spoken to over this lane from then on, because the other one was slower or ran out of time."},
	{Name: "cgn_kvcached_pool_peers", Help: "Other caches that there are connections to."},
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
