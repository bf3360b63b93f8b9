package cluster

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/cognitora/dataplane/internal/await"
)

// Record is the value that a daemon writes about itself under a lease: a *NodeHealth or a
// *CacheHealth.
type Record interface {
	Check() error
	claim() claim
	mark(instance string, stamp int64)
}

// claim identifies the daemon that claims a key.
type claim struct{ key, id, address string }

// Registration keeps one record registered.
type Registration struct {
	// Health returns the daemon's present state. Health is called at every heartbeat. The daemon's
	// id and address must not change. Stamp and Instance are filled in.
	Health func() Record
	// Heartbeat is the time between two writes; 0: 5 s. The lease lasts three heartbeats, in whole
	// seconds.
	Heartbeat time.Duration
	// Instance distinguishes this daemon from another one with the same id. A daemon that stores it
	// and uses it again after a restart takes its key back immediately. If Instance is empty, the
	// daemon takes a random one, and a restarted daemon waits for the old lease to end.
	Instance string
	// Claimed is called with the revision each time that the key has become this daemon's. Claimed
	// may be nil.
	Claimed func(rev int64)
	// Reclaimed is called each time that this daemon has replaced a value without a daemon under
	// its key, which a person or another program has written. Reclaimed may be nil. The replacement
	// is also logged.
	Reclaimed func()
	// Tried is called after each attempt to write a heartbeat, with its error. Tried may be nil.
	Tried  func(err error)
	Logger *slog.Logger // names the node if there are several; nil: slog.Default
}

// DuplicateError means that another daemon has the id.
type DuplicateError struct {
	ID            string // id of the node or cache
	Address       string // this daemon's address
	HolderAddress string // the other daemon's address
}

func (e *DuplicateError) Error() string {
	return fmt.Sprintf("id %q is held by another daemon at %s, and this one serves %s: give one of the two another id",
		e.ID, e.HolderAddress, e.Address)
}

// Registrar writes a daemon's heartbeats. NewRegistrar creates a Registrar, and Run may be called
// once.
type Registrar struct {
	client *Client
	reg    Registration
	wake   chan struct{}
	lease  clientv3.LeaseID
	rev    int64 // revision of our last write; 0: not registered
	failed bool  // the last attempt failed, and the failure is logged
}

// NewRegistrar prepares a registration. Run registers.
func NewRegistrar(c *Client, reg Registration) *Registrar {
	reg.Heartbeat, reg.Instance = cmp.Or(max(reg.Heartbeat, 0), DefaultHeartbeat), cmp.Or(reg.Instance, rand.Text())
	reg.Logger = cmp.Or(reg.Logger, slog.Default())
	return &Registrar{client: c, reg: reg, wake: make(chan struct{}, 1)}
}

// Notify makes the registrar write a heartbeat soon, for an urgent change. Notify never blocks.
func (r *Registrar) Notify() { await.Wake(r.wake) }

// LeaseTTL returns how long a node stays registered after its last heartbeat.
func LeaseTTL(heartbeat time.Duration) time.Duration {
	return time.Duration(math.Ceil((3 * heartbeat).Seconds())) * time.Second
}

