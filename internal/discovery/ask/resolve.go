package ask

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"

	"github.com/blackhole/blackhole/internal/discovery/keep"
	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// Resolve returns the newest live record under a key. It asks more than half of the keepers of the
// provider's cell, and the highest sequence wins: of a withdrawal that reached half of the keepers,
// at least one of them tells. The index adds what it learns. For a record of this peer the index
// alone decides.
//
// Errors: NotFound for an unknown or withdrawn record, and for one that moved to another key;
// Unsupported for a record that needs features of a later version;
// Unavailable if too few keepers answered; Timeout.
func (a *Asker) Resolve(ctx context.Context, key records.Key) (_ *records.Record, err error) {
	const op = "keeper.Resolve"
	ctx, end, err := a.Begin(ctx, "resolve", resolveTimeout)
	if err != nil {
		return nil, err
	}
	defer func() { end(err) }()
	var newest *records.Record
	doubt := error(nil)
	if key.Name.Provider != a.Self {
		if newest, doubt, err = a.askNewest(ctx, key); err != nil {
			return nil, fault.Wrap(op, err)
		}
	}
	if newest != nil {
		_, _ = a.intake.Put(newest) // if the index is full, the record is valid all the same
	}
	if known, ok := a.Index.Latest(key.Name); ok && (newest == nil || records.Compare(known, newest) > 0) {
		newest = known
	}
	if err := liveUnder(key, newest, a.Now()); err != nil {
		if newest == nil && doubt != nil {
			err = fault.As("", fault.Unavailable, doubt)
		}
		return nil, fault.Wrap(op, err)
	}
	return newest, nil
}

// liveUnder returns NotFound unless r is live and has the key.
func liveUnder(key records.Key, r *records.Record, now time.Time) error {
	switch {
	case r == nil || r.Expired(now):
		return fault.New("", fault.NotFound, "no keeper has a record under the key %s", key)
	case r.Withdrawn():
		return fault.New("", fault.NotFound, "the record was withdrawn at %s", r.Issued().UTC().Format(time.RFC3339))
	case r.Needs() != "":
		return fault.New("", fault.Unsupported, "the record needs a newer version of blackholed with %s", r.Needs())
	case key.Matches(r) != nil:
		return fault.New("", fault.NotFound, "the newest version of the record has the key %s", r.Key())
	default:
		return nil
	}
}

// askNewest asks the keepers of a record for its newest version; nil if they have none. Doubt is the
// error of a lookup that may have missed keepers.
func (a *Asker) askNewest(ctx context.Context, key records.Key) (newest *records.Record, doubt, err error) {
	set, err := a.closest.Keepers(ctx, records.ProviderCell(key.Name.Provider))
	if err != nil {
		return nil, nil, err
	}
	newest, err = a.newest(ctx, set, key)
	return newest, set.Uncertain, err
}

// versionReply is one keeper's answer about a record.
type versionReply struct {
	newest *records.Record // nil without a version
	full   bool            // the peer keeps the provider's cell, and its version counts here
	err    error           // why it is not full

	keptOut bool // a limit of the peer keeps the record out
	untold  bool // there is no valid answer
}

var (
	errNotKeeper = errors.New("a keeper has not compared the provider's records yet, or keeps them no longer")
	errAhead     = errors.New("a keeper has a version from the future: check the clocks")
)

