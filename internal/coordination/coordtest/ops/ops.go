package ops

import (
	"cmp"
	"context"
	"time"
	"unicode/utf8"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Ops calls a Service with the operations of this package.
type Ops struct{ coord.Service }

// Do executes a command. A lock does not wait; see Acquire.
func (o Ops) Do(ctx context.Context, cmd Command) (Result, coord.Header, error) {
	m, err := Message(cmd)
	if err != nil {
		return Result{}, coord.Header{}, err
	}
	if r := m.GetLock(); r != nil {
		r.TimeoutMs = 0
	}
	return o.execute(ctx, m)
}

// Acquire executes a *Lock with Wait.
func (o Ops) Acquire(ctx context.Context, cmd Command, wait time.Duration) (Result, coord.Header, error) {
	m, err := Message(cmd)
	if err != nil {
		return Result{}, coord.Header{}, err
	}
	req := m.GetLock()
	if req == nil {
		return Result{}, coord.Header{}, fault.Wrap("coord.Acquire", fault.Invalidf("op", nil, "must be a lock that waits"))
	}
	req.TimeoutMs = coord.WaitOf(wait)
	return o.execute(ctx, m)
}

func (o Ops) execute(ctx context.Context, m *coordv1.Command) (Result, coord.Header, error) {
	a, err := o.Execute(ctx, m)
	if err != nil {
		return Result{}, coord.Header{}, err
	}
	r, h := ResultOf(a)
	r.Name(m)
	return r, h, nil
}

// Name gives the result of an unlock the claim that the command names.
func (r *Result) Name(m *coordv1.Command) {
	if u := m.GetUnlock(); u != nil && r.Err == nil {
		r.Lock.Key, r.Lock.Token = coord.LockKey(u.GetName(), coord.LeaseID(u.GetLeaseId())), coord.Token(u.GetFencingToken())
	}
}

// ResultOf returns an answer in the form of this package.
func ResultOf(a *coordv1.Result) (r Result, h coord.Header) {
	type locked interface {
		GetKey() string
		GetFencingToken() int64
		GetAcquired() bool
		GetCount() uint32
		GetFencingTokens() []int64
	}
	lock := func(l locked) LockResult {
		return LockResult{Key: l.GetKey(), Token: coord.Token(l.GetFencingToken()), Granted: l.GetAcquired(), Count: l.GetCount(),
			Tokens: each(l.GetFencingTokens(), func(t int64) coord.Token { return coord.Token(t) })}
	}
	var head interface{ GetHeader() *apiv1.Header }
	switch q := a.GetResponse().(type) {
	case *coordv1.Result_Lock:
		head, r.Lock = q.Lock, lock(q.Lock)
	case *coordv1.Result_TryLock:
		head, r.Lock = q.TryLock, lock(q.TryLock)
	case *coordv1.Result_Unlock:
		head, r.Lock = q.Unlock, LockResult{Count: q.Unlock.GetCount(), Granted: q.Unlock.GetCount() > 0}
	case *coordv1.Result_LeaseGrant:
		head, r.Lease, r.TTL = q.LeaseGrant, coord.LeaseID(q.LeaseGrant.GetId()), q.LeaseGrant.GetTtlMs()
	case *coordv1.Result_LeaseRevoke:
		head = q.LeaseRevoke
	case *coordv1.Result_Txn:
		head, r.Changed, r.Txn = q.Txn, int(q.Txn.GetChanged()), toTxn(q.Txn)
	case *coordv1.Result_PublishInstances:
		head, r.Changed = q.PublishInstances, int(q.PublishInstances.GetChanged())
		r.Foreign = each(q.PublishInstances.GetForeign(), func(key []byte) string { return string(key) })
		r.Since = each(q.PublishInstances.GetSince(), func(at int64) coord.Revision { return coord.Revision(at) })
	case *coordv1.Result_SetRequirement:
		head, r.Changed = q.SetRequirement, int(q.SetRequirement.GetChanged())
	case *coordv1.Result_DeleteRequirement:
		head, r.Changed = q.DeleteRequirement, 1
	case *coordv1.Result_OpenClient:
		head, r.Client = q.OpenClient, coord.ClientID(q.OpenClient.GetClient())
	case *coordv1.Result_Done:
		head, r.Changed, r.Lock.Granted = q.Done, int(q.Done.GetChanged()), q.Done.GetGranted()
		r.Ended = each(q.Done.GetEnded(), func(id int64) coord.LeaseID { return coord.LeaseID(id) })
	}
	if head != nil {
		h = headerOf(head.GetHeader())
	}
	r.Revision = h.Revision
	return r, h
}

// headerOf returns a header in the form of this package.
func headerOf(h *apiv1.Header) coord.Header {
	return coord.Header{Group: h.GetClusterId(), Member: h.GetMemberId(), Revision: coord.Revision(h.GetRevision()), Term: h.GetRaftTerm()}
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
		Steps: each(r.GetResults(), toStep),
	}
}

