package kvcached

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cognitora/dataplane/internal/rights"
	"github.com/cognitora/dataplane/kv/block"
	"github.com/cognitora/dataplane/kv/residency"
	"github.com/cognitora/dataplane/kvcached/chunks"
	"github.com/cognitora/dataplane/kvcached/purge"
	"github.com/cognitora/dataplane/kvcached/ram"
	"github.com/cognitora/dataplane/kvcached/ssd"
	"github.com/cognitora/dataplane/kvcached/store"
)

// ssdStatus is the SSD tier in the answer of /readyz.
type ssdStatus struct {
	Bytes   int64   `json:"bytes"`                 // configured size of the tier
	Limit   int64   `json:"limit_bytes,omitempty"` // bytes for segments on a filesystem without room for Bytes; 0: there is room
	Used    int64   `json:"used_bytes"`
	Blocks  int64   `json:"blocks"`
	Loading bool    `json:"loading"` // the index is loading; the tier serves meanwhile
	Loaded  float64 `json:"loaded_ratio"`
}

func (d *Daemon) openStore() (err error) {
	d.index = residency.New(residency.Options{})
	d.chunks = chunks.New(chunks.Options{Index: d.index})
	o := store.Options{RAM: int64(d.config.Daemon.RAM), Huge: true, Quota: d.config.ramQuota, Changed: d.changed,
		Deleting: d.deleting, Written: d.written, Logger: d.log, Hidden: d.config.inFleet()}
	if o.SSD, err = d.config.disk(); err != nil {
		return err
	}
	if o.SSD == nil {
		d.skipSSD()
	} else {
		o.SSD.Logger = d.log
		d.log.Info("opening the SSD tier", "directory", o.SSD.Dir, "bytes", d.config.Daemon.SSD.String(), "sealed",
			o.SSD.Key != nil)
	}
	if d.store, err = store.Open(context.Background(), o); err != nil {
		return storeError(d.config, err)
	}
	d.ledger, err = purge.Open(context.Background(), purge.Options{Dir: d.config.Daemon.Data, Store: d.store,
		Partial: !d.config.onDisk()})
	if err != nil {
		return fmt.Errorf("kvcached.data: %w", err)
	}
	return nil
}

// skipSSD makes the next start with an SSD tier drop the blocks that a daemon without one finds in
// the data directory: this run cannot delete or replace them.
func (d *Daemon) skipSSD() {
	if d.config.Daemon.Data == "" {
		return
	}
	dir := filepath.Join(d.config.Daemon.Data, ssdDir)
	if _, err := ssd.Skip(dir); err != nil {
		d.log.Error("the SSD tier of an earlier run cannot be marked; remove its folder before a start with SSD, or old "+
			"blocks come back", "folder", dir, "err", err)
	}
}

// storeError adds to an error the tier that cannot be opened, and the fix.
func storeError(c *Config, err error) error {
	var key *ssd.KeyError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ram.ErrArena):
		return fmt.Errorf("kvcached.ram: %w; give less with --ram", err)
	case errors.As(err, &key) && !key.Sealed:
		return fmt.Errorf("ssd.key_file: %w; give none, or %s", err, otherData)
	case errors.As(err, &key):
		return fmt.Errorf("ssd.key_file: %w; give the key that the directory was made with, or %s", err, otherData)
	case errors.Is(err, ssd.ErrMark):
		return fmt.Errorf("kvcached.data: %w; put that file back from a copy, or give %s", err, otherData)
	case errors.Is(err, ssd.ErrFormat):
		return fmt.Errorf("kvcached.data: %w, or give %s", err, otherData)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("kvcached.data: %w; give the daemon's user what is in that directory, or give another "+
			"--data DIR", err)
	case errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("kvcached.data: %w; remove that file, or give another --data DIR", err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("kvcached.data: the disk of %s is full: %w; make room there, name another directory with "+
			"--data DIR, or go without SSD with --ssd 0", c.Daemon.Data, err)
	}
	return fmt.Errorf("kvcached.ssd: %w", err)
}

// reclaimRate bounds the bytes per second that the SSD tier copies to make room. At most a fifth of
// a segment is copied, so reclaiming keeps up with 2 GiB/s of new blocks.
const reclaimRate = 512 << 20

// ssdDir is the SSD tier's folder in the data directory.
const ssdDir = "ssd"

// disk returns the options of the SSD tier; nil: there is none.
func (c *Config) disk() (*ssd.Options, error) {
	if !c.onDisk() {
		return nil, nil
	}
	key, err := c.sealingKey()
	return &ssd.Options{
		Dir: filepath.Join(c.Daemon.Data, ssdDir), Cap: int64(c.Daemon.SSD), ReclaimRate: reclaimRate,
		DailyWrites: int64(c.SSD.DailyWrites), Key: key, Quota: c.ssdQuota, Volatile: c.SSD.Index == "memory",
	}, err
}

// changed reports a change of a tier to the index and to the fleet. The store calls changed under
// its lock.
func (d *Daemon) changed(c store.Change) {
	tier := residency.Host
	if c.Tier == store.SSD {
		tier = residency.Disk
	}
	if !c.Present || block.OfKeys(c.Namespace) {
		d.chunks.Apply(&chunks.Change{Addr: c.Addr, Namespace: c.Namespace, Key: c.Key, Attr: c.Attr, Tier: tier,
			Present: c.Present, Length: c.Length})
	}
	d.index.Apply(&residency.Change{Addr: c.Addr, Namespace: c.Namespace, Parent: c.Parent, Tier: tier,
		Names: block.ParseNames(c.Attr), Present: c.Present, Length: c.Length})
	if v := d.view.Load(); v != nil {
		v.Changed(c)
	}
}