// newest asks keepers until more than half of them answered in full: as many at first, one more for
// each failure, and after the hedge delay all.
func (a *Asker) newest(ctx context.Context, set *keep.Set, key records.Key) (newest *records.Record, err error) {
	var asked sync.WaitGroup
	defer asked.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // runs before Wait and ends the slow requests
	order := a.askingOrder(set)
	needed := len(set.Peers)/2 + 1
	replies := make(chan versionReply, len(order))
	next, full := 0, 0
	ask := func(n int) {
		for _, id := range order[next:min(next+n, len(order))] {
			next++
			asked.Go(func() {
				r := a.askVersion(ctx, id, key)
				r.full = r.full || errors.Is(r.err, errNotKeeper) && slices.Contains(set.Outer, id)
				replies <- r
			})
		}
	}
	ask(needed)
	hedge := time.NewTimer(a.client.HedgeDelay(order[:next]))
	defer hedge.Stop()
	var failure error
	for received := 0; full < needed; {
		if received == next {
			return nil, fault.New("", fault.Unavailable, "%d of %d keepers of the provider's records answered, %d are needed: %s",
				full, len(order), needed, fault.Message(failure))
		}
		select {
		case r := <-replies:
			received++
			if r.newest != nil && (newest == nil || records.Compare(r.newest, newest) > 0) {
				newest = r.newest
			}
			if r.full {
				full++
				continue
			}
			failure = r.err
			ask(1)
		case <-hedge.C:
			ask(len(order))
		case <-ctx.Done():
			return nil, fault.Wrap("", ctx.Err())
		}
	}
	return newest, nil
}

// askVersion asks one keeper, or this peer itself, for the newest version of a record.
func (a *Asker) askVersion(ctx context.Context, id peer.ID, key records.Key) (r versionReply) {
	if id == a.Self {
		r.newest, _ = a.Index.Latest(key.Name)
		r.keptOut = a.intake.KeptOut(key.Name)
		if r.full = a.authority.Authoritative(records.ProviderCell(key.Name.Provider)); !r.full {
			r.err = errNotKeeper
		}
		return r
	}
	start := a.Now()
	ctx, end, err := a.Begin(ctx, "ask", resolveTimeout)
	if err != nil {
		return versionReply{err: err, untold: true}
	}
	req := &pb.ResolveRequest{Key: key.String()}
	resp, refused, err := a.client.Call(ctx, id, &pb.Request{Op: &pb.Request_Resolve{Resolve: req}})
	if err == nil {
		r, err = a.readVersion(resp.GetResolve(), key)
	}
	if !refused {
		a.client.Observe(ctx, id, a.Now().Sub(start), err)
	}
	end(err)
	if err != nil {
		return versionReply{err: err, untold: true}
	}
	return r
}

// readVersion verifies a keeper's answer about a record. A version that has expired counts as none,
// unless this peer's clock is wrong. A version from the future, or one that this peer does not read,
// has no authority.
func (a *Asker) readVersion(resp *pb.ResolveResponse, key records.Key) (r versionReply, err error) {
	if resp == nil {
		return r, protocol.Breach("the response does not answer a resolution")
	}
	if r.full = !resp.NotKept; !r.full {
		r.err = errNotKeeper
	}
	r.keptOut = resp.KeptOut
	if len(resp.Envelope) == 0 {
		return r, nil
	}
	newest, left, err := protocol.Receive(a.Verifier, resp.Envelope, a.Now())
	switch {
	case err != nil:
		return r, err
	case left != nil:
		a.CountLeft(left)
		if own := a.authority.ClockFault(); protocol.Untimely(left) && own != "" {
			r.full, r.err = false, errors.New(own)
		} else if !protocol.Untimely(left) {
			r.full, r.err = false, fmt.Errorf("a keeper has a version that this peer does not read: %s", fault.Message(left))
		} else if fault.FieldOf(left) != "expires_at" {
			r.full, r.err = false, errAhead
		}
		return r, nil
	case newest.Name() != key.Name:
		return r, protocol.Breach("record %s instead of %s", newest.Name(), key.Name)
	}
	r.newest = newest
	return r, nil
}

// ServeResolve answers a RESOLVE request.
func (a *Asker) ServeResolve(req *pb.ResolveRequest) (*pb.ResolveResponse, error) {
	key, err := records.ParseKey(req.GetKey())
	if err != nil {
		return nil, err
	}
	resp := &pb.ResolveResponse{NotKept: !a.authority.Authoritative(records.ProviderCell(key.Name.Provider))}
	if r, ok := a.Index.Latest(key.Name); ok && !r.Expired(a.Now()) {
		resp.Envelope = r.Envelope()
	}
	resp.KeptOut = a.intake.KeptOut(key.Name)
	return resp, nil
}
