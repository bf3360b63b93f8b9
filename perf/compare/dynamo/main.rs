//! Feeds a replay, written by workload.go, to the indexes of the crate dynamo-kv-router and
//! prints what BenchmarkReplay and BenchmarkLookup of router/residency print.
//!
//!     dynamo-index FILE [pool THREADS | tree] [lookup]

use std::time::{Duration, Instant};

use dynamo_kv_router::indexer::ThreadPoolIndexer;
use dynamo_kv_router::protocols::*;
use dynamo_kv_router::{ConcurrentRadixTreeCompressed, RadixTree};

struct Op {
    node: u64,
    held: usize,
    prompt: Vec<u64>,
    removed: Vec<u64>,
}

fn read(path: &str) -> Vec<Op> {
    let bytes = std::fs::read(path).expect("the replay cannot be read");
    let mut words = bytes.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().unwrap()));
    let mut next = || words.next().expect("the replay ends early");
    let _nodes = next();
    let ops = next();
    (0..ops)
        .map(|_| {
            let (node, held, blocks, removed) = (next(), next() as usize, next(), next());
            let prompt = (0..blocks).map(|_| next()).collect();
            Op { node, held, prompt, removed: (0..removed).map(|_| next()).collect() }
        })
        .collect()
}

fn event(node: u64, data: KvCacheEventData) -> RouterEvent {
    RouterEvent::new(node, KvCacheEvent { event_id: 0, data, dp_rank: 0 })
}

fn stored(node: u64, prompt: &[u64], from: usize) -> RouterEvent {
    let block = |&k: &u64| KvCacheStoredBlockData {
        block_hash: ExternalSequenceBlockHash(k),
        tokens_hash: LocalBlockHash(k),
        mm_extra_info: None,
    };
    event(
        node,
        KvCacheEventData::Stored(KvCacheStoreData {
            parent_hash: (from > 0).then(|| ExternalSequenceBlockHash(prompt[from - 1])),
            start_position: None,
            blocks: prompt[from..].iter().map(block).collect(),
        }),
    )
}

fn removed(op: &Op) -> RouterEvent {
    let block_hashes = op.removed.iter().map(|&k| ExternalSequenceBlockHash(k)).collect();
    event(op.node, KvCacheEventData::Removed(KvCacheRemoveData { block_hashes }))
}

fn events(op: &Op) -> Vec<RouterEvent> {
    let mut all = Vec::new();
    if !op.removed.is_empty() {
        all.push(removed(op));
    }
    if op.held < op.prompt.len() {
        all.push(stored(op.node, &op.prompt, op.held));
    }
    all
}

fn sequence(prompt: &[u64]) -> Vec<LocalBlockHash> {
    prompt.iter().map(|&k| LocalBlockHash(k)).collect()
}

/// What both indexes do.
trait Index {
    fn find(&self, sequence: Vec<LocalBlockHash>) -> OverlapScores;
    fn apply(&mut self, event: RouterEvent);
    fn wait(&mut self) {}
}

impl Index for RadixTree {
    fn find(&self, sequence: Vec<LocalBlockHash>) -> OverlapScores {
        self.find_matches(sequence, false)
    }
    fn apply(&mut self, event: RouterEvent) {
        self.apply_event(event).expect("the event was refused");
    }
}

struct Pool {
    indexer: ThreadPoolIndexer<ConcurrentRadixTreeCompressed>,
    runtime: tokio::runtime::Runtime,
}

impl Index for Pool {
    fn find(&self, sequence: Vec<LocalBlockHash>) -> OverlapScores {
        self.indexer.backend().find_matches_impl(&sequence, false)
    }
    fn apply(&mut self, event: RouterEvent) {
        self.indexer.enqueue_event(event).expect("the event was refused");
    }
    fn wait(&mut self) {
        self.runtime.block_on(self.indexer.flush_and_wait()).expect("the indexer has ended");
    }
}

fn hits(scores: &OverlapScores, node: u64) -> usize {
    scores.scores.get(&WorkerWithDpRank::new(node, 0)).copied().unwrap_or(0) as usize
}

