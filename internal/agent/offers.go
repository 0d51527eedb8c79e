package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/agent/health"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/pkg/records"
)

// Announcer announces records of this peer in the discovery plane.
type Announcer interface {
	// Announce registers a service for a caller, by whose share of the peer's services the registration may be refused, or replaces its
	// content.
	Announce(ctx context.Context, caller string, o records.Offer) error
	// Retract ends a service everywhere. Errors: NotFound.
	Retract(ctx context.Context, id string) error
	// OwnAll returns this peer's own records.
	OwnAll() []*records.Record
}

// Times of announcing.
const (
	remeasure = 5 * time.Minute  // interval of comparing announced and measured health
	again     = 15 * time.Second // after a failure
)

// offers announces the offers of instances while they are UP and withdraws them
// otherwise. One goroutine handles one instance at a time in its newest state,
// so that changes during its work do not pile up.
type offers struct {
	announcer Announcer
	measured  func(instance.Key) (health.Measured, bool)
	report    func(op string, err error)

	mu     sync.Mutex // guards the fields below
	dirty  map[instance.Key]bool
	failed map[instance.Key]error              // why the last attempt failed; without entries of ended instances
	latest map[instance.Key]*instance.Instance // instances with an offer
	said   map[instance.Key]announced          // announced and not withdrawn
	wake   chan struct{}
}

// announced is the announcement of an instance.
type announced struct {
	id     string // of the record
	health records.Health
	offer  string
}

func newOffers(a Announcer, measured func(instance.Key) (health.Measured, bool), report func(op string, err error)) *offers {
	return &offers{ // the first pass compares
		announcer: a, measured: measured, report: report,
		dirty: map[instance.Key]bool{}, failed: map[instance.Key]error{}, latest: map[instance.Key]*instance.Instance{}, said: map[instance.Key]announced{},
		wake: make(chan struct{}, 1),
	}
}

// sourceOf returns the instance of a record.
func sourceOf(r *records.Record) (instance.Key, bool) {
	parts := strings.SplitN(r.Service().GetMetadata().GetAttributes()[records.InstanceAttribute], "/", 3)
	if len(parts) != 3 {
		return instance.Key{}, false
	}
	return instance.Key{Namespace: parts[0], Service: parts[1], ID: parts[2]}, true
}

// parseOffer parses the offer of a registration and marks it with the instance.
func parseOffer(k instance.Key, text json.RawMessage) (records.Offer, error) {
	o, err := records.ParseOffer(text)
	if err != nil {
		return o, fault.In("offer", err)
	}
	if o.Metadata.Attributes == nil {
		o.Metadata.Attributes = map[string]string{}
	}
	o.Metadata.Attributes[records.InstanceAttribute] = k.String()
	return o, fault.In("offer", o.Validate())
}

// check rejects a malformed offer, and an offer with the id of a service
// announced for another instance or by other means.
func (o *offers) check(k instance.Key, text json.RawMessage) error {
	if len(text) == 0 {
		return nil
	}
	offer, err := parseOffer(k, text)
	if err != nil {
		return err
	}
	for _, r := range o.announcer.OwnAll() {
		if owner, ok := sourceOf(r); r.Name().ID == offer.ID && (!ok || owner != k) {
			return &fault.Error{Kind: fault.Exists, Field: "offer.id", Value: offer.ID, Err: errTaken}
		}
	}
	return nil
}

// put notes the state of an instance, nil for a removed one. It does not block.
func (o *offers) put(k instance.Key, i *instance.Instance) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if i != nil && len(i.Spec.Offer) > 0 {
		o.latest[k] = i
	} else {
		if o.latest[k] == nil && o.said[k].id == "" {
			return
		}
		delete(o.latest, k)
		delete(o.failed, k)
	}
	o.dirty[k] = true
	o.rouse()
}

// problem returns why the offer of an instance is not announced in its last state, or nil.
func (o *offers) problem(k instance.Key) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failed[k]
}

func (o *offers) rouse() {
	pause.Wake(o.wake)
}

// run announces until ctx ends. Announcements stay afterwards, because the
// process may return soon.
func (o *offers) run(ctx context.Context) {
	measure := time.NewTicker(remeasure)
	defer measure.Stop()
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.wake:
		case <-retry.C:
		case <-measure.C:
			o.mu.Lock()
			for k := range o.said {
				o.dirty[k] = true
			}
			o.mu.Unlock()
		}
		if !o.work(ctx) {
			retry.Reset(again)
		}
	}
}

// work handles all changed instances and reports whether all succeeded.
func (o *offers) work(ctx context.Context) bool {
	well := o.compare(ctx)
	o.mu.Lock()
	keys := slices.SortedFunc(maps.Keys(o.dirty), instance.Key.Compare)
	clear(o.dirty)
	o.mu.Unlock()
	for _, k := range keys {
		err := o.one(ctx, k)
		o.mu.Lock()
		if delete(o.failed, k); err != nil && ctx.Err() == nil {
			well = false
			o.dirty[k] = true
			if o.latest[k] != nil {
				o.failed[k] = err
			}
		}
		o.mu.Unlock()
		if err != nil && ctx.Err() == nil {
			o.report("agent.offers", err)
		}
	}
	return well
}

