package coord

import (
	"cmp"
	"context"
	"time"
	"unicode/utf8"

	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Ops calls a Service with the operations of this package.
type Ops struct{ Service }

// Do executes a command.
func (o Ops) Do(ctx context.Context, cmd Command) (Result, Header, error) {
	m, err := Message(cmd)
	if err != nil {
		return Result{}, Header{}, err
	}
	return o.execute(ctx, m)
}

// Acquire executes a *Lock with Wait.
func (o Ops) Acquire(ctx context.Context, cmd Command, wait time.Duration) (Result, Header, error) {
	m, err := Message(cmd)
	if err != nil {
		return Result{}, Header{}, err
	}
	req := m.GetLock()
	if req == nil {
		return Result{}, Header{}, fault.Wrap("coord.Acquire", fault.Invalidf("op", nil, "must be a lock that waits"))
	}
	req.TimeoutMs = WaitOf(wait)
	return o.execute(ctx, m)
}

// WaitOf is a time to wait as a request for a lock has it: at least 1 ms, and -1 without a limit.
func WaitOf(wait time.Duration) int64 {
	if wait < 0 {
		return -1
	}
	return max(1, int64((wait+time.Millisecond-1)/time.Millisecond))
}

func (o Ops) execute(ctx context.Context, m *coordv1.Command) (Result, Header, error) {
	a, err := o.Execute(ctx, m)
	if err != nil {
		return Result{}, Header{}, err
	}
	return ResultOf(m, a)
}

// ResultOf returns a result in the form of this package.
func ResultOf(m *coordv1.Command, a *coordv1.Result) (r Result, h Header, err error) {
	type locked interface {
		GetKey() string
		GetFencingToken() int64
		GetAcquired() bool
		GetCount() uint32
	}
	lock := func(l locked) LockResult {
		return LockResult{Key: l.GetKey(), Token: Token(l.GetFencingToken()), Granted: l.GetAcquired(), Count: l.GetCount()}
	}
	var head interface{ GetHeader() *apiv1.Header }
	switch q := a.GetResponse().(type) {
	case *coordv1.Result_Lock:
		head, r.Lock = q.Lock, lock(q.Lock)
	case *coordv1.Result_TryLock:
		head, r.Lock = q.TryLock, lock(q.TryLock)
	case *coordv1.Result_Unlock:
		u := m.GetUnlock()
		head, r.Lock = q.Unlock, LockResult{
			Key: LockKey(u.GetName(), LeaseID(u.GetLeaseId())), Token: Token(u.GetFencingToken()), Count: q.Unlock.GetCount(), Granted: q.Unlock.GetCount() > 0,
		}
	case *coordv1.Result_LeaseGrant:
		head, r.Lease, r.TTL = q.LeaseGrant, LeaseID(q.LeaseGrant.GetId()), q.LeaseGrant.GetTtlMs()
	case *coordv1.Result_LeaseRevoke:
		head = q.LeaseRevoke
	case *coordv1.Result_Txn:
		head, r.Changed, r.Txn = q.Txn, int(q.Txn.GetChanged()), toTxn(q.Txn)
	case *coordv1.Result_PublishInstances:
		head, r.Changed = q.PublishInstances, int(q.PublishInstances.GetChanged())
		r.Foreign = each(q.PublishInstances.GetForeign(), func(key []byte) string { return string(key) })
		r.Since = each(q.PublishInstances.GetSince(), func(at int64) Revision { return Revision(at) })
	case *coordv1.Result_SetRequirement:
		head, r.Changed = q.SetRequirement, int(q.SetRequirement.GetChanged())
	case *coordv1.Result_DeleteRequirement:
		head, r.Changed = q.DeleteRequirement, 1
	case *coordv1.Result_OpenClient:
		head, r.Client = q.OpenClient, ClientID(q.OpenClient.GetClient())
	case *coordv1.Result_Done:
		head, r.Changed, r.Lock.Granted = q.Done, int(q.Done.GetChanged()), q.Done.GetGranted()
		r.Ended = each(q.Done.GetEnded(), func(id int64) LeaseID { return LeaseID(id) })
	}
	if head != nil {
		h = HeaderOf(head.GetHeader())
	}
	r.Revision = h.Revision
	return r, h, nil
}

// HeaderOf returns a header in the form of this package.
func HeaderOf(h *apiv1.Header) Header {
	return Header{Group: h.GetClusterId(), Member: h.GetMemberId(), Revision: Revision(h.GetRevision()), Term: h.GetRaftTerm()}
}

// each gives a list in another form; an empty one is nil.
func each[From, To any](list []From, one func(From) To) []To {
	if len(list) == 0 {
		return nil
	}
	out := make([]To, len(list))
	for i, v := range list {
		out[i] = one(v)
	}
	return out
}

func toTxn(r *apiv1.TxnResponse) TxnResult {
	return TxnResult{
		Succeeded: r.GetSucceeded(), Failed: int(r.GetFailed()), Reason: r.GetReason(), Forgotten: r.GetForgotten(),
		Steps: each(r.GetResults(), func(s *apiv1.TxnStepResult) StepResult {
			return StepResult{Count: int(s.GetCount()), Keys: each(s.GetKvs(), KeyValueOf)}
		}),
	}
}

// KeyValueOf gives a version of a key; what is not there is nil.
func KeyValueOf(kv *apiv1.KeyVal) *KeyValue {
	if kv == nil {
		return nil
	}
	return &KeyValue{
		Key: string(kv.GetKey()), Value: kv.GetValue(), CreateRevision: Revision(kv.GetCreateRevision()),
		ModRevision: Revision(kv.GetModRevision()), Version: kv.GetVersion(), Lease: LeaseID(kv.GetLease()),
	}
}

// KeepAlive renews leases of an owner.
func (o Ops) KeepAlive(ctx context.Context, owner string, ids []LeaseID) ([]Renewal, Header, error) {
	if len(ids) == 0 {
		return nil, Header{}, nil
	}
	req := &apiv1.LeaseKeepAliveRequest{Id: int64(ids[0]), Ids: each(ids[1:], func(id LeaseID) int64 { return int64(id) })}
	a, err := o.Execute(ctx, CommandOf(owner, req))
	if err != nil {
		return nil, Header{}, err
	}
	r := a.GetKeepAlive()
	out := make([]Renewal, len(ids))
	for i, id := range ids {
		out[i].ID, out[i].TTL = id, r.GetTtlMs()
		if i > 0 {
			out[i].TTL = r.GetTtlsMs()[i-1]
		}
		out[i].Published = PublicationOf(r, id)
	}
	return out, HeaderOf(r.GetHeader()), nil
}

// PublicationOf returns the publication under a lease in the answer to a keepalive; nil without one.
func PublicationOf(r *apiv1.LeaseKeepAliveResponse, id LeaseID) *Publication {
	for _, p := range r.GetPublished() {
		if LeaseID(p.GetLeaseId()) == id {
			return &Publication{Generation: p.GetGeneration(), Digest: Digest{Count: int(p.GetCount()), High: p.GetHigh(), Low: p.GetLow()}}
		}
	}
	return nil
}

// Leases returns one lease, or a page of leases.
func (o Ops) Leases(ctx context.Context, q LeaseQuery) ([]LeaseState, Header, error) {
	lease := func(l *apiv1.LeaseState) LeaseState {
		return LeaseState{
			Lease: Lease{ID: LeaseID(l.GetId()), TTL: l.GetGrantedTtlMs(), Owner: l.GetClientId(), Application: l.GetApplication(), Granted: l.GetGranted()},
			Tag:   l.GetTag(), Remaining: l.GetRemainingMs(), Keys: l.GetKeys(),
		}
	}
	if q.ID != 0 {
		a, err := o.Read(ctx, QuestionOf(q.VisibleTo, &apiv1.LeaseTimeToLiveRequest{Id: int64(q.ID)}))
		if err != nil {
			return nil, Header{}, err
		}
		return []LeaseState{lease(a.GetLeaseTimeToLive().GetLease())}, HeaderOf(a.GetLeaseTimeToLive().GetHeader()), nil
	}
	a, err := o.Read(ctx, QuestionOf(q.VisibleTo, &apiv1.ListLeasesRequest{After: q.After, Limit: LimitOf(q.Limit)}))
	return each(a.GetListLeases().GetLeases(), lease), HeaderOf(a.GetListLeases().GetHeader()), err
}

// LimitOf is the page size in a request. Zero lets the peer choose.
func LimitOf(n int) uint32 { return uint32(min(max(n, 0), 1<<20)) }

func toLock(l *apiv1.LockState) LockState {
	claim := func(c *apiv1.LockClaim) ClaimState {
		return ClaimState{
			Claim: Claim{
				Lock: l.GetName(), Holder: c.GetHolderId(), Mode: Mode(c.GetMode()), Permits: c.GetPermits(), Count: c.GetCount(), Metadata: c.GetMetadata(),
			},
			Key: c.GetKey(), Lease: LeaseID(c.GetLeaseId()), Token: Token(c.GetFencingToken()),
			Application: c.GetApplication(), ModRevision: Revision(c.GetModRevision()), Version: c.GetVersion(),
			Age: time.Duration(c.GetAgeMs()) * time.Millisecond,
		}
	}
	return LockState{Name: l.GetName(), Holding: each(l.GetHolding(), claim), Waiting: each(l.GetWaiting(), claim), LeftOut: int(l.GetLeftOut())}
}

// Locks returns one lock, or a page of locks. Of one lock, without a bound in bytes, it requests page after page.
func (o Ops) Locks(ctx context.Context, q LockQuery) ([]LockState, Header, error) {
	if err := cmp.Or(utf8Of("name", q.Name), utf8Of("prefix", q.Prefix), utf8Of("after", q.After)); err != nil {
		return nil, Header{}, fault.Wrap("coord.Locks", err)
	}
	if q.Name == "" {
		a, err := o.Read(ctx, QuestionOf("", &apiv1.ListLocksRequest{Prefix: q.Prefix, After: q.After, Limit: LimitOf(q.Limit)}))
		return each(a.GetListLocks().GetLocks(), toLock), HeaderOf(a.GetListLocks().GetHeader()), err
	}
	lock, header, err := o.lock(ctx, q)
	for err == nil && lock.LeftOut > 0 && q.Bytes <= 0 {
		q.AfterToken = lock.Last()
		var next LockState
		if next, header, err = o.lock(ctx, q); fault.KindOf(err) == fault.NotFound {
			lock.LeftOut, err = 0, nil // all claims have ended meanwhile
			break
		}
		lock.Holding, lock.Waiting, lock.LeftOut = append(lock.Holding, next.Holding...), append(lock.Waiting, next.Waiting...), next.LeftOut
	}
	if err != nil {
		return nil, Header{}, err
	}
	return []LockState{lock}, header, nil
}

// utf8Of refuses invalid UTF-8.
func utf8Of(field, s string) error {
	if !utf8.ValidString(s) {
		return fault.Invalidf(field, nil, "must be UTF-8")
	}
	return nil
}

func (o Ops) lock(ctx context.Context, q LockQuery) (LockState, Header, error) {
	a, err := o.Read(ctx, QuestionOf("", &apiv1.LockInfoRequest{Name: q.Name, AfterToken: int64(q.AfterToken)}))
	return toLock(a.GetLockInfo().GetLock()), HeaderOf(a.GetLockInfo().GetHeader()), err
}

// Range reads keys. Without a bound in bytes it requests page after page until the limit is reached, all at the
// revision of the first page.
func (o Ops) Range(ctx context.Context, q Query, c Consistency) (Page, Header, error) {
	page, header, err := o.page(ctx, q, c)
	for most := q.Limit; err == nil && q.Bytes <= 0 && page.Next != "" && (most <= 0 || len(page.Keys) < most); {
		q.From, q.At, q.Limit = page.Next, page.Revision, most-len(page.Keys)
		var next Page
		next, header, err = o.page(ctx, q, c)
		page.Keys, page.Next = append(page.Keys, next.Keys...), next.Next
	}
	if err != nil {
		return Page{}, Header{}, err
	}
	return page, header, nil
}

func (o Ops) page(ctx context.Context, q Query, c Consistency) (Page, Header, error) {
	from, to := q.Span.Bounds()
	resp, err := Range(ctx, o, &apiv1.RangeRequest{
		Key: from, RangeEnd: to, Revision: int64(q.At), Limit: LimitOf(q.Limit), Local: c == Local, From: []byte(q.From),
		Order: apiv1.TxnRange_Order(q.Order), Descending: q.Descending, KeysOnly: q.KeysOnly, CountOnly: q.CountOnly,
	})
	return Page{
		Revision: Revision(resp.GetRevision()), Keys: each(resp.GetKvs(), KeyValueOf), Next: string(resp.GetNext()), Count: int(resp.GetCount()),
	}, HeaderOf(resp.GetHeader()), err
}

// Events follows keys.
func (o Ops) Events(ctx context.Context, w Watch, send func(Batch, Header) error) error {
	if w.From < 0 {
		return fault.Wrap("coord.Watch", fault.Invalidf("from", w.From, "must be at least 0"))
	}
	return o.Watch(ctx, w.Request(), func(r *apiv1.WatchKeysResponse) error {
		return send(BatchOf(r, w.Span), HeaderOf(r.GetHeader()))
	})
}

// OpsOf returns the operations of a Service.
func OpsOf(s Service) Ops { return Ops{s} }
