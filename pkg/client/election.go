package client

import (
	"context"
	"errors"
	"iter"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/attempt"
	"github.com/blackhole/blackhole/pkg/client/fence"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Leadership is a won election: a held lock, and the key NAME/leader with the proclamation of the
// leader. The lock's token guards each proclamation. The key ends with the leader's lease.
type Leadership struct {
	held *Held
	name string
}

// Leader is the leader of an election as seen by others.
type Leader struct {
	// Value is the last proclamation of the leader. It is nil without a leader, or before the
	// first proclamation.
	Value []byte
	// Lease of the leader, or 0 without a known leader.
	Lease LeaseID
	// Revision of the proclamation, or of its end.
	Revision Revision
}

// leaderKey is the key for the proclamations of a leader.
func leaderKey(name string) string { return name + "/leader" }

// Campaign waits until the session leads, and proclaims value. Errors: as Lock. After a failed
// proclamation the session does not lead.
func (s *Session) Campaign(ctx context.Context, name string, value []byte) (*Leadership, error) {
	const op = "client.Campaign"
	held, err := s.Lock(ctx, name, Metadata(value))
	if err != nil {
		return nil, fault.Wrap(op, err)
	}
	l := &Leadership{held: held, name: name}
	if err := l.Proclaim(ctx, value); err != nil {
		return nil, fault.Wrap(op, errors.Join(err, held.Unlock(context.WithoutCancel(held.Context()))))
	}
	return l, nil
}

// Context ends with the leadership, before the group can elect another leader.
func (l *Leadership) Context() context.Context { return l.held.Context() }

// Token returns the fencing token of the leadership, which exceeds the tokens of all earlier
// leaders.
func (l *Leadership) Token() fence.Token { return l.held.Token() }

// Proclaim replaces the proclamation for observers. Errors: Conflict if another client leads by
// now.
func (l *Leadership) Proclaim(ctx context.Context, value []byte) error {
	return l.write(ctx, "client.Proclaim", coord.PutStep(leaderKey(l.name), value, coord.LeaseID(l.held.Lease())))
}

// Resign ends the leadership immediately. A second Resign does nothing. Errors: as Held.Unlock.
func (l *Leadership) Resign(ctx context.Context) error {
	const op = "client.Resign"
	if l.held.over.Load() {
		return nil
	}
	if err := l.write(ctx, op, coord.Exactly(leaderKey(l.name)).DeleteStep()); err != nil && fault.KindOf(err) != fault.Conflict {
		return fault.Wrap(op, errors.Join(err, l.held.Unlock(ctx)))
	}
	return fault.Wrap(op, l.held.Unlock(ctx))
}

// write changes the leader's key during the leadership.
func (l *Leadership) write(ctx context.Context, op string, change *api.TxnStep) error {
	s := l.held.session
	ctx, cancel := s.whileLives(ctx)
	defer cancel()
	result, err := s.client.do(ctx, &api.TxnRequest{Compare: []*api.Compare{l.held.Guard().message}, Then: []*api.TxnStep{change}})
	if err == nil {
		err = coord.Unmet(result.GetTxn())
	}
	if err != nil && s.ctx.Err() != nil {
		err = context.Cause(s.ctx)
	}
	return fault.Wrap(op, err)
}

// Leader returns the current leader. Errors: NotFound without a proclamation.
func (l Locks) Leader(ctx context.Context, name string) (Leader, error) {
	const op = "client.Leader"
	page, err := coord.Range(ctx, l.client.link.Coordination, &api.RangeRequest{Key: []byte(leaderKey(name))})
	switch {
	case err != nil:
		return Leader{}, fault.Wrap(op, err)
	case len(page.GetKvs()) == 0:
		return Leader{Revision: Revision(page.GetRevision())}, fault.New(op, fault.NotFound, "nobody leads")
	}
	return leader(keyValue(page.GetKvs()[0])), nil
}

func leader(kv *KeyValue) Leader {
	return Leader{Value: kv.Value, Lease: kv.Lease, Revision: kv.ModRevision}
}

// Observe returns the current leader and then every change, until ctx ends. The last pair has an
// error and no leader. After a long loss of the peer, it returns only the final state of missed
// changes.
func (l Locks) Observe(ctx context.Context, name string) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		for {
			again, err := l.client.observe(ctx, name, func(now Leader) bool { return yield(now, nil) })
			if err != nil {
				yield(Leader{}, fault.Wrap("client.Observe", err))
			}
			if !again {
				return
			}
		}
	}
}

// observe starts with the current leader. again reports that the group has compacted the missed
// changes.
func (c *Client) observe(ctx context.Context, name string, tell func(Leader) bool) (again bool, err error) {
	now, err := leaderNow(ctx, c, name)
	if err != nil {
		return false, err
	}
	if !tell(now) {
		return false, nil
	}
	watch := Watch{Span: Exactly(leaderKey(name)), From: now.Revision + 1}
	for batch, err := range c.KV().Watch(ctx, watch) {
		if past := (*Compacted)(nil); errors.As(err, &past) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		for _, e := range batch.Events {
			l := Leader{Revision: e.Revision}
			if e.KV != nil {
				l = leader(e.KV)
			}
			if !tell(l) {
				return false, nil
			}
		}
	}
	return false, nil
}

// leaderNow is Leader with retries. The zero Leader means no leader.
func leaderNow(ctx context.Context, c *Client, name string) (Leader, error) {
	var l Leader
	err := c.repeat(ctx, func(*attempt.Run) (err error) {
		l, err = c.Locks().Leader(ctx, name)
		return err
	})
	if fault.KindOf(err) == fault.NotFound {
		err = nil
	}
	return l, err
}
