package answer

import (
	"cmp"
	"slices"
	"time"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/principals"
	"github.com/blackhole/blackhole/internal/coordination/machine"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// Bounds of one answer.
const (
	standard  = 1000    // keys, locks or leases, without a limit in the request
	maxListed = 10_000  // the same, with one
	pageBytes = 2 << 20 // after which a page ends: most clients of gRPC take 4 MiB
)

// State is the state of a member that answers a question. The header of an answer is that of the state that was read: between a header and a later
// read the group may have moved on, and an answer must have nothing newer than its header.
type State struct {
	// View reads the machine, for a short time.
	View func(func(*machine.Machine)) coord.Header
	// Keys returns a copy of the present keys, for long reads.
	Keys func() (*machine.Keyspace, coord.Header)
	// Remaining is the time left of a lease, in milliseconds.
	Remaining func(coord.LeaseID) int64
	// Age is the time since this member saw a claim; 0: unknown.
	Age func(*coord.KeyValue) time.Duration
}

// IsLocal reports whether any member answers a question from its own state.
func IsLocal(q *coordv1.Question) bool { return q.GetRange().GetLocal() }

// AboutLeases reports whether only the leader answers a question: it knows the remaining times.
func AboutLeases(q *coordv1.Question) bool {
	switch q.GetRequest().(type) {
	case *coordv1.Question_LeaseTimeToLive, *coordv1.Question_ListLeases:
		return true
	}
	return false
}

// Read answers a question. Errors: Invalid, NotFound; as Keyspace.Range.
func (s *State) Read(q *coordv1.Question) (*coordv1.Answer, error) {
	switch r := q.GetRequest().(type) {
	case *coordv1.Question_LockInfo:
		return s.lockInfo(r.LockInfo)
	case *coordv1.Question_ListLocks:
		locks, at := s.locks(machine.LockQuery{Prefix: r.ListLocks.GetPrefix(), After: r.ListLocks.GetAfter(), Limit: limit(r.ListLocks.GetLimit())})
		return &coordv1.Answer{Response: &coordv1.Answer_ListLocks{ListLocks: &apiv1.ListLocksResponse{Header: Header(at), Locks: locks}}}, nil
	case *coordv1.Question_LeaseTimeToLive:
		return s.lease(coord.LeaseID(r.LeaseTimeToLive.GetId()))
	case *coordv1.Question_ListLeases:
		leases, at := s.leases(q.GetOwner(), r.ListLeases)
		return &coordv1.Answer{Response: &coordv1.Answer_ListLeases{ListLeases: &apiv1.ListLeasesResponse{Header: Header(at), Leases: leases}}}, nil
	case *coordv1.Question_Range:
		return s.keys(r.Range)
	}
	return nil, fault.Refused(fault.Unsupported, "request", "the question is not known to this peer")
}

// limit gives every list an end.
func limit(n uint32) int {
	if n == 0 {
		return standard
	}
	return int(min(n, maxListed))
}

func absent(field, text string) error { return fault.Refused(fault.NotFound, field, "%s", text) }

func (s *State) lockInfo(r *apiv1.LockInfoRequest) (*coordv1.Answer, error) {
	if r.GetName() == "" {
		return nil, fault.Invalidf("name", nil, "is missing: name the lock")
	}
	locks, at := s.locks(machine.LockQuery{Name: r.GetName(), AfterToken: coord.Token(r.GetAfterToken()), Limit: 1})
	if len(locks) == 0 {
		return nil, absent("name", "nobody claims that lock")
	}
	return &coordv1.Answer{Response: &coordv1.Answer_LockInfo{LockInfo: &apiv1.LockInfoResponse{Header: Header(at), Lock: locks[0]}}}, nil
}

func (s *State) locks(q machine.LockQuery) ([]*apiv1.LockState, coord.Header) {
	q.Bytes = pageBytes
	var infos []machine.LockInfo
	at := s.View(func(m *machine.Machine) { infos = machine.ListLocks(m, q) })
	return each(infos, func(info machine.LockInfo) *apiv1.LockState {
		claim := func(kv *coord.KeyValue) *apiv1.LockClaim {
			c, _ := kv.Claim()
			return &apiv1.LockClaim{
				Key: kv.Key, HolderId: c.Holder, LeaseId: int64(kv.Lease), FencingToken: int64(kv.Token()), ModRevision: int64(kv.ModRevision),
				Version: kv.Version, Metadata: c.Metadata, Application: info.Applications[kv.Lease],
				Mode: apiv1.ShareMode(c.Mode), Permits: c.Permits, Count: c.Count, AgeMs: s.Age(kv).Milliseconds(),
			}
		}
		return &apiv1.LockState{Name: info.Name, Holding: each(info.Holding, claim), Waiting: each(info.Waiting, claim), LeftOut: uint32(info.LeftOut)}
	}), at
}

func (s *State) lease(id coord.LeaseID) (*coordv1.Answer, error) {
	if id == 0 {
		return nil, fault.Invalidf("id", 0, "is missing")
	}
	var lease coord.Lease
	var found bool
	var keys []string
	at := s.View(func(m *machine.Machine) {
		if lease, found = m.Lease(id); found {
			keys = m.LeaseKeys(id)
		}
	})
	if !found {
		return nil, absent("lease", "there is no such lease")
	}
	state := s.leaseState(lease)
	state.Keys = keys
	return &coordv1.Answer{Response: &coordv1.Answer_LeaseTimeToLive{LeaseTimeToLive: &apiv1.LeaseTimeToLiveResponse{Header: Header(at), Lease: state}}}, nil
}

// leases lists the leases that an owner may use, in the order of their grants.
func (s *State) leases(owner string, r *apiv1.ListLeasesRequest) ([]*apiv1.LeaseState, coord.Header) {
	var all []coord.Lease
	at := s.View(func(m *machine.Machine) { all = m.Leases() })
	all = slices.DeleteFunc(all, func(l coord.Lease) bool { return l.Granted <= r.GetAfter() || !principals.Shows(owner, l.Owner) })
	slices.SortFunc(all, func(a, b coord.Lease) int { return cmp.Compare(a.Granted, b.Granted) })
	return each(all[:min(len(all), limit(r.GetLimit()))], s.leaseState), at
}

func (s *State) leaseState(l coord.Lease) *apiv1.LeaseState {
	return &apiv1.LeaseState{
		Id: int64(l.ID), GrantedTtlMs: l.TTL, RemainingMs: s.Remaining(l.ID), ClientId: l.Owner,
		Application: l.Application, Tag: l.ID.Tag(), Granted: l.Granted,
	}
}

func (s *State) keys(r *apiv1.RangeRequest) (*coordv1.Answer, error) {
	span, err := spanOf(r)
	if err != nil {
		return nil, err
	}
	read := &struct {
		machine.Query
		page machine.Page
		err  error
	}{Query: machine.Query{
		Span: span, At: coord.Revision(r.GetRevision()), Limit: limit(r.GetLimit()), Bytes: pageBytes, From: string(r.GetFrom()),
		Order:      r.GetOrder(),
		Descending: r.GetDescending(), KeysOnly: r.GetKeysOnly(), CountOnly: r.GetCountOnly(),
	}}
	var at coord.Header
	if read.Scans() { // long, so beside the member
		var keys *machine.Keyspace
		keys, at = s.Keys()
		read.page, read.err = keys.Range(read.Query)
	} else {
		at = s.View(func(m *machine.Machine) { read.page, read.err = m.Range(read.Query) })
	}
	if read.err != nil {
		return nil, read.err
	}
	page := &read.page
	out := &struct {
		all  coordv1.Answer
		one  coordv1.Answer_Range
		keys apiv1.RangeResponse
	}{keys: apiv1.RangeResponse{
		Header: Header(at), Kvs: machine.Messages(page.Keys), Next: []byte(page.Next), Revision: int64(page.Revision), Count: int64(page.Count),
	}}
	out.all.Response, out.one.Range = &out.one, &out.keys
	return &out.all, nil
}

func spanOf(r *apiv1.RangeRequest) (coord.Span, error) {
	switch {
	case r.GetPrefix() && len(r.GetRangeEnd()) > 0:
		return coord.Span{}, fault.Invalidf("range_end", nil, "does not go with prefix")
	case r.GetPrefix():
		return coord.Under(string(r.GetKey())), nil
	case len(r.GetRangeEnd()) > 0:
		return coord.SpanOf(r.GetKey(), r.GetRangeEnd()), nil
	case len(r.GetKey()) == 0:
		return coord.Span{}, fault.Invalidf("key", nil, "is missing")
	}
	return coord.Exactly(string(r.GetKey())), nil
}

// Watch returns the watch that a request asks for.
func Watch(r *apiv1.WatchKeysRequest) coord.Watch {
	w := coord.Watch{Span: coord.Exactly(r.GetKey()), From: coord.Revision(r.GetStartRevision()), Prev: r.GetPrevKv()}
	if r.GetPrefix() {
		w.Span = coord.Under(r.GetKey())
	}
	return w
}
