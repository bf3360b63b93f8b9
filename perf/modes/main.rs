//! Reads situations (situation_test.go describes them) as JSON lines and prints, for each, the
//! costs that the crate dynamo-kv-router logs and the worker that it picks.
//!
//! The crate does all the work: it reads the settings, hashes the prompt, keeps the books of active
//! requests, weighs the tiers, and selects the worker.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fmt::{Debug, Write as _};
use std::io::{BufRead, BufWriter, Write};

use dynamo_kv_router::indexer::{LowerTierMatchDetails, TieredMatchDetails};
use dynamo_kv_router::protocols::*;
use dynamo_kv_router::scheduling::{OverlapAnalysis, ScheduleMode};
use dynamo_kv_router::test_utils::SimpleWorkerConfig;
use dynamo_kv_router::{
    ActiveSequencesMultiWorker, DefaultWorkerSelector, KvRouterConfig, NoopSequencePublisher,
    RouterConfigOverride, SchedulingRequest, SequenceRequest, SharedCacheHits, WorkerSelectionInput,
    WorkerSelector,
};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use tracing::field::{Field, Visit};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Situation {
    leg: Leg,
    block_size: u32,
    tokens: u32,
    config: KvRouterConfig,
    r#override: Option<RouterConfigOverride>,
    #[serde(default)]
    shared: Vec<(u32, u32)>,
    #[serde(default)]
    preferred_taints: HashMap<String, f32>,
    workers: Vec<Worker>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum Leg {
    Prefill,
    Decode,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Worker {
    #[serde(default)]
    device: u32,
    #[serde(default)]
    host: u32,
    #[serde(default)]
    disk: u32,
    load: Option<Load>,
    #[serde(default)]
    taints: HashSet<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Load {
    prefill_tokens: usize,
    active_blocks: f64,
    shared_active: usize,
    requests: usize,
}

#[derive(Serialize, Default)]
struct Answer {
    /// Cost of each worker without its taint factor, rounded to three decimals as in the log.
    costs: Vec<f64>,
    /// Taint factor of each worker; empty if the request prefers nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    factors: Vec<f64>,
    pick: usize,
    /// Cost of the picked worker, not rounded, with its taint factor.
    cost: f64,
}

fn rank(worker: usize) -> WorkerWithDpRank {
    WorkerWithDpRank::new(worker as u64, 0)
}

impl Situation {
    fn prompt(&self) -> Vec<u32> {
        (0..self.tokens).collect()
    }

    fn constraints(&self) -> RoutingConstraints {
        RoutingConstraints { preferred_taints: self.preferred_taints.clone(), ..Default::default() }
    }

    /// The crate counts a tier's blocks beyond those of the faster tiers.
    fn matches(&self) -> TieredMatchDetails {
        let mut found = TieredMatchDetails::default();
        let (mut host, mut disk) = (LowerTierMatchDetails::default(), LowerTierMatchDetails::default());
        for (i, w) in self.workers.iter().enumerate() {
            if w.device > 0 {
                found.device.overlap_scores.scores.insert(rank(i), w.device);
            }
            if w.host > w.device {
                host.hits.insert(rank(i), (w.host - w.device) as usize);
            }
            let above = w.host.max(w.device);
            if w.disk > above {
                disk.hits.insert(rank(i), (w.disk - above) as usize);
            }
        }
        found.lower_tier.insert(StorageTier::HostPinned, host);
        found.lower_tier.insert(StorageTier::Disk, disk);
        found
    }

    /// Returns the books with each worker's active requests, and without the workers whose load is
    /// unknown. A worker's first request has all its blocks and all its prefill.
    fn books(&self) -> ActiveSequencesMultiWorker<NoopSequencePublisher> {
        let known = |(i, w): (usize, &Worker)| w.load.as_ref().map(|_| (i as u64, (0, 1)));
        let books = ActiveSequencesMultiWorker::new_without_expiry(
            NoopSequencePublisher,
            self.block_size as usize,
            self.workers.iter().enumerate().filter_map(known).collect(),
            false,
            0,
            "modes",
        );
        let hashes = compute_block_hash_for_seq(&self.prompt(), self.block_size, BlockHashOptions::default());
        let prompt = compute_seq_hash_for_block(&hashes);
        for (i, w) in self.workers.iter().enumerate() {
            let Some(load) = &w.load else { continue };
            for n in 0..load.requests {
                let request_id = format!("{i}/{n}");
                let mut request = SequenceRequest {
                    request_id: request_id.clone(),
                    token_sequence: None,
                    track_prefill_tokens: true,
                    expected_output_tokens: None,
                    prefill_load_hint: None,
                    worker: rank(i),
                    lora_name: None,
                };
                let fractional = n == 0 && load.active_blocks.fract() != 0.0;
                let mut blocks = load.active_blocks.floor() as usize;
                if n == 0 {
                    blocks = blocks.max(load.shared_active);
                    request.token_sequence = self
                        .config
                        .random_seq_hashes_for_tracking(blocks - load.shared_active)
                        .map(|own| [&prompt[..load.shared_active], &own].concat());
                    request.prefill_load_hint = Some(PrefillLoadHint {
                        initial_effective_prefill_tokens: load.prefill_tokens,
                        expected_prefill_duration: None,
                    });
                }
                let tracked = request.token_sequence.is_some();
                books.add_request(request, Instant::now()).expect("the request was refused");
                if fractional && tracked {
                    // The request's progress weighs its prompt and one block of output.
                    let fraction = load.active_blocks / (blocks + 1) as f64;
                    books.add_output_block(&request_id, Some(fraction)).expect("the block was refused");
                }
            }
        }
        books
    }

    fn request(&self) -> SchedulingRequest {
        let token_seq = self.config.compute_seq_hashes_for_tracking(
            &self.prompt(),
            self.block_size,
            self.r#override.as_ref(),
            BlockHashOptions::default(),
            None,
        );
        let shared = self.shared.iter().map(|&(from, to)| from..to).collect();
        SchedulingRequest {
            mode: ScheduleMode::QueryOnly { request_id: None },
            worker_loads: self.books().project_worker_loads(token_seq.as_deref(), Instant::now()),
            token_seq,
            isl_tokens: self.tokens as usize,
            lora_name: None,
            expected_output_tokens: None,
            affinity_target: None,
            pinned_worker: None,
            allowed_worker_ids: None,
            routing_constraints: self.constraints(),
            track_prefill_tokens: self.config.track_prefill_tokens(self.r#override.as_ref()),
            router_config_override: self.r#override.clone(),
            priority_jump: 0.0,
            strict_priority: 0,
            policy_class: None,
            session_context: None,
            overlap: OverlapAnalysis::new(&self.config, self.block_size, &self.matches()).signals(),
            kv_transfer_candidates: None,
            retain_kv_transfer_chain: false,
            shared_cache_hits: Some(SharedCacheHits::from_ranges(shared)),
            resp_tx: None,
        }
    }

    fn answer(&self) -> Answer {
        let worker = |w: &Worker| SimpleWorkerConfig { taints: w.taints.clone(), ..Default::default() };
        let workers: HashMap<_, _> =
            self.workers.iter().enumerate().map(|(i, w)| (i as u64, worker(w))).collect();
        let label = match self.leg {
            Leg::Prefill => "prefill",
            Leg::Decode => "decode",
        };
        let request = self.request();
        let input =
            WorkerSelectionInput::configured(&workers, &request, request.eligibility(), self.block_size);
        LOGGED.take();
        let selector = DefaultWorkerSelector::new(Some(self.config.clone()), label);
        let picked = selector.select_worker(input).expect("no worker was selected").worker.worker_id;

        let constraints = self.constraints();
        let factor = |w: &Worker| constraints.preferred_taint_multiplier(&w.taints);
        let mut answer = Answer {
            costs: vec![f64::NAN; self.workers.len()],
            factors: self.workers.iter().filter_map(factor).collect(),
            pick: picked as usize,
            cost: f64::NAN,
        };
        for entry in LOGGED.take() {
            if let Some((worker, cost)) = entry.formula() {
                answer.costs[worker] = cost;
            } else if entry.message == "Selected worker" && entry.worker_id == Some(picked) {
                answer.cost = entry.logit.expect("the entry has no logit");
            }
        }
        assert!(
            answer.cost.is_finite() && answer.costs.iter().all(|c| c.is_finite()),
            "a log line is missing"
        );
        answer
    }
}

thread_local! {
    static LOGGED: RefCell<Vec<Entry>> = RefCell::default();
}

/// What the crate logs with one event.
#[derive(Default)]
struct Entry {
    message: String,
    worker_id: Option<u64>,
    logit: Option<f64>,
}

impl Entry {
    /// Returns worker and cost of a line as "Formula for worker_id=1 ... blocks: 12.345 = ...".
    fn formula(&self) -> Option<(usize, f64)> {
        let line = self.message.strip_prefix("Formula for worker_id=")?;
        let (left, _) = line.split_once(" = ")?;
        let (worker, _) = left.split_once(' ')?;
        let (_, cost) = left.rsplit_once(": ")?;
        Some((worker.parse().ok()?, cost.parse().ok()?))
    }
}

impl Visit for Entry {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            write!(self.message, "{value:?}").unwrap();
        }
    }
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "worker_id" {
            self.worker_id = Some(value);
        }
    }
    fn record_f64(&mut self, field: &Field, value: f64) {
        if field.name() == "logit" {
            self.logit = Some(value);
        }
    }
}

/// Keeps what the crate's selector logs on this thread.
struct Log;

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("dynamo_kv_router::scheduling::selector")
    }
    fn event(&self, event: &tracing::Event<'_>) {
        let mut entry = Entry::default();
        event.record(&mut entry);
        LOGGED.with_borrow_mut(|logged| logged.push(entry));
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing::subscriber::set_global_default(Log)?;
    let mut out = BufWriter::new(std::io::stdout().lock());
    for (n, line) in std::io::stdin().lock().lines().enumerate() {
        let situation: Situation =
            serde_json::from_str(&line?).map_err(|e| format!("situation {}: {e}", n + 1))?;
        serde_json::to_writer(&mut out, &situation.answer())?;
        out.write_all(b"\n")?;
    }
    Ok(out.flush()?)
}
