package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// maxWait caps timeout_ms.
const maxWait = 30 * 24 * time.Hour

// lockRequest is the body of a request for a lock.
type lockRequest struct {
	Lease     leaseID         `json:"lease_id"`
	TimeoutMs int64           `json:"timeout_ms"` // longest wait; 0 does not wait, -1 waits as long as the client
	Shared    bool            `json:"shared"`
	Permits   uint32          `json:"permits"`
	Metadata  json.RawMessage `json:"metadata"` // a string, or an object that is stored as text
}

// op returns the requested operation.
func (q *lockRequest) op(name string) (*coord.Lock, error) {
	o := &coord.Lock{Name: name, Lease: coord.LeaseID(q.Lease), Permits: q.Permits, Wait: q.TimeoutMs != 0}
	switch {
	case q.Lease == 0:
		return nil, fault.Invalidf("lease_id", nil, "is missing: name the lease that owns the claim")
	case q.TimeoutMs < -1:
		return nil, fault.Invalidf("timeout_ms", q.TimeoutMs, "must be -1 (no limit), 0 (no wait) or more")
	case q.Shared && q.Permits > 0:
		return nil, fault.Invalidf("permits", q.Permits, "conflicts with shared: choose one mode")
	case q.Shared:
		o.Mode = coord.Shared
	case q.Permits > 0:
		o.Mode = coord.Permit
	}
	var plain string
	switch {
	case len(q.Metadata) == 0 || string(q.Metadata) == "null":
	case json.Unmarshal(q.Metadata, &plain) == nil:
		o.Metadata = []byte(plain)
	case q.Metadata[0] == '{':
		o.Metadata = q.Metadata
	default:
		return nil, fault.Invalidf("metadata", nil, "must be a string or an object")
	}
	return o, nil
}

// lockAnswer is the state of a claim.
type lockAnswer struct {
	Header   coord.Header `json:"header"`
	Key      string       `json:"key"`
	Token    coord.Token  `json:"fencing_token"` // zero unless acquired
	Acquired bool         `json:"acquired"`
	Count    uint32       `json:"count"` // claims of the lease on the lock
}

// wait returns the longest wait.
func (q *lockRequest) wait() time.Duration {
	if q.TimeoutMs < 0 {
		return coord.NoLimit
	}
	return time.Duration(min(q.TimeoutMs, maxWait.Milliseconds())) * time.Millisecond
}

// lock acquires a lock and waits for it as long as the request says.
func (p *coordinationAPI) lock(ctx context.Context, c call) error {
	var req lockRequest
	if err := decode(c, &req); err != nil {
		return err
	}
	op, err := req.op(c.r.PathValue("name"))
	if err != nil {
		return err
	}
	result, header, err := p.acquire(ctx, c, op, req.wait())
	if err != nil {
		return err
	}
	answer := lockAnswer{header, result.Lock.Key, result.Lock.Token, result.Lock.Granted, result.Lock.Count}
	if !answer.Acquired {
		answer.Token = 0
	}
	return writeJSON(c.w, http.StatusOK, answer)
}

func (p *coordinationAPI) acquire(ctx context.Context, c call, op *coord.Lock, wait time.Duration) (coord.Result, coord.Header, error) {
	if !op.Wait {
		ctx, cancel := context.WithTimeout(ctx, answerWithin)
		defer cancel()
		return p.do(ctx, c, op)
	}
	release, err := p.waits.Take(ctx, "httpapi.lock")
	if err != nil {
		return coord.Result{}, coord.Header{}, err
	}
	defer release()
	// The request has arrived, so the bound on reading it must not end the wait.
	_ = http.NewResponseController(c.w).SetReadDeadline(time.Time{})
	if wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wait+answerWithin)
		defer cancel()
	}
	return p.Writer.Acquire(ctx, coord.Command{Owner: c.owner, Op: op}, wait)
}

