package httpapi

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/fault"
)

// maxListed bounds one page of leases or locks.
const maxListed = 10_000

// leaseBody is a lease. Times are in seconds, rounded down, and beside them exactly.
type leaseBody struct {
	Header *headerBody `json:"header,omitempty"`
	ID     leaseID     `json:"id"`
	TTL    int64       `json:"ttl"`
	TTLMs  int64       `json:"ttl_ms"`
}

// leaseState is a lease as it stands.
type leaseState struct {
	leaseBody
	RemainingMs int64    `json:"remaining_ms"`
	Owner       string   `json:"client_id"`
	Keys        []string `json:"keys,omitempty"`
}

func fromLease(l coord.LeaseState) leaseState {
	return leaseState{
		leaseBody:   leaseBody{ID: leaseID(l.ID), TTL: l.TTL / 1000, TTLMs: l.TTL},
		RemainingMs: l.Remaining, Owner: l.Owner, Keys: l.Keys,
	}
}

func (s *Server) grantLease(ctx context.Context, c call) error {
	var req struct {
		ID    leaseID `json:"id"`
		TTL   int64   `json:"ttl"`
		TTLMs int64   `json:"ttl_ms"`
	}
	if err := decode(c, &req); err != nil {
		return err
	}
	switch {
	case req.TTL != 0 && req.TTLMs != 0:
		return fault.Invalidf("ttl_ms", req.TTLMs, "does not go with ttl")
	case req.TTLMs < 0:
		return fault.Invalidf("ttl_ms", req.TTLMs, "must be above 0")
	case req.TTLMs == 0 && req.TTL <= 0:
		return fault.Invalidf("ttl", req.TTL, "must be above 0")
	case req.TTLMs == 0:
		req.TTLMs = min(req.TTL, math.MaxInt64/1000) * 1000
	}
	r, h, err := s.do(ctx, c, &coord.LeaseGrant{ID: coord.LeaseID(req.ID), TTL: req.TTLMs})
	if err != nil {
		return err
	}
	c.w.Header().Set("Location", "/v1/coordination/leases/"+strconv.FormatInt(int64(r.Lease), 10))
	writeJSON(c.w, http.StatusCreated, leaseBody{&h, leaseID(r.Lease), r.TTL / 1000, r.TTL})
	return nil
}

func (s *Server) keepLease(ctx context.Context, c call) error {
	id, err := parseLeaseID(c.r.PathValue("id"))
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	renewals, header, err := s.Coordination.Actor.KeepAlive(ctx, c.owner, []coord.LeaseID{coord.LeaseID(id)})
	if err != nil {
		return err
	}
	ttl := renewals[0].TTL
	if ttl == 0 {
		return &fault.Error{Kind: fault.NotFound, Field: "lease", Err: errors.New("does not exist, or is another client's")}
	}
	h := fromHeader(header)
	writeJSON(c.w, http.StatusOK, leaseBody{&h, id, ttl / 1000, ttl})
	return nil
}

func (s *Server) getLease(ctx context.Context, c call) error {
	id, err := parseLeaseID(c.r.PathValue("id"))
	if err != nil {
		return err
	}
	states, h, err := s.leases(ctx, coord.LeaseQuery{ID: coord.LeaseID(id)})
	if err != nil {
		return err
	}
	states[0].Header = &h
	writeJSON(c.w, http.StatusOK, states[0])
	return nil
}

func (s *Server) leases(ctx context.Context, q coord.LeaseQuery) ([]leaseState, headerBody, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	states, h, err := s.Coordination.Reader.Leases(ctx, q)
	out := make([]leaseState, len(states))
	for i, l := range states {
		out[i] = fromLease(l)
	}
	return out, fromHeader(h), err
}

// listLeases gives a page of them; who wants all asks again after the last.
func (s *Server) listLeases(ctx context.Context, c call) error {
	values, err := input.Known(c.r.URL, "after", "limit")
	if err != nil {
		return err
	}
	after, err := input.Number(values, "after")
	if err != nil {
		return err
	}
	limit, err := input.Number(values, "limit")
	if err != nil {
		return err
	}
	states, h, err := s.leases(ctx, coord.LeaseQuery{After: coord.LeaseID(after), Limit: int(min(limit, maxListed))})
	if err != nil {
		return err
	}
	writeJSON(c.w, http.StatusOK, struct {
		Header headerBody   `json:"header"`
		Leases []leaseState `json:"leases"`
	}{h, states})
	return nil
}

func (s *Server) revokeLease(ctx context.Context, c call) error {
	id, err := parseLeaseID(c.r.PathValue("id"))
	if err != nil {
		return err
	}
	if _, _, err := s.do(ctx, c, &coord.LeaseRevoke{ID: coord.LeaseID(id)}); err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}
