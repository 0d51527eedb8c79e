package client

import (
	"cmp"
	"context"
	"errors"
	"io"
	"unicode/utf8"

	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/coord/calls"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Leases implements coord.Reader.
func (p *Coordination) Leases(ctx context.Context, q coord.LeaseQuery) ([]coord.LeaseState, coord.Header, error) {
	const op = "client.Leases"
	if q.ID != 0 {
		a, err := p.calls.Read(ctx, &coordv1.Question{Request: &coordv1.Question_LeaseTimeToLive{LeaseTimeToLive: &api.LeaseTimeToLiveRequest{Id: int64(q.ID)}}})
		if err != nil {
			return nil, coord.Header{}, fromStatus(op, err)
		}
		resp := a.GetLeaseTimeToLive()
		return []coord.LeaseState{toLease(resp.GetLease())}, toHeader(resp.GetHeader()), nil
	}
	a, err := p.calls.Read(ctx, &coordv1.Question{Request: &coordv1.Question_ListLeases{
		ListLeases: &api.ListLeasesRequest{After: q.After, Limit: limit(q.Limit), VisibleTo: p.visibleTo(q)},
	}})
	if err != nil {
		return nil, coord.Header{}, fromStatus(op, err)
	}
	resp := a.GetListLeases()
	return convert(resp.GetLeases(), toLease), toHeader(resp.GetHeader()), nil
}

// Locks implements coord.Reader. Of one lock, without a bound in bytes, it requests page after page.
func (p *Coordination) Locks(ctx context.Context, q coord.LockQuery) ([]coord.LockState, coord.Header, error) {
	const op = "client.Locks"
	if err := cmp.Or(text("name", q.Name), text("prefix", q.Prefix), text("after", q.After)); err != nil {
		return nil, coord.Header{}, fault.Wrap(op, err)
	}
	if q.Name != "" {
		lock, header, err := p.lock(ctx, q)
		for err == nil && lock.LeftOut > 0 && q.Bytes <= 0 {
			q.AfterToken = lock.Last()
			var next coord.LockState
			if next, header, err = p.lock(ctx, q); fault.KindOf(err) == fault.NotFound {
				lock.LeftOut, err = 0, nil // all claims have ended meanwhile
				break
			}
			lock.Holding, lock.Waiting, lock.LeftOut = append(lock.Holding, next.Holding...), append(lock.Waiting, next.Waiting...), next.LeftOut
		}
		if err != nil {
			return nil, coord.Header{}, fromStatus(op, err)
		}
		return []coord.LockState{lock}, header, nil
	}
	a, err := p.calls.Read(ctx, &coordv1.Question{Request: &coordv1.Question_ListLocks{
		ListLocks: &api.ListLocksRequest{Prefix: q.Prefix, After: q.After, Limit: limit(q.Limit)},
	}})
	if err != nil {
		return nil, coord.Header{}, fromStatus(op, err)
	}
	resp := a.GetListLocks()
	return convert(resp.GetLocks(), toLock), toHeader(resp.GetHeader()), nil
}

// lock requests a page of the claims of a lock.
func (p *Coordination) lock(ctx context.Context, q coord.LockQuery) (coord.LockState, coord.Header, error) {
	a, err := p.calls.Read(ctx, &coordv1.Question{Request: &coordv1.Question_LockInfo{
		LockInfo: &api.LockInfoRequest{Name: q.Name, AfterToken: int64(q.AfterToken)},
	}})
	resp := a.GetLockInfo()
	return toLock(resp.GetLock()), toHeader(resp.GetHeader()), err
}

// Range implements coord.Reader. Without a bound in bytes it requests page after page until the limit is reached, all at
// the revision of the first page.
func (p *Coordination) Range(ctx context.Context, q coord.Query, c coord.Consistency) (coord.Page, coord.Header, error) {
	page, header, err := p.page(ctx, q, c)
	for most := q.Limit; err == nil && q.Bytes <= 0 && page.Next != "" && (most <= 0 || len(page.Keys) < most); {
		q.From, q.At, q.Limit = page.Next, page.Revision, most-len(page.Keys)
		var next coord.Page
		next, header, err = p.page(ctx, q, c)
		page.Keys, page.Next = append(page.Keys, next.Keys...), next.Next
	}
	if err != nil {
		return coord.Page{}, coord.Header{}, err
	}
	return page, header, nil
}

func (p *Coordination) page(ctx context.Context, q coord.Query, c coord.Consistency) (coord.Page, coord.Header, error) {
	from, to := q.Span.Bounds()
	a, err := p.calls.Read(ctx, &coordv1.Question{Request: &coordv1.Question_Range{Range: &api.RangeRequest{
		Key: from, RangeEnd: to, Revision: int64(q.At), Limit: limit(q.Limit), Local: c == coord.Local, From: []byte(q.From),
		Order: api.TxnRange_Order(q.Order), Descending: q.Descending, KeysOnly: q.KeysOnly, CountOnly: q.CountOnly,
	}}})
	if err != nil {
		return coord.Page{}, coord.Header{}, fromStatus("client.Range", err)
	}
	resp := a.GetRange()
	return coord.Page{
		Revision: coord.Revision(resp.GetRevision()), Keys: convert(resp.GetKvs(), toKeyValue), Next: string(resp.GetNext()), Count: int(resp.GetCount()),
	}, toHeader(resp.GetHeader()), nil
}

// Watch implements coord.Reader. The peer sets the limit.
func (p *Coordination) Watch(ctx context.Context, w coord.Watch, send func(coord.Batch, coord.Header) error) error {
	const op = "client.Watch"
	if w.From < 0 {
		return fault.Wrap(op, fault.Invalidf("from", w.From, "must be at least 0"))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream after a failed send
	stream, err := p.watches.Watch(ctx)
	if err != nil {
		return fromStatus(op, err)
	}
	key, prefix := common(w.Span)
	req := &api.WatchKeysRequest{Key: key, Prefix: prefix, StartRevision: int64(w.From), WatchId: 1, PrevKv: w.Prev}
	if err := stream.Send(req); err != nil && !errors.Is(err, io.EOF) { // EOF: Recv returns the cause
		return fromStatus(op, err)
	}
	if err := stream.CloseSend(); err != nil { // no further requests
		return fromStatus(op, err)
	}
	for batch := (coord.Batch{}); ; {
		resp, err := stream.Recv()
		if err != nil {
			return fromStatus(op, err)
		}
		if err := ended(op, resp); err != nil {
			return err
		}
		batch.Next, batch.Events = coord.Revision(resp.GetNextRevision()), append(batch.Events, toEvents(resp.GetEvents(), w.Span)...)
		if resp.GetFragment() {
			continue
		}
		if err := send(batch, toHeader(resp.GetHeader())); err != nil {
			return err
		}
		batch.Events = nil
	}
}

// ended returns the cause if an answer is the last of a watch: an event of an unknown kind ends it too, because
// nothing else may be lost without a word.
func ended(op string, resp *api.WatchKeysResponse) error {
	switch {
	case resp.GetCompactRevision() > 0:
		return fault.As(op, fault.NotFound, calls.CompactedOf(resp))
	case resp.GetCanceled() && resp.GetError() != nil && fault.Kind(resp.GetError().GetKind()) != fault.LimitReached:
		return toFault(op, resp.GetError())
	case resp.GetCanceled(): // also a full peer, which has room later
		return fault.New(op, fault.Unavailable, "the peer ended the watch: %s", resp.GetReason())
	}
	for _, e := range resp.GetEvents() {
		if _, known := api.KeyEvent_Type_name[int32(e.GetType())]; !known {
			return fault.New(op, fault.Unsupported, "the peer sent an event of a kind that this version does not know: %d", e.GetType())
		}
	}
	return nil
}

// common returns the key or text prefix that contains a span, for the request of a watch. The
// span may exclude some of its keys.
func common(s coord.Span) (key string, prefix bool) {
	if s == coord.Exactly(s.From) && utf8.ValidString(s.From) {
		return s.From, false
	}
	key = s.From
	for key != "" && !(utf8.ValidString(key) && within(s, coord.Under(key))) {
		key = key[:len(key)-1]
	}
	return key, true
}

// within reports whether other contains s.
func within(s, other coord.Span) bool {
	return s.From >= other.From && (other.To == "" || s.To != "" && s.To <= other.To)
}

// Group implements coord.Admin.
func (p *Coordination) Group(ctx context.Context) (coord.GroupState, error) {
	resp, err := p.admin.Group(ctx, &api.GroupRequest{})
	if err != nil {
		return coord.GroupState{}, fromStatus("client.Group", err)
	}
	return coord.GroupState{
		ID: resp.GetGroupId(), Phase: resp.GetPhase(), Missing: resp.GetMissing(), Term: resp.GetTerm(), Leader: resp.GetLeader(),
		Voters: convert(resp.GetVoters(), toMember), Learners: convert(resp.GetLearners(), toMember),
		Revision: coord.Revision(resp.GetRevision()), Incarnation: resp.GetIncarnation(),
		Leases: int(resp.GetLeases()), Locks: int(resp.GetLocks()), Keys: int(resp.GetKeys()),
		Survives: int(resp.GetFailuresSurvived()), Tolerance: resp.GetTolerance(),
		Level: resp.GetFeatureLevel(), HeldBackBy: convert(resp.GetHeldBackBy(), func(h *api.HeldBack) coord.HeldBack {
			return coord.HeldBack{Peer: h.GetPeerId(), Levels: coord.Levels{Min: h.GetMinLevel(), Max: h.GetMaxLevel()}}
		}),
	}, nil
}

// ChangeMembers implements coord.Admin.
func (p *Coordination) ChangeMembers(ctx context.Context, c coord.MemberChange) (coord.MemberOutcome, error) {
	resp, err := p.admin.ChangeMembers(ctx, &api.ChangeMembersRequest{
		Action: string(c.Action), PeerId: c.Peer, With: c.With, DryRun: c.DryRun, Force: c.Force, By: c.By,
		GroupId: c.Group, Revision: int64(c.Revision),
	})
	if err != nil {
		return coord.MemberOutcome{}, fromStatus("client.ChangeMembers", err)
	}
	return coord.MemberOutcome{
		Done: resp.GetDone(), Steps: resp.GetSteps(), Before: resp.GetBefore(), After: resp.GetAfter(), Standing: coord.Standing(resp.GetStanding()),
		Revision: coord.Revision(resp.GetRevision()),
	}, nil
}

// Backup implements coord.Admin.
func (p *Coordination) Backup(ctx context.Context, w io.Writer) error {
	const op = "client.Backup"
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the stream after a failed write
	stream, err := p.admin.Backup(ctx, &api.BackupRequest{})
	if err != nil {
		return fromStatus(op, err)
	}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fromStatus(op, err)
		}
		if _, err := w.Write(part.GetData()); err != nil {
			return fault.As(op, fault.Canceled, err)
		}
	}
}

// limit is the page size in a request. Zero lets the peer choose.
func limit(n int) uint32 { return uint32(min(max(n, 0), 1<<20)) }