// notesEvery is the time between two log lines about notes that cannot be kept.
const notesEvery = time.Minute

// annotate keeps what is told of a chunk with one of its parts.
func (d *Daemon) annotate(ctx context.Context, a block.Addr, more func(attr []byte) []byte) error {
	err := d.store.Annotate(ctx, a, more)
	if err == nil || errors.Is(err, store.ErrMiss) {
		return nil
	}
	if ctx.Err() == nil {
		d.notes.Warn(d.log, "", "which blocks a stored chunk stands for cannot be kept with it, so it does not count "+
			"after a restart until it is told again", "error", err)
	}
	return err
}

// written reports a client's write to the fleet.
func (d *Daemon) written(it *store.Item) {
	if v := d.view.Load(); v != nil {
		v.Written(it)
	}
}

// deleting reports a deletion on this host to the fleet, before the deletion.
func (d *Daemon) deleting(a block.Addr) {
	if v := d.view.Load(); v != nil {
		v.Deleting(a)
	}
}

// closeStore closes the tiers and unlocks the data directory. Call closeStore once. If ctx ends
// early, blocks that are not durable are given up. After another stuckLimit, unfinished work of the
// disk is given up as well.
func (d *Daemon) closeStore(ctx context.Context) error {
	return within(ctx, stuckLimit, errStuck, func() (err error) {
		if d.store != nil {
			err = d.store.CloseWithin(ctx)
		}
		if d.recorder != nil {
			d.recorder.close(d.log)
		}
		if d.lock != nil {
			_ = d.lock.Close()
		}
		return err
	})
}

// errStuck says that the drain went on without waiting for the disk.
var errStuck = errors.New("kvcached: the disk does not answer; what was durable is there at the next start, once " +
	"this process has ended")

// within waits for f. f should return soon after ctx has ended. within returns stuck if f has not
// returned patience after the end of ctx. f keeps its resources, such as the lock of the data
// directory, until the process ends.
func within(ctx context.Context, patience time.Duration, stuck error, f func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- f() }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(patience):
		return stuck
	}
}

// ramQuota returns the account of a namespace's bytes in RAM, and its limit.
func (c *Config) ramQuota(namespace string) (account string, bytes int64) {
	account, q := c.quota(namespace)
	return account, int64(q.RAM)
}

// ssdQuota returns the account of a namespace's bytes on SSD, and its limit.
func (c *Config) ssdQuota(namespace string) (account string, bytes int64) {
	account, q := c.quota(namespace)
	return account, int64(q.SSD)
}

// quota returns the first [[quota]] that matches a namespace; the zero value: there is none.
func (c *Config) quota(namespace string) (account string, q QuotaConfig) {
	n, err := block.ParseNamespace(namespace)
	if err != nil {
		return "", q
	}
	for i, q := range c.Quotas {
		if (q.Tenant == "" || q.Tenant == n.Tenant) && (q.Model == "" || q.Model == n.Model) &&
			(q.Namespace == "" || q.Namespace == namespace) {
			return fmt.Sprintf("quota[%d]", i), q
		}
	}
	return "", QuotaConfig{}
}

// readSecret reads the file of a field.
func readSecret(field, name string) ([]byte, error) {
	text, err := rights.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; name a file that the daemon's user can read", field, err)
	}
	return text, nil
}

// secret reads a file that contains a password or an S3 secret.
func secret(field, name string) (string, error) {
	text, err := readSecret(field, name)
	if s := strings.TrimRight(string(text), "\r\n"); s != "" || err != nil {
		return s, err
	}
	return "", fmt.Errorf("%s: %s is empty; write the secret into it", field, name)
}

// sealingKey reads the key that encrypts payloads on SSD; nil: payloads are not encrypted.
func (c *Config) sealingKey() ([]byte, error) {
	if c.SSD.KeyFile == "" {
		return nil, nil
	}
	text, err := readSecret("ssd.key_file", c.SSD.KeyFile)
	if err != nil {
		return nil, err
	}
	if len(text) == 32 {
		return text, nil
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(key) != 32 {
		return nil, fmt.Errorf("ssd.key_file: %s has neither 32 bytes nor 64 hexadecimal digits; openssl rand -hex "+
			"32 makes one", c.SSD.KeyFile)
	}
	return key, nil
}

func (d *Daemon) status() status {
	s := status{
		Reason: d.unready(), Cache: d.config.cacheID(), Draining: d.draining.Load(), Etcd: d.member.state(),
		Serves: d.Endpoints(),
	}
	s.Ready = s.Reason == ""
	if v := d.view.Load(); v != nil {
		s.Members = v.Stats().Members
	}
	st := d.store.Stats()
	if st.HasSSD {
		s.SSD = &ssdStatus{
			Bytes: int64(d.config.Daemon.SSD), Limit: st.SSD.SegmentLimit,
			Used: st.SSD.SegmentBytes + st.SSD.RowFileBytes, Blocks: st.SSD.Records,
			Loading: st.Loading.Fraction < 1, Loaded: st.Loading.Fraction,
		}
	}
	s.RAM = tierStatus{Bytes: st.RAM.Size, Used: st.RAM.Size - st.RAM.Free, Blocks: int64(st.RAM.Blocks)}
	return s
}