func toStep(s *apiv1.TxnStepResult) StepResult {
	return StepResult{Count: int(s.GetCount()), Keys: each(s.GetKvs(), coord.KeyValueOf), Succeeded: s.GetSucceeded(), Steps: each(s.GetResults(), toStep)}
}

// KeepAlive renews leases of an owner.
func (o Ops) KeepAlive(ctx context.Context, owner string, ids []coord.LeaseID) ([]Renewal, coord.Header, error) {
	if len(ids) == 0 {
		return nil, coord.Header{}, nil
	}
	req := &apiv1.LeaseKeepAliveRequest{Id: int64(ids[0]), Ids: each(ids[1:], func(id coord.LeaseID) int64 { return int64(id) })}
	a, err := o.Execute(ctx, coord.CommandOf(owner, req))
	if err != nil {
		return nil, coord.Header{}, err
	}
	r := a.GetKeepAlive()
	out := make([]Renewal, len(ids))
	for i, id := range ids {
		out[i].ID, out[i].TTL = id, r.GetTtlMs()
		if i > 0 {
			out[i].TTL = r.GetTtlsMs()[i-1]
		}
		out[i].Published = publicationOf(r, id)
	}
	return out, headerOf(r.GetHeader()), nil
}

// publicationOf returns the publication under a lease in the answer to a keepalive; nil without one.
func publicationOf(r *apiv1.LeaseKeepAliveResponse, id coord.LeaseID) *directory.Publication {
	for _, p := range r.GetPublished() {
		if coord.LeaseID(p.GetLeaseId()) == id {
			return &directory.Publication{Generation: p.GetGeneration(), Digest: directory.Digest{Count: int(p.GetCount()), High: p.GetHigh(), Low: p.GetLow()}}
		}
	}
	return nil
}

// Leases returns one lease, or a page of leases.
func (o Ops) Leases(ctx context.Context, q LeaseQuery) ([]LeaseState, coord.Header, error) {
	lease := func(l *apiv1.LeaseState) LeaseState {
		return LeaseState{
			Lease: coord.Lease{ID: coord.LeaseOf(l.GetId()), TTL: l.GetGrantedTtlMs(), Owner: l.GetClientId(), Application: l.GetApplication(), Granted: l.GetGranted()},
			Tag:   l.GetTag(), Remaining: l.GetRemainingMs(), Keys: l.GetKeys(),
		}
	}
	if q.ID != 0 {
		a, err := o.Read(ctx, coord.QuestionOf(q.VisibleTo, &apiv1.LeaseTimeToLiveRequest{Id: int64(q.ID)}))
		if err != nil {
			return nil, coord.Header{}, err
		}
		return []LeaseState{lease(a.GetLeaseTimeToLive().GetLease())}, headerOf(a.GetLeaseTimeToLive().GetHeader()), nil
	}
	a, err := o.Read(ctx, coord.QuestionOf(q.VisibleTo, &apiv1.ListLeasesRequest{After: q.After, Limit: limitOf(q.Limit)}))
	return each(a.GetListLeases().GetLeases(), lease), headerOf(a.GetListLeases().GetHeader()), err
}

// limitOf is the page size in a request. Zero lets the peer choose.
func limitOf(n int) uint32 { return uint32(min(max(n, 0), 1<<20)) }

func toLock(l *apiv1.LockState) LockState {
	claim := func(c *apiv1.LockClaim) ClaimState {
		return ClaimState{
			Claim: coord.Claim{
				Lock: l.GetName(), Holder: c.GetHolderId(), Mode: coord.Mode(c.GetMode()), Permits: c.GetPermits(), Count: c.GetCount(), Metadata: c.GetMetadata(),
			},
			Key: c.GetKey(), Lease: coord.LeaseOf(c.GetLeaseId()), Token: coord.Token(c.GetFencingToken()),
			Application: c.GetApplication(), ModRevision: coord.Revision(c.GetModRevision()), Version: c.GetVersion(),
			Age: time.Duration(c.GetAgeMs()) * time.Millisecond,
		}
	}
	return LockState{Name: l.GetName(), Holding: each(l.GetHolding(), claim), Waiting: each(l.GetWaiting(), claim), LeftOut: int(l.GetLeftOut())}
}

