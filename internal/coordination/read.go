package coordination

import (
	"context"
	"time"

	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

const (
	defaultLimit = 1000             // of leases and locks in an answer
	progress     = 10 * time.Second // between two progress marks of a quiet watch
)

// Leases implements coord.Reader. Only the leader knows the remaining times.
func (p *Plane) Leases(ctx context.Context, q coord.LeaseQuery) (found []coord.LeaseState, h coord.Header, err error) {
	err = p.router.retry(ctx, func(ctx context.Context, t executor) error {
		found, h, err = t.Leases(ctx, q)
		return err
	})
	return found, h, err
}

// Locks implements coord.Reader.
func (p *Plane) Locks(ctx context.Context, q coord.LockQuery) (found []coord.LockState, h coord.Header, err error) {
	err = p.router.atMember(ctx, func(ctx context.Context, t executor) error {
		found, h, err = t.Locks(ctx, q)
		return err
	})
	return found, h, err
}

// Range implements coord.Reader.
func (p *Plane) Range(ctx context.Context, q coord.Query, c coord.Consistency) (page coord.Page, h coord.Header, err error) {
	if l := p.here.Load(); l != nil && c == coord.Local && l.belongs() {
		return l.Range(ctx, q, c)
	}
	err = p.router.atMember(ctx, func(ctx context.Context, t executor) error {
		page, h, err = t.Range(ctx, q, c)
		return err
	})
	return page, h, err
}

// Watch implements coord.Reader. It resumes at another member after the loss of the serving one.
func (p *Plane) Watch(ctx context.Context, w coord.Watch, send func(coord.Batch, coord.Header) error) error {
	const op = "coordination.Watch"
	_, floor := p.founder.Left()
	if w.From > 0 && int64(w.From) <= floor { // perhaps of a group that this peer left
		return anew(op, floor)
	}
	var refused error // the error of send, which ends the watch
	begun := false
	err := p.router.atMember(ctx, func(ctx context.Context, t executor) error {
		resuming := begun
		established := p.router.watch(t)
		defer established.end()
		err := t.Watch(ctx, w, func(b coord.Batch, h coord.Header) error {
			established.begin()
			if resuming && len(b.Events) == 0 {
				resuming = false
				return nil // the client knows the start already
			}
			begun, w.From = true, b.Next
			refused = send(b, h)
			return refused
		})
		if refused != nil { // even an Unavailable of send
			return fault.As(op, fault.Canceled, refused)
		}
		return err
	})
	if err != nil && refused == nil && ctx.Err() == nil && p.departed.Load() {
		return anew(op, int64(w.From))
	}
	return err
}

// anew ends a watch that must not go on: its revisions are of another group's history.
func anew(op string, at int64) error {
	return fault.As(op, fault.NotFound, &coord.Compacted{Revision: coord.Revision(at), Current: coord.Revision(at)})
}

// barrier returns a header after which this member's state contains all answered writes. Errors: Unavailable
// if no leader confirms it in time.
func (l *local) barrier(ctx context.Context) (coord.Header, error) {
	bounded, cancel := context.WithTimeout(ctx, patience/2) // the rest is for other members: see router.atMember
	defer cancel()
	h, err := l.member.Barrier(bounded)
	if err != nil && ctx.Err() == nil && bounded.Err() != nil {
		return h, fault.New("group.barrier", fault.Unavailable, "no_quorum: %s", l.plane.missing())
	}
	return h, err
}

// Leases implements coord.Reader.
func (l *local) Leases(ctx context.Context, q coord.LeaseQuery) ([]coord.LeaseState, coord.Header, error) {
	h, err := l.barrier(ctx)
	if err != nil {
		return nil, h, err
	}
	if !l.leads() {
		return nil, h, fault.New("group.Leases", fault.Unavailable, "another member leads")
	}
	var found []coord.LeaseState
	var all []coord.Lease
	l.member.View(func(m *machine.Machine) {
		if q.ID == 0 {
			all = m.Leases()
		} else if lease, ok := m.Lease(q.ID); ok {
			found = []coord.LeaseState{{Lease: lease, Tag: lease.ID.Tag(), Keys: m.LeaseKeys(q.ID)}}
		}
	})
	if q.ID != 0 && len(found) == 0 {
		return nil, h, absent("lease", "there is no such lease")
	}
	if q.ID == 0 {
		for _, lease := range q.List(all) {
			found = append(found, coord.LeaseState{Lease: lease, Tag: lease.ID.Tag()})
		}
	}
	for i := range found {
		left, _ := l.member.Remaining(found[i].ID)
		found[i].Remaining = max(left, 0).Milliseconds()
	}
	return found, h, nil
}

func absent(field, what string) error {
	return &fault.Error{Op: "group", Kind: fault.NotFound, Field: field, Err: fault.New("", fault.NotFound, "%s", what).Err}
}

func limit(n int) int {
	if n <= 0 {
		return defaultLimit
	}
	return n
}

// Locks implements coord.Reader.
func (l *local) Locks(ctx context.Context, q coord.LockQuery) ([]coord.LockState, coord.Header, error) {
	h, err := l.barrier(ctx)
	if err != nil {
		return nil, h, err
	}
	var infos []machine.LockInfo
	q.Limit = limit(q.Limit)
	l.member.View(func(m *machine.Machine) { infos = machine.ListLocks(m, q) })
	if q.Name != "" && len(infos) == 0 {
		return nil, h, absent("name", "nobody claims that lock")
	}
	found := make([]coord.LockState, len(infos))
	for i, info := range infos {
		found[i] = coord.LockState{
			Name: info.Name, Holding: l.claims(info.Holding, info.Applications), Waiting: l.claims(info.Waiting, info.Applications), LeftOut: info.LeftOut,
		}
	}
	return found, h, nil
}

func (l *local) claims(kvs []*coord.KeyValue, applications map[coord.LeaseID]string) []coord.ClaimState {
	claims := make([]coord.ClaimState, len(kvs))
	for i, kv := range kvs {
		c, _ := kv.Claim()
		claims[i] = coord.ClaimState{
			Claim: c, Key: kv.Key, Lease: kv.Lease, Token: kv.Token(), ModRevision: kv.ModRevision, Version: kv.Version,
			Application: applications[kv.Lease], Age: l.claimTimes.age(kv.Key),
		}
	}
	return claims
}

// Range implements coord.Reader.
func (l *local) Range(ctx context.Context, q coord.Query, c coord.Consistency) (page coord.Page, h coord.Header, err error) {
	if c == coord.Linearizable {
		if h, err = l.barrier(ctx); err != nil {
			return page, h, err
		}
	} else {
		h = l.header(0)
	}
	if q.Scans() { // long, so beside the member
		keys, _ := l.member.Keyspace()
		page, err = keys.Range(q)
		return page, h, err
	}
	l.member.View(func(m *machine.Machine) { page, err = m.Range(q) })
	return page, h, err
}

// Watch implements coord.Reader.
func (l *local) Watch(ctx context.Context, w coord.Watch, send func(coord.Batch, coord.Header) error) error {
	h, err := l.barrier(ctx)
	if err != nil {
		return err
	}
	if w.From == 0 {
		w.From = h.Revision + 1
	}
	l.member.View(func(m *machine.Machine) {
		first := w
		first.Limit = 1
		_, err = m.Events(first) // report an impossible start first
	})
	if err != nil {
		return err
	}
	for b := (coord.Batch{Next: w.From}); ; {
		if err := send(b, h); err != nil {
			return err
		}
		if b, err = l.events(ctx, w); err != nil {
			return err
		}
		w.From = b.Next
		if len(b.Events) == 0 { // a progress mark: only members of the group may send it
			h, err = l.barrier(ctx)
		} else {
			h = l.header(b.Next - 1)
		}
		if err != nil {
			return err
		}
	}
}

// events waits for the next events of a watch, or for the time of a progress mark.
func (l *local) events(ctx context.Context, w coord.Watch) (b coord.Batch, err error) {
	bounded, cancel := context.WithTimeout(ctx, progress)
	defer cancel()
	for {
		l.member.View(func(m *machine.Machine) { b, err = m.Events(w) })
		if err != nil || len(b.Events) > 0 {
			return b, err
		}
		if w.From = b.Next; b.More {
			continue
		}
		if _, err := l.member.After(bounded, w.From-1); err != nil {
			if ctx.Err() == nil && bounded.Err() != nil {
				return b, nil
			}
			return b, err
		}
	}
}

// header returns this member's header, at revision or later.
func (l *local) header(revision coord.Revision) coord.Header {
	h := l.member.Status().Header
	h.Revision = max(l.member.Revision(), revision)
	return h
}
