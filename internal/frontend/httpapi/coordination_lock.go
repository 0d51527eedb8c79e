package httpapi

import (
	"context"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// maxWait is the longest time to wait for a lock that is reckoned with; without one a request
// waits for as long as its client.
const maxWait = 30 * 24 * time.Hour

// lockName gives the name in the path of a lock: all that follows, to the letter. The router
// would clean it, and so make one lock of two names.
func lockName(r *http.Request) (string, bool) {
	return strings.CutPrefix(r.URL.Path, "/v1/coordination/locks/")
}

// lockRoute serves the paths of single locks.
func (s *Server) lockRoute(w http.ResponseWriter, r *http.Request, name string) {
	handlers := map[string]func(ctx context.Context, c call, name string) error{
		http.MethodPost: s.lock, http.MethodGet: s.getLock, http.MethodHead: s.getLock, http.MethodDelete: s.unlock,
	}
	h := handlers[r.Method]
	if h == nil {
		writeNotAllowed(w, r, "DELETE, GET, HEAD, POST")
		return
	}
	s.plane(func(ctx context.Context, c call) error {
		if name == "" {
			return fault.Invalidf("name", nil, "is missing")
		}
		return h(ctx, c, name)
	}).ServeHTTP(w, r)
}

// lockRequest is the body of a request for a lock.
type lockRequest struct {
	Lease     leaseID         `json:"lease_id"`
	Try       bool            `json:"try"`
	TimeoutMs int64           `json:"timeout_ms"` // longest wait; 0: as long as the client
	Shared    bool            `json:"shared"`
	Permits   uint32          `json:"permits"`
	Metadata  json.RawMessage `json:"metadata"` // a string, or an object, kept as its text
}

// op makes the operation that is asked for.
func (q *lockRequest) op(name string) (*coord.Lock, error) {
	o := &coord.Lock{Name: name, Lease: coord.LeaseID(q.Lease), Permits: q.Permits, Wait: !q.Try}
	switch {
	case q.Lease == 0:
		return nil, fault.Invalidf("lease_id", nil, "is missing")
	case q.TimeoutMs < 0:
		return nil, fault.Invalidf("timeout_ms", q.TimeoutMs, "must not be negative")
	case q.Try && q.TimeoutMs > 0:
		return nil, fault.Invalidf("timeout_ms", q.TimeoutMs, "does not go with try")
	case q.Shared && q.Permits > 0:
		return nil, fault.Invalidf("permits", q.Permits, "do not go with shared")
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

// lockAnswer is where a claim stands.
type lockAnswer struct {
	Header   headerBody  `json:"header"`
	Key      string      `json:"key"`
	Token    coord.Token `json:"fencing_token"` // 0 unless acquired
	Acquired bool        `json:"acquired"`
	Count    uint32      `json:"count"` // claims that the lease has
}

// lock takes a lock, and waits for it unless told otherwise.
func (s *Server) lock(ctx context.Context, c call, name string) error {
	var req lockRequest
	if err := decode(c, &req); err != nil {
		return err
	}
	op, err := req.op(name)
	if err != nil {
		return err
	}
	result, header, err := s.acquire(ctx, c, op, time.Duration(min(req.TimeoutMs, maxWait.Milliseconds()))*time.Millisecond)
	if err != nil {
		return err
	}
	answer := lockAnswer{header, result.Lock.Key, result.Lock.Token, result.Lock.Granted, result.Lock.Count}
	if !answer.Acquired {
		answer.Token = 0
	}
	writeJSON(c.w, http.StatusOK, answer)
	return nil
}

func (s *Server) acquire(ctx context.Context, c call, op *coord.Lock, wait time.Duration) (coord.Result, headerBody, error) {
	if !op.Wait {
		return s.do(ctx, c, op)
	}
	release, err := s.waits.take("waits for locks")
	if err != nil {
		return coord.Result{}, headerBody{}, err
	}
	defer release()
	// The request has arrived: the time to read it does not bound the wait.
	_ = http.NewResponseController(c.w).SetReadDeadline(time.Time{})
	if wait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, wait+answerWithin)
		defer cancel()
	}
	r, h, err := s.Coordination.Actor.Acquire(ctx, coord.Command{Owner: c.owner, Op: op}, wait)
	return r, fromHeader(h), err
}

// unlock gives back a claim that holds. Who has none that does is told of the conflict: it
// does not hold the lock, whatever it believes.
func (s *Server) unlock(ctx context.Context, c call, name string) error {
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
		return fault.Invalidf("fencing_token", input.Shown(values.Get("fencing_token")), "must be a number above 0")
	}
	_, _, err = s.do(ctx, c, &coord.Unlock{Name: name, Lease: coord.LeaseID(id), Token: coord.Token(token)})
	if fault.KindOf(err) == fault.NotFound {
		return fault.As("httpapi.unlock", fault.Conflict, err)
	}
	if err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// lockState is a lock as it stands: its first holder, all of them, and who waits, the next
// one first.
type lockState struct {
	Header  *headerBody  `json:"header,omitempty"`
	Name    string       `json:"name"`
	Holder  string       `json:"holder_id"`
	Token   coord.Token  `json:"fencing_token"`
	Holders []claimState `json:"holders"`
	Queue   []claimState `json:"queue"`
}

// claimState is a claim as it stands.
type claimState struct {
	Key         string         `json:"key"`
	Holder      string         `json:"holder_id"`
	Lease       leaseID        `json:"lease_id"`
	Token       coord.Token    `json:"fencing_token"`
	ModRevision coord.Revision `json:"mod_revision"`
	Version     int64          `json:"version"`
	Shared      bool           `json:"shared"`
	Permits     uint32         `json:"permits"`
	Count       uint32         `json:"count"`
	Metadata    string         `json:"metadata,omitempty"`
	Base64      []byte         `json:"metadata_base64,omitempty"` // instead, when it is no text
	AgeMs       int64          `json:"age_ms"`                    // 0: not known
}

func fromLock(l coord.LockState) lockState {
	s := lockState{Name: l.Name, Holders: fromClaims(l.Holding), Queue: fromClaims(l.Waiting)}
	if len(s.Holders) > 0 {
		s.Holder, s.Token = s.Holders[0].Holder, s.Holders[0].Token
	}
	return s
}

func fromClaims(claims []coord.ClaimState) []claimState {
	states := make([]claimState, len(claims))
	for i, c := range claims {
		states[i] = claimState{
			Key: c.Key, Holder: c.Holder, Lease: leaseID(c.Lease), Token: c.Token, ModRevision: c.ModRevision, Version: c.Version,
			Shared: c.Mode == coord.Shared, Permits: c.Permits, Count: c.Count, AgeMs: c.Age.Milliseconds(),
		}
		states[i].Metadata, states[i].Base64 = readable(c.Metadata)
	}
	return states
}

// readable gives bytes as text, or to be written in base64.
func readable(b []byte) (string, []byte) {
	if utf8.Valid(b) {
		return string(b), nil
	}
	return "", b
}

func (s *Server) locks(ctx context.Context, q coord.LockQuery) ([]lockState, headerBody, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	states, h, err := s.Coordination.Reader.Locks(ctx, q)
	out := make([]lockState, len(states))
	for i, l := range states {
		out[i] = fromLock(l)
	}
	return out, fromHeader(h), err
}

func (s *Server) getLock(ctx context.Context, c call, name string) error {
	states, h, err := s.locks(ctx, coord.LockQuery{Name: name})
	if err != nil {
		return err
	}
	states[0].Header = &h
	writeJSON(c.w, http.StatusOK, states[0])
	return nil
}

// listLocks gives a page of them; who wants all asks again after the last.
func (s *Server) listLocks(ctx context.Context, c call) error {
	values, err := input.Known(c.r.URL, "prefix", "after", "limit")
	if err != nil {
		return err
	}
	limit, err := input.Number(values, "limit")
	if err != nil {
		return err
	}
	q := coord.LockQuery{Prefix: values.Get("prefix"), After: values.Get("after"), Limit: int(min(limit, maxListed))}
	states, h, err := s.locks(ctx, q)
	if err != nil {
		return err
	}
	writeJSON(c.w, http.StatusOK, struct {
		Header headerBody  `json:"header"`
		Locks  []lockState `json:"locks"`
	}{h, states})
	return nil
}