// Locks returns one lock, or a page of locks. Of one lock, without a bound in bytes, it requests page after page.
func (o Ops) Locks(ctx context.Context, q LockQuery) ([]LockState, coord.Header, error) {
	if err := cmp.Or(utf8Of("name", q.Name), utf8Of("prefix", q.Prefix), utf8Of("after", q.After)); err != nil {
		return nil, coord.Header{}, fault.Wrap("coord.Locks", err)
	}
	if q.Name == "" {
		a, err := o.Read(ctx, coord.QuestionOf("", &apiv1.ListLocksRequest{Prefix: q.Prefix, After: q.After, Limit: limitOf(q.Limit)}))
		return each(a.GetListLocks().GetLocks(), toLock), headerOf(a.GetListLocks().GetHeader()), err
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
		return nil, coord.Header{}, err
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

func (o Ops) lock(ctx context.Context, q LockQuery) (LockState, coord.Header, error) {
	a, err := o.Read(ctx, coord.QuestionOf("", &apiv1.LockInfoRequest{Name: q.Name, AfterToken: int64(q.AfterToken)}))
	return toLock(a.GetLockInfo().GetLock()), headerOf(a.GetLockInfo().GetHeader()), err
}

// Range reads keys. Without a bound in bytes it requests page after page until the limit is reached, all at the
// revision of the first page.
func (o Ops) Range(ctx context.Context, q Query, c Consistency) (Page, coord.Header, error) {
	page, header, err := o.page(ctx, q, c)
	for most := q.Limit; err == nil && q.Bytes <= 0 && page.Next != "" && (most <= 0 || len(page.Keys) < most); {
		q.From, q.At, q.Limit = page.Next, page.Revision, most-len(page.Keys)
		var next Page
		next, header, err = o.page(ctx, q, c)
		page.Keys, page.Next = append(page.Keys, next.Keys...), next.Next
	}
	if err != nil {
		return Page{}, coord.Header{}, err
	}
	return page, header, nil
}

func (o Ops) page(ctx context.Context, q Query, c Consistency) (Page, coord.Header, error) {
	from, to := q.Span.Bounds()
	resp, err := coord.Range(ctx, o, &apiv1.RangeRequest{
		Key: from, RangeEnd: to, Revision: int64(q.At), Limit: limitOf(q.Limit), Local: c == Local, From: []byte(q.From),
		Order: apiv1.TxnRange_Order(q.Order), Descending: q.Descending, KeysOnly: q.KeysOnly, CountOnly: q.CountOnly,
	})
	return Page{
		Revision: coord.Revision(resp.GetRevision()), Keys: each(resp.GetKvs(), coord.KeyValueOf), Next: string(resp.GetNext()), Count: int(resp.GetCount()),
	}, headerOf(resp.GetHeader()), err
}

// Events follows keys.
func (o Ops) Events(ctx context.Context, w coord.Watch, send func(coord.Batch, coord.Header) error) error {
	if w.From < 0 {
		return fault.Wrap("coord.Watch", fault.Invalidf("from", w.From, "must be at least 0"))
	}
	return o.Watch(ctx, w.Request(), func(r *apiv1.WatchKeysResponse) error {
		return send(w.Batch(r), headerOf(r.GetHeader()))
	})
}

// Of returns the operations of a Service.
func Of(s coord.Service) Ops { return Ops{s} }

// Consistency selects the freshness of an answer.
type Consistency uint8

const (
	// Linearizable answers include all changes answered before the question.
	Linearizable Consistency = iota
	// Local answers show the nearest member's state, which may be old.
	Local
)

// LeaseQuery asks for one lease by ID, or with ID 0 for at most Limit (0 means 1000) leases in the order of
// their grants, after the one granted at After.
type LeaseQuery struct {
	ID    coord.LeaseID
	After uint64 // Lease.Granted
	Limit int
	// VisibleTo restricts a list to the leases that an owner may use, or with Everybody to the leases of
	// applications. Empty does not restrict it.
	VisibleTo string
}

// LeaseState is the present state of a lease.
type LeaseState struct {
	coord.Lease
	Tag       string   // Lease.ID.Tag, also where the id is hidden
	Remaining int64    // time left on the leader's clock, milliseconds; 0 when it is about to end
	Keys      []string // bound keys, ascending; only for a query by ID
}

// LockState is the present state of a lock.
type LockState struct {
	Name    string
	Holding []ClaimState // by token
	Waiting []ClaimState // in order of their turn
	LeftOut int          // claims behind these that did not fit: name the lock, and the token of the last one in AfterToken
}

// Last returns the token of the last claim of the page; 0 without claims.
func (l *LockState) Last() coord.Token {
	all := l.Waiting
	if len(all) == 0 {
		all = l.Holding
	}
	if len(all) == 0 {
		return 0
	}
	return all[len(all)-1].Token
}

// ClaimState is the present state of a claim.
type ClaimState struct {
	coord.Claim
	Key         string
	Lease       coord.LeaseID
	Token       coord.Token // create revision of the key
	Application string      // of the lease
	ModRevision coord.Revision
	Version     int64
	Age         time.Duration // since the answering member saw the claim; 0 means unknown
}