// unlock releases a claim that holds the lock. Without such a claim it fails with Conflict,
// because the client wrongly believes that it holds the lock.
func (p *coordinationAPI) unlock(ctx context.Context, c call) error {
	values, err := input.Known(c.r.URL, "lease_id", "fencing_token")
	if err != nil {
		return err
	}
	id, err := parseLeaseID(values.Get("lease_id"))
	if err != nil {
		return err
	}
	token, err := strconv.ParseInt(values.Get("fencing_token"), 10, 64)
	if err != nil || token <= 0 {
		return fault.Invalidf("fencing_token", input.Quote(values.Get("fencing_token")), "must be a number above 0")
	}
	_, _, err = p.do(ctx, c, &coord.Unlock{Name: c.r.PathValue("name"), Lease: coord.LeaseID(id), Token: coord.Token(token)})
	if fault.KindOf(err) == fault.NotFound {
		return fault.As("httpapi.unlock", fault.Conflict, err)
	}
	if err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// lockState is the state of a lock: the first holder, all holders, and the queue in order.
type lockState struct {
	Header  *coord.Header `json:"header,omitempty"`
	Name    string        `json:"name"`
	Holder  string        `json:"holder_id"`
	Token   coord.Token   `json:"fencing_token"`
	Holders []claimState  `json:"holders"`
	Queue   []claimState  `json:"queue"`
	LeftOut int           `json:"left_out,omitempty"` // claims behind these that did not fit
}

// claimState is the state of a claim.
type claimState struct {
	Key         string         `json:"key"`
	Holder      string         `json:"holder_id"`
	Application string         `json:"application,omitempty"`
	Lease       leaseID        `json:"lease_id"`
	Token       coord.Token    `json:"fencing_token"`
	ModRevision coord.Revision `json:"mod_revision"`
	Version     int64          `json:"version"`
	Shared      bool           `json:"shared"`
	Permits     uint32         `json:"permits"`
	Count       uint32         `json:"count"`
	Metadata    string         `json:"metadata,omitempty"`
	Base64      []byte         `json:"metadata_base64,omitempty"` // instead of metadata for bytes that are not text
	AgeMs       int64          `json:"age_ms"`                    // zero if unknown
}

func fromLock(l coord.LockState) lockState {
	s := lockState{Name: l.Name, Holders: fromClaims(l.Holding), Queue: fromClaims(l.Waiting), LeftOut: l.LeftOut}
	if len(s.Holders) > 0 {
		s.Holder, s.Token = s.Holders[0].Holder, s.Holders[0].Token
	}
	return s
}

func fromClaims(claims []coord.ClaimState) []claimState {
	states := make([]claimState, len(claims))
	for i, c := range claims {
		states[i] = claimState{
			Key: c.Key, Holder: c.Holder, Application: c.Application, Lease: leaseID(c.Lease), Token: c.Token, ModRevision: c.ModRevision, Version: c.Version,
			Shared: c.Mode == coord.Shared, Permits: c.Permits, Count: c.Count, AgeMs: c.Age.Milliseconds(),
		}
		states[i].Metadata, states[i].Base64 = readable(c.Metadata)
	}
	return states
}

// readable returns bytes as text or, if they are not UTF-8, for base64.
func readable(b []byte) (string, []byte) {
	if utf8.Valid(b) {
		return string(b), nil
	}
	return "", b
}

func (p *coordinationAPI) locks(ctx context.Context, q coord.LockQuery) ([]lockState, coord.Header, error) {
	q.Bytes = maxPageBytes
	states, h, err := p.Reader.Locks(ctx, q)
	out := make([]lockState, len(states))
	for i, l := range states {
		out[i] = fromLock(l)
	}
	return out, h, err
}

// getLock returns a lock. A client continues with the token of the last claim in after_token.
func (p *coordinationAPI) getLock(ctx context.Context, c call) error {
	values, err := input.Known(c.r.URL, "after_token")
	if err != nil {
		return err
	}
	after, err := input.Number(values, "after_token")
	if err != nil {
		return err
	}
	states, h, err := p.locks(ctx, coord.LockQuery{Name: c.r.PathValue("name"), AfterToken: coord.Token(after)})
	if err != nil {
		return err
	}
	states[0].Header = &h
	return writeJSON(c.w, http.StatusOK, states[0])
}

// listLocks returns a page. A client continues with the name of the last lock in after.
func (p *coordinationAPI) listLocks(ctx context.Context, c call) error {
	values, err := input.Known(c.r.URL, "prefix", "after", "limit")
	if err != nil {
		return err
	}
	limit, err := readPage(values)
	if err != nil {
		return err
	}
	q := coord.LockQuery{Prefix: values.Get("prefix"), After: values.Get("after"), Limit: limit}
	states, h, err := p.locks(ctx, q)
	if err != nil {
		return err
	}
	return writeJSON(c.w, http.StatusOK, struct {
		Header coord.Header `json:"header"`
		Locks  []lockState  `json:"locks"`
	}{h, states})
}
