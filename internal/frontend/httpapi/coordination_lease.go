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

// maxListed bounds a page of leases or locks.
const maxListed = 10_000

// leaseBody is a lease. TTL is in seconds, rounded down, and TTLMs is exact.
type leaseBody struct {
	Header *coord.Header `json:"header,omitempty"`
	ID     leaseID       `json:"id"`
	TTL    int64         `json:"ttl"`
	TTLMs  int64         `json:"ttl_ms"`
}

// leaseState is the current state of a lease.
type leaseState struct {
	leaseBody
	Tag         string   `json:"tag"` // public name
	RemainingMs int64    `json:"remaining_ms"`
	Owner       string   `json:"client_id"`
	Application string   `json:"application,omitempty"`
	Granted     uint64   `json:"granted"` // place in the list
	Keys        []string `json:"keys,omitempty"`
}

func fromLease(l coord.LeaseState) leaseState {
	return leaseState{
		leaseBody: leaseBody{ID: leaseID(l.ID), TTL: l.TTL / 1000, TTLMs: l.TTL},
		Tag:       l.Tag, RemainingMs: l.Remaining, Owner: l.Owner, Application: l.Application, Granted: l.Granted, Keys: l.Keys,
	}
}

func (p *coordinationAPI) grantLease(ctx context.Context, c call) error {
	var req struct {
		ID    leaseID `json:"id"`
		TTL   int64   `json:"ttl"`
		TTLMs int64   `json:"ttl_ms"`

		Application string `json:"application"`
	}
	if err := decode(c, &req); err != nil {
		return err
	}
	switch {
	case req.TTL != 0 && req.TTLMs != 0:
		return fault.Invalidf("ttl_ms", req.TTLMs, "conflicts with ttl: give one of the two")
	case req.TTLMs < 0:
		return fault.Invalidf("ttl_ms", req.TTLMs, "must be above 0")
	case req.TTLMs == 0 && req.TTL <= 0:
		return fault.Invalidf("ttl", req.TTL, "must be above 0")
	case req.TTLMs == 0:
		req.TTLMs = min(req.TTL, math.MaxInt64/1000) * 1000
	}
	r, h, err := p.do(ctx, c, &coord.LeaseGrant{ID: coord.LeaseID(req.ID), TTL: req.TTLMs, Application: req.Application})
	if err != nil {
		return err
	}
	c.w.Header().Set("Location", "/v1/coordination/leases/"+strconv.FormatInt(int64(r.Lease), 10))
	return writeJSON(c.w, http.StatusCreated, leaseBody{&h, leaseID(r.Lease), r.TTL / 1000, r.TTL})
}

func (p *coordinationAPI) keepLease(ctx context.Context, c call) error {
	id, err := parseLeaseID(c.r.PathValue("id"))
	if err != nil {
		return err
	}
	renewals, header, err := p.Writer.KeepAlive(ctx, c.owner, []coord.LeaseID{coord.LeaseID(id)})
	if err != nil {
		return err
	}
	ttl := renewals[0].TTL
	if ttl == 0 {
		return &fault.Error{Kind: fault.NotFound, Field: "lease", Err: errors.New("is unknown or belongs to another client: grant a new lease")}
	}
	h := header
	return writeJSON(c.w, http.StatusOK, leaseBody{&h, id, ttl / 1000, ttl})
}

func (p *coordinationAPI) getLease(ctx context.Context, c call) error {
	id, err := parseLeaseID(c.r.PathValue("id"))
	if err != nil {
		return err
	}
	states, h, err := p.leases(ctx, coord.LeaseQuery{ID: coord.LeaseID(id)})
	if err != nil {
		return err
	}
	states[0].Header = &h
	return writeJSON(c.w, http.StatusOK, states[0])
}

func (p *coordinationAPI) leases(ctx context.Context, q coord.LeaseQuery) ([]leaseState, coord.Header, error) {
	states, h, err := p.Reader.Leases(ctx, q)
	out := make([]leaseState, len(states))
	for i, l := range states {
		out[i] = fromLease(l)
	}
	return out, h, err
}

// listLeases returns a page. A client continues with the granted of the last lease in after.
func (p *coordinationAPI) listLeases(ctx context.Context, c call) error {
	values, err := input.Known(c.r.URL, "after", "limit")
	if err != nil {
		return err
	}
	after, err := input.Number(values, "after")
	if err != nil {
		return err
	}
	limit, err := readPage(values)
	if err != nil {
		return err
	}
	states, h, err := p.leases(ctx, coord.LeaseQuery{After: uint64(after), Limit: limit})
	if err != nil {
		return err
	}
	return writeJSON(c.w, http.StatusOK, struct {
		Header coord.Header `json:"header"`
		Leases []leaseState `json:"leases"`
	}{h, states})
}

func (p *coordinationAPI) revokeLease(ctx context.Context, c call) error {
	id, err := parseLeaseID(c.r.PathValue("id"))
	if err != nil {
		return err
	}
	if _, _, err := p.do(ctx, c, &coord.LeaseRevoke{ID: coord.LeaseID(id)}); err != nil {
		return err
	}
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}
