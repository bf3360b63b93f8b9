package ssd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"

	"github.com/cognitora/dataplane/kv/block"
)

// rows is the Pebble database of records' rows, tombstones, namespaces and the checkpoint.
type rows struct {
	db     *pebble.DB
	broken atomic.Bool   // Pebble cannot write any more, so the tier only reads from now on
	died   chan struct{} // closed when broken is set
	rotten atomic.Bool   // Pebble's background work has found files damaged
	sound  atomic.Bool   // the rows are in use; until then whoever opens them reports what is wrong
}

// RowsDir is the folder of the index in a tier's directory.
const RowsDir = "rows"

// rowMemory is the size in bytes of Pebble's write buffer, and of its cache.
const rowMemory = 4 << 20

func openRows(o *Options) (*rows, error) {
	if err := makeRowRoom(o); err != nil {
		return nil, fmt.Errorf("ssd: opening the rows in %s: %w", filepath.Join(o.Dir, RowsDir), err)
	}
	r := &rows{died: make(chan struct{})}
	cache := pebble.NewCache(2 * rowMemory)
	defer cache.Unref()
	opts := &pebble.Options{
		FS: o.rowFS, Cache: cache, FormatMajorVersion: pebble.FormatNewest, MemTableSize: rowMemory,
		MemTableStopWritesThreshold: 3,
		MaxManifestFileSize:         1 << 20, MaxOpenFiles: 256, L0CompactionThreshold: 4, BytesPerSync: 1 << 20,
		Logger: &rowLog{o.Logger, r}, CompactionConcurrencyRange: func() (int, int) { return 1, 1 },
	}
	for i := range opts.Levels {
		opts.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	var failures atomic.Uint64
	opts.EventListener = &pebble.EventListener{BackgroundError: func(err error) {
		if damaged(err) {
			r.rotten.Store(true)
		}
		if r.sound.Load() && failures.Add(1)%1000 == 1 { // Pebble tries again at once
			o.Logger.Error("ssd: index rows: background work failed; every 1000th failure is logged", "err",
				firstLine(err.Error()))
		}
	}}
	db, err := pebble.Open(filepath.Join(o.Dir, RowsDir), opts)
	if err != nil {
		return nil, fmt.Errorf("ssd: opening the rows in %s: %w", filepath.Join(o.Dir, RowsDir), err)
	}
	r.db = db
	return r, nil
}

// use begins to log Pebble's messages. Rows that turn out to be damaged are dropped before.
func (r *rows) use(log *slog.Logger) {
	if r.sound.Store(true); r.broken.Load() {
		readsOnly(log, "files of the rows are damaged")
	}
}

func readsOnly(log *slog.Logger, why string) {
	log.Error("ssd: index rows cannot be written any more; the tier only reads", "said", why)
}

// firstLine cuts off what Pebble's errors have below their first line: wrapped errors and stacks.
func firstLine(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	return text
}

// plainError is an error of Pebble whose text is one line.
type plainError struct{ error }

func (e plainError) Error() string { return firstLine(e.error.Error()) }
func (e plainError) Unwrap() error { return e.error }

// rowLog passes on Pebble's messages. Fatal means that the database cannot be written any more; the
// process goes on.
type rowLog struct {
	log  *slog.Logger
	rows *rows
}

func (l *rowLog) Infof(format string, args ...any) {}
func (l *rowLog) Errorf(format string, args ...any) {
	if l.rows.sound.Load() {
		l.log.Warn("ssd: index rows", "said", firstLine(fmt.Sprintf(format, args...)))
	}
}
func (l *rowLog) Fatalf(format string, args ...any) {
	if l.rows.broken.Swap(true) {
		return
	}
	close(l.rows.died)
	if l.rows.sound.Load() {
		readsOnly(l.log, firstLine(fmt.Sprintf(format, args...)))
	}
}

// get returns the row of a.
func (r *rows) get(a *block.Addr) (row, bool, error) {
	var key [rowKeySize]byte
	b, closer, err := r.db.Get(recordKey(key[:0], a))
	if errors.Is(err, pebble.ErrNotFound) {
		return row{}, false, nil
	}
	if err != nil {
		return row{}, false, err
	}
	defer func() { _ = closer.Close() }()
	var found row
	if err := found.decode(append([]byte(nil), b...)); err != nil {
		return row{}, false, err
	}
	return found, true, nil
}

// change is a set of changes that take effect together and survive together.
type change struct {
	rows  *rows
	batch *pebble.Batch
}

func (r *rows) change() change { return change{r, r.db.NewBatch()} }

func (c change) put(a *block.Addr, r *row) {
	_ = c.batch.Set(recordKey(nil, a), r.encode(), nil)
}

func (c change) drop(a *block.Addr) { _ = c.batch.Delete(recordKey(nil, a), nil) }

// bury drops the row of a and writes a tombstone: all records up to seq are dead. end is the end of
// the log.
func (c change) bury(a *block.Addr, seq uint64, end place) {
	c.drop(a)
	_ = c.batch.Set(tombstoneKey(end, a), binary.LittleEndian.AppendUint64(nil, seq), nil)
}

// check sets the checkpoint and drops the tombstones before it.
func (c change) check(p *checkpoint) {
	_ = c.batch.Set([]byte{rowCheckpoint}, p.encode(), nil)
	end := binary.BigEndian.AppendUint32([]byte{rowTombstone}, p.place.segment)
	_ = c.batch.DeleteRange([]byte{rowTombstone}, binary.BigEndian.AppendUint32(end, p.page), nil)
}

func (c change) name(id block.ModelID, text string) {
	_ = c.batch.Set(append([]byte{rowNamespace}, id[:]...), []byte(text), nil)
}

func (c change) unname(id block.ModelID) {
	_ = c.batch.Delete(append([]byte{rowNamespace}, id[:]...), nil)
}

// discard drops the changes.
func (c change) discard() { _ = c.batch.Close() }

// commit applies the changes. durable: it waits until they survive a crash.
func (c change) commit(durable bool) error {
	defer func() { _ = c.batch.Close() }()
	if c.rows.broken.Load() {
		return ErrReadOnly
	}
	how := pebble.NoSync
	if durable {
		how = pebble.Sync
	}
	if err := c.batch.Commit(how); err != nil {
		return err
	}
	if c.rows.broken.Load() {
		return ErrReadOnly
	}
	return nil
}

// sync makes all earlier changes durable. Pebble ignores an empty batch, so this batch has a record
// that goes only to its log.
func (r *rows) sync() error {
	c := r.change()
	_ = c.batch.LogData(nil, nil)
	return c.commit(true)
}

// each calls visit with the rows whose keys are in [lower, upper), in order, until visit returns
// false.
func (r *rows) each(lower, upper []byte, visit func(key, value []byte) bool) error {
	it, err := r.db.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return err
	}
	for ok := it.First(); ok; ok = it.Next() {
		value, err := it.ValueAndErr()
		if err != nil || !visit(it.Key(), value) {
			break
		}
	}
	return errors.Join(it.Error(), it.Close())
}

// usage returns the bytes of all files of the rows.
func (r *rows) usage() int64 { return int64(r.db.Metrics().DiskSpaceUsage()) }

// written returns the bytes that Pebble has written since it was opened.
func (r *rows) written() uint64 {
	m := r.db.Metrics()
	total := m.Total()
	return m.WAL.BytesWritten + total.TableBytesFlushed + total.TableBytesCompacted
}

func (r *rows) close() error { return r.db.Close() }