// compare finds the offers of this peer that no living instance has, whatever happened before, such as the end of an instance during
// its announcement or between two processes. It withdraws them, and reports whether all withdrawals succeeded.
func (o *offers) compare(ctx context.Context) bool {
	well := true
	for _, r := range o.announcer.OwnAll() {
		k, ok := sourceOf(r)
		if !ok {
			continue
		}
		id := r.Name().ID
		o.mu.Lock()
		i, last := o.latest[k], o.said[k]
		if last.id == "" {
			last.id = id // it may be another id's; then the next pass finds it
			o.said[k], o.dirty[k] = last, true
		}
		if i == nil {
			o.dirty[k] = true
		}
		o.mu.Unlock()
		if last.id == id {
			continue
		}
		if offer, err := parseOffer(k, offerOf(i)); err == nil && offer.ID == id {
			continue // announced a moment ago
		}
		if err := o.announcer.Retract(ctx, id); err != nil && fault.KindOf(err) != fault.NotFound && ctx.Err() == nil {
			o.report("agent.offers", err)
			well = false
		}
	}
	return well
}

// offerOf returns the offer of an instance; nil without one.
func offerOf(i *instance.Instance) json.RawMessage {
	if i == nil {
		return nil
	}
	return i.Spec.Offer
}

// one announces or withdraws the offer of one instance.
func (o *offers) one(ctx context.Context, k instance.Key) error {
	o.mu.Lock()
	i, last := o.latest[k], o.said[k]
	o.mu.Unlock()
	switch {
	case i != nil && i.Status == instance.StatusUp:
		return o.announce(ctx, i, last)
	case i != nil && (i.Status == instance.StatusUnknown || i.Status == instance.StatusStarting):
		return nil // no result yet: the announcement stays
	case last.id == "":
		return nil
	}
	return o.withdraw(ctx, k, last.id)
}

func (o *offers) withdraw(ctx context.Context, k instance.Key, id string) error {
	if err := o.announcer.Retract(ctx, id); err != nil && fault.KindOf(err) != fault.NotFound {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.said, k)
	return nil
}

// announce announces an instance, except for an equal announcement.
func (o *offers) announce(ctx context.Context, i *instance.Instance, last announced) error {
	offer, err := parseOffer(i.Key, i.Spec.Offer)
	if err != nil {
		return err
	}
	if last.id != "" && last.id != offer.ID {
		if err := o.withdraw(ctx, i.Key, last.id); err != nil {
			return err
		}
	}
	health := o.health(i.Key, offer.Health)
	if last.id == offer.ID && last.offer == string(i.Spec.Offer) && !differs(last.health, health) {
		return nil
	}
	offer.Health = &health
	if err := o.announcer.Announce(ctx, cmp.Or(i.Principal, nameless), offer); err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.said[i.Key] = announced{id: offer.ID, health: health, offer: string(i.Spec.Offer)}
	if o.latest[i.Key] != i { // it changed or ended meanwhile
		o.dirty[i.Key] = true
		o.rouse()
	}
	return nil
}

// nameless is the caller of all offers of instances without a principal.
const nameless = "instances"

// fewChecks say nothing of a share: without them, a restart would wash a bad hour away.
const fewChecks = 12

// health combines the measurements with the claims of the offer. An instance
// without measurements keeps its claims.
func (o *offers) health(k instance.Key, claimed *records.Health) records.Health {
	var h records.Health
	if claimed != nil {
		h = *claimed
	}
	h.Status = "HEALTHY"
	m, ok := o.measured(k)
	if !ok || m.Checks == 0 {
		return h
	}
	response := uint64(m.P50.Milliseconds())
	h.ResponseTimeMs, h.LastCheck = &response, &m.Last
	if m.Checks >= fewChecks {
		h.UptimePercent, h.ErrorRate = &m.UptimePercent, &m.ErrorRate
	}
	return h
}

// differs reports whether a health deserves a new version of a record: a point of uptime, a percent of errors, a fifth of
// the response time. An application's claims can lack any of these.
func differs(a, b records.Health) bool {
	much := 1.0
	if a.ResponseTimeMs != nil {
		much = max(much, float64(*a.ResponseTimeMs)/5)
	}
	return a.Status != b.Status || apart(a.UptimePercent, b.UptimePercent) >= 1 || apart(a.ErrorRate, b.ErrorRate) >= 100 ||
		apart(a.ResponseTimeMs, b.ResponseTimeMs) > much
}

// apart is the distance of two figures: infinite if only one is there.
func apart[T uint32 | uint64 | float64](a, b *T) float64 {
	switch {
	case a == nil && b == nil:
		return 0
	case a == nil || b == nil:
		return math.Inf(1)
	}
	return math.Abs(float64(*a) - float64(*b))
}