fn cpu() -> Duration {
    let mut u: libc::rusage = unsafe { std::mem::zeroed() };
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &mut u) };
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    time(u.ru_utime) + time(u.ru_stime)
}

fn resident() -> f64 {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<f64>().unwrap() * 4096.0
}

/// Replays all requests. The lookups of a window see what was stored and removed before it; with a
/// window of one request that is everything.
fn replay(index: &mut dyn Index, ops: &[Op], window: usize) {
    // What a caller hands over is made outside of the time that is measured.
    let mut input: Vec<_> = ops.iter().map(|op| (sequence(&op.prompt), events(op))).collect();
    let before = resident();
    let begin = cpu();
    let mut found = 0;
    for (ops, input) in ops.chunks(window).zip(input.chunks_mut(window)) {
        for (op, (sequence, _)) in ops.iter().zip(input.iter_mut()) {
            found += hits(&index.find(std::mem::take(sequence)), op.node);
        }
        for (_, events) in input.iter_mut() {
            for e in std::mem::take(events) {
                index.apply(e);
            }
        }
        index.wait();
    }
    let spent = cpu() - begin;
    let blocks: usize = ops.iter().map(|o| 2 * o.prompt.len() - o.held + o.removed.len()).sum();
    let distinct: usize = ops.iter().map(|o| o.prompt.len() - o.held).sum();
    let expected: usize = ops.iter().map(|o| o.held).sum();
    println!(
        "replay: {:.1} M block operations per CPU second, {:.3} of {:.3} M hits, {:.2} M stored, {:.0} MB resident more",
        blocks as f64 / spent.as_secs_f64() / 1e6,
        found as f64 / 1e6,
        expected as f64 / 1e6,
        distinct as f64 / 1e6,
        (resident() - before) / 1e6,
    );
}

fn mix(v: u64) -> u64 {
    let v = v.wrapping_add(0x9e3779b97f4a7c15);
    let v = (v ^ v >> 30).wrapping_mul(0xbf58476d1ce4e5b9);
    let v = (v ^ v >> 27).wrapping_mul(0x94d049bb133111eb);
    v ^ v >> 31
}

/// Asks for prompts that one node holds, another half and a third a quarter.
fn lookup(index: &mut dyn Index, n: usize) {
    let chains: Vec<Vec<u64>> = (0..(1 << 20) / n)
        .map(|c| (0..n as u64).map(|i| mix((1 << 60) + ((((n << 10) + c) as u64) << 32) + i)).collect())
        .collect();
    for (i, chain) in chains.iter().enumerate() {
        for part in 0..3 {
            index.apply(stored((i as u64 + part) % 8, &chain[..n >> part], 0));
        }
        index.wait();
    }
    let mut took = Vec::new();
    for i in 0..20_000 {
        let sequence = sequence(&chains[i % chains.len()]);
        let begin = Instant::now();
        let scores = index.find(sequence);
        took.push(begin.elapsed());
        assert_eq!(hits(&scores, (i % chains.len() % 8) as u64), n);
    }
    took.sort();
    println!("lookup of {n} blocks: p50 {:?}, p99 {:?}", took[took.len() / 2], took[took.len() * 99 / 100]);
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let ops = read(&args[1]);
    let mut index: Box<dyn Index>;
    let mut window = 1;
    if args[2] == "tree" {
        println!("RadixTree, one thread");
        index = Box::new(RadixTree::new());
    } else {
        let threads: usize = args[3].parse().expect("THREADS is a number");
        println!("ConcurrentRadixTreeCompressed, {threads} event threads");
        let indexer = ThreadPoolIndexer::new(ConcurrentRadixTreeCompressed::new(), threads, 16);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        index = Box::new(Pool { indexer, runtime });
        window = 32;
    }
    replay(index.as_mut(), &ops, window);
    if args.last().unwrap() == "lookup" {
        lookup(index.as_mut(), 1 << 10);
        lookup(index.as_mut(), 8 << 10);
    }
    std::process::exit(0); // freeing the trees takes longer than filling them
}
