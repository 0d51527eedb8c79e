package truth

import (
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/platform/probe"
	queries "github.com/blackhole/blackhole/internal/query"
	"github.com/blackhole/blackhole/pkg/records"
)

// An offer may claim a domain. Whether the domain names the provider's peer is checked, shared and drawn like an endpoint: the domain is
// one more thing of the provider with a target. All its offers with that domain share one check.

// domainOf returns the name of what is known of an offer's domain, false without one. No offer has that id: ids have no colon.
func domainOf(r *records.Record) (records.Name, bool) {
	d := r.Domain()
	return records.Name{Provider: r.Name().Provider, ID: domainID + d}, d != ""
}

const domainID = "domain:" // begins the id of a domain

// domainTarget is the target of a domain that may be measured. The provider's peer measures its own too, to know what others find.
func domainTarget(n records.Name) (probe.Target, string) {
	if t, ok := probe.Domain(strings.TrimPrefix(n.ID, domainID), n.Provider.String()); ok {
		return t, canMeasure
	}
	return probe.Target{}, unknown
}

// NotChecked says why an offer is no result for a question that asks for a checked domain; "" if it is one. Only a check of this peer
// counts, because a provider may choose an id whose witnesses are its own.
func (x *Checks) NotChecked(plan *queries.Plan, r *records.Record) string {
	if plan.Domain() == "" {
		return ""
	}
	x.seek(r)
	x.mu.Lock()
	m := x.domainRow(r, x.Now())
	x.mu.Unlock()
	switch {
	case m == nil || m.Peers > 0:
		return NotYet
	case m.State == records.Checked:
		return ""
	case m.Detail == "":
		return NotYet
	}
	return "domain: claimed; " + m.Detail
}

const (
	// NotYet is the reason to ask again.
	NotYet = "domain: claimed, not checked yet"

	proofAgain = 10 * time.Minute // between own checks of a domain that questions ask for
)

// seek has this peer check a domain itself.
func (x *Checks) seek(r *records.Record) {
	n, ok := domainOf(r)
	if !ok || x.Prober == nil {
		return
	}
	now := x.Now()
	x.mu.Lock()
	defer x.mu.Unlock()
	e := x.entry(n, r, now)
	if now.Sub(e.sought) >= endpointAsked && !e.due.IsZero() {
		e.due = now
		x.awake()
	}
	e.sought = now
}

// permitted returns the target of a check: without the consent of the host the part that anybody would ask for. A host
// consents as a domain does, by naming the provider's peer; a claimed domain speaks for the hosts below it. TLS then
// shows that the address is the name's: without it, a name of the provider's could lead to anybody's address. Only a
// check of this peer counts: nobody's word makes it follow a stranger's link. The caller holds x.mu.
func (x *Checks) permitted(r *records.Record, t probe.Target) (_ probe.Target, whole bool) {
	if t.Withheld() == "" {
		return t, true
	}
	speaks := strings.TrimSuffix(t.Host, ".")
	if t.Within(r.Domain()) {
		speaks = r.Domain()
	}
	n, now := records.Name{Provider: r.Name().Provider, ID: domainID + speaks}, x.Now()
	if _, state := domainTarget(n); state != canMeasure || !t.Secure || x.Prober == nil {
		return t.Bare(), false
	}
	e := x.entry(n, r, now)
	if !e.due.IsZero() && now.Sub(e.last.CheckedAt) >= proofAgain {
		e.duty = true
		x.awake()
	}
	if e.stands(now) && e.last.State == records.Answers {
		return t, true
	}
	return t.Bare(), false
}

// private reports whether only this peer wants to know whether a host names the provider: no offer claims it as a
// domain.
func (e *endpoint) private() bool {
	claimed, _ := domainOf(e.record)
	return e.domain && e.name != claimed
}

// Partial says what checks leave out of the endpoint of an own offer; "" for nothing.
func (x *Checks) Partial(r *records.Record) string {
	t, state := targetOf(r)
	if state != canMeasure {
		return ""
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if _, whole := x.permitted(r, t); whole {
		return ""
	}
	return t.Partial(r.Name().Provider.String())
}

// proof combines what this peer found of a domain with what others found. An own check decides. Without one, others prove the claim as
// a quorum of which nobody found the opposite.
func (x *Checks) proof(e *endpoint, now time.Time) (m records.Measured, unproven bool) {
	if e.stands(now) {
		return e.last, e.last.State != records.Answers
	}
	m, failed, _ := e.others(now)
	return m, failed > 0 || !x.agree(e, true, quorum, now)
}

// domainRow says whether the domain that an offer claims is checked; nil without a claim. The caller holds x.mu.
func (x *Checks) domainRow(r *records.Record, now time.Time) *records.Measured {
	n, ok := domainOf(r)
	if !ok {
		return nil
	}
	e, ok := x.known.Peek(n)
	if !ok {
		return &records.Measured{State: records.Claimed}
	}
	m, unproven := x.verdict(e, now)
	switch {
	case !unproven:
		m.State = records.Checked
		return &m
	case m.State == "" || m.State == records.Answers: // unknown, or fewer than a quorum say so
		return &records.Measured{State: records.Claimed}
	}
	return &records.Measured{State: records.Claimed, CheckedAt: m.CheckedAt, Peers: m.Peers, Detail: worded(m)}
}