// Run registers the node and keeps it registered until ctx ends. Then Run removes the node and
// returns nil. Run retries while etcd does not answer, and while the value of Health cannot be
// announced. Run registers again if the lease was lost, or if etcd has lost its data. Run returns a
// *DuplicateError if another live agent has the node id. To get an error for a wrong configuration,
// call NodeHealth.Check before.
func (r *Registrar) Run(ctx context.Context) error {
	defer r.leave(context.WithoutCancel(ctx))
	for {
		err := r.beat(ctx)
		if _, duplicate := errors.AsType[*DuplicateError](err); duplicate {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		r.note(ctx, err)
		if !r.sleep(ctx, err != nil) {
			return nil
		}
	}
}

// note logs the first failure in a row, and the end of the row.
func (r *Registrar) note(ctx context.Context, err error) {
	if err != nil && !r.failed {
		r.reg.Logger.Warn("heartbeat not written; trying on", "error", r.client.Why(ctx, err))
	}
	if err == nil && r.failed {
		r.reg.Logger.Info("heartbeat is written again")
	}
	r.failed = err != nil
	if r.reg.Tried != nil {
		r.reg.Tried(err)
	}
}

// sleep waits for the next heartbeat. After a failed attempt, sleep waits only a fifth of the
// heartbeat, at most a second. sleep returns false when ctx ends.
func (r *Registrar) sleep(ctx context.Context, failed bool) bool {
	wait := r.reg.Heartbeat
	if failed {
		wait = min(wait/5, time.Second)
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-r.wake:
	case <-timer.C:
	}
	return true
}

// beat renews the lease and writes the node. If the key is not ours yet, beat claims the key first.
func (r *Registrar) beat(ctx context.Context) error {
	if r.rev == 0 {
		return r.announce(ctx)
	}
	if err := r.renew(ctx); err != nil {
		return err
	}
	own, value, err := r.encode()
	if err != nil {
		return err
	}
	written, err := r.writeIf(ctx, clientv3.Compare(clientv3.ModRevision(own.key), "=", r.rev), own.key, value)
	if err != nil || written {
		return err
	}
	return r.announce(ctx) // the key was deleted, or written by somebody else
}

// announce claims the key and logs it. Routers know the node once it has the key.
func (r *Registrar) announce(ctx context.Context) error {
	err := r.claim(ctx)
	if err == nil {
		r.reg.Logger.Info("announced in etcd")
		if r.reg.Claimed != nil {
			r.reg.Claimed(r.rev)
		}
	}
	return err
}

// renew keeps the lease alive. If the lease is lost, the key is lost too, so the node must be
// claimed again.
func (r *Registrar) renew(ctx context.Context) error {
	ctx, cancel := r.client.bounded(ctx)
	defer cancel()
	_, err := r.client.etcd.KeepAliveOnce(ctx, r.lease)
	if err == nil {
		return nil
	}
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		r.lease = clientv3.NoLease
		return nil // the next write fails and claims the key
	}
	return fmt.Errorf("etcd lease: %w", err)
}

// claim makes the key ours. claim creates a missing key. claim takes over a key that was ours
// before, or that no daemon owns. In all other cases claim waits for the key. If the holder writes
// a heartbeat meanwhile, the holder is alive and we are the duplicate.
func (r *Registrar) claim(ctx context.Context) error {
	r.rev = 0
	seen := int64(0) // revision of the holder's last write
	for deadline := time.Now().Add(2 * LeaseTTL(r.reg.Heartbeat)); ; {
		if err := r.grant(ctx); err != nil {
			return err
		}
		own, value, err := r.encode()
		if err != nil {
			return err
		}
		written, err := r.writeIf(ctx, clientv3.Compare(clientv3.ModRevision(own.key), "=", 0), own.key, value)
		if err != nil || written {
			return err
		}
		holder, rev, err := r.holder(ctx, own.key)
		switch {
		case err != nil:
			return err
		case rev == 0: // the key was removed between the two requests
			if !r.sleep(ctx, true) {
				return ctx.Err()
			}
			continue
		case holder.instance == r.reg.Instance && holder.address == own.address:
			return r.takeOver(ctx, own.key, value, rev)
		case holder.nobody != "":
			return r.reclaim(ctx, own.key, value, rev, holder.nobody)
		case seen != 0 && rev != seen, time.Now().After(deadline):
			return &DuplicateError{ID: own.id, Address: own.address, HolderAddress: holder.address}
		case seen == 0:
			level := slog.LevelInfo // this daemon's own lease from before a restart
			if holder.address != own.address {
				level = slog.LevelWarn
			}
			r.reg.Logger.Log(ctx, level, "id is held; waiting for its lease to end", "holder", holder.address)
		}
		seen = rev
		if err := r.awaitChange(ctx, own.key, rev); err != nil {
			return err
		}
	}
}

// reclaim replaces a value that no daemon has written. Meanwhile routers have kept their earlier
// state of this daemon.
func (r *Registrar) reclaim(ctx context.Context, key string, value []byte, rev int64, why string) error {
	if err := r.takeOver(ctx, key, value, rev); err != nil {
		return err
	}
	r.reg.Logger.Error("the key in etcd held what no daemon writes: it has this daemon's record again", "key", key, "why",
		why)
	if r.reg.Reclaimed != nil {
		r.reg.Reclaimed()
	}
	return nil
}

// takeOver replaces our own value from before a restart or a lost lease, or a value without a
// daemon.
func (r *Registrar) takeOver(ctx context.Context, key string, value []byte, rev int64) error {
	written, err := r.writeIf(ctx, clientv3.Compare(clientv3.ModRevision(key), "=", rev), key, value)
	if err == nil && !written {
		err = errors.New("key changed while it was taken over")
	}
	return err
}

// grant gets a lease if there is none.
func (r *Registrar) grant(ctx context.Context) error {
	if r.lease != clientv3.NoLease {
		if err := r.renew(ctx); err != nil || r.lease != clientv3.NoLease {
			return err
		}
	}
	ctx, cancel := r.client.bounded(ctx)
	defer cancel()
	lease, err := r.client.etcd.Grant(ctx, int64(LeaseTTL(r.reg.Heartbeat).Seconds()))
	if err != nil {
		return fmt.Errorf("etcd lease: %w", err)
	}
	r.lease = lease.ID
	return nil
}

// writeIf writes the node under our lease if cond holds.
func (r *Registrar) writeIf(ctx context.Context, cond clientv3.Cmp, key string, value []byte) (bool, error) {
	if r.lease == clientv3.NoLease {
		return false, nil
	}
	ctx, cancel := r.client.bounded(ctx)
	defer cancel()
	resp, err := r.client.etcd.Txn(ctx).If(cond).Then(clientv3.OpPut(key, string(value),
		clientv3.WithLease(r.lease))).Commit()
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		r.lease = clientv3.NoLease
	}
	if err != nil {
		return false, fmt.Errorf("etcd put %s: %w", key, err)
	}
	if resp.Succeeded {
		r.rev = resp.Header.Revision
	}
	return resp.Succeeded, nil
}

// holder describes the writer of a key.
type holder struct {
	instance, address string
	nobody            string // why the writer is no daemon; empty: it is one
}

// holder returns the present writer of the key. rev is 0 if the key does not exist.
func (r *Registrar) holder(ctx context.Context, key string) (holder, int64, error) {
	resp, err := r.client.get(ctx, key)
	if err != nil || len(resp.Kvs) == 0 {
		return holder{}, 0, err
	}
	kv := resp.Kvs[0]
	return holderOf(key, kv.Value, clientv3.LeaseID(kv.Lease)), kv.ModRevision, nil
}

// holderOf returns the writer of a value. The writer is no daemon if the value has no lease, which
// a daemon's value always has, or if the value cannot be parsed.
func holderOf(key string, value []byte, lease clientv3.LeaseID) (h holder) {
	var err error
	if strings.HasPrefix(key, CachesPrefix) {
		var c CacheHealth
		err = json.Unmarshal(value, &c)
		h.instance, h.address = c.Instance, c.claim().address
	} else {
		var n NodeHealth
		err = json.Unmarshal(value, &n)
		h.instance, h.address = n.Instance, n.Address
	}
	switch {
	case lease == clientv3.NoLease:
		h.nobody = "it has no lease"
	case err != nil && h.instance == "":
		h.nobody = "it cannot be read: " + err.Error()
	}
	return h
}

// awaitChange returns when the key has changed after rev, at the latest after a heartbeat.
func (r *Registrar) awaitChange(ctx context.Context, key string, rev int64) error {
	wait, cancel := context.WithTimeout(ctx, r.reg.Heartbeat)
	defer cancel()
	resp := <-r.client.etcd.Watch(wait, key, clientv3.WithRev(rev+1))
	if wait.Err() != nil {
		return ctx.Err()
	}
	return resp.Err()
}

// leave removes the node, so that routers notice immediately and not when the lease ends.
func (r *Registrar) leave(ctx context.Context) {
	if r.lease == clientv3.NoLease {
		return
	}
	ctx, cancel := r.client.bounded(ctx)
	defer cancel()
	if _, err := r.client.etcd.Revoke(ctx, r.lease); err != nil {
		r.reg.Logger.Info("key not removed; it goes when its lease ends", "error", err)
	}
	r.lease, r.rev = clientv3.NoLease, 0
}

// encode gets the daemon's state and returns the value of its key. An error means that no reader
// would accept the value.
func (r *Registrar) encode() (claim, []byte, error) {
	record := r.reg.Health()
	record.mark(r.reg.Instance, time.Now().UnixMilli())
	own := record.claim()
	if err := record.Check(); err != nil {
		return own, nil, fmt.Errorf("description of %s: %w", own.id, err)
	}
	value, err := json.Marshal(record)
	if err == nil && len(value) > maxValueBytes {
		err = fmt.Errorf("%d bytes; at most %d are read", len(value), maxValueBytes)
	}
	if err != nil {
		return own, nil, fmt.Errorf("description of %s: %w", own.id, err)
	}
	return own, value, nil
}
