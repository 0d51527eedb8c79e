package discovery

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/discovery/offers"
	"github.com/blackhole/blackhole/internal/platform/condition"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

const announceBatch = 1000 // due records of one turn of the refresh loop

var errNoSuchService = errors.New("this peer has no offer with this id")

// Register announces a new service. Errors: Invalid with the field, Exists, LimitReached. An error changes
// nothing.
func (s *Service) Register(ctx context.Context, o records.Offer) (records.Receipt, error) {
	return s.registerFor(ctx, s.operator(ctx), o)
}

// operator returns the caller of ctx as an operator of this peer.
func (s *Service) operator(ctx context.Context) offers.Caller {
	return offers.Caller{Name: s.caller(ctx), Operator: true}
}

func (s *Service) registerFor(ctx context.Context, caller offers.Caller, o records.Offer) (records.Receipt, error) {
	out, err := s.registerBatch(ctx, caller, []records.Offer{o})
	if err != nil {
		return records.Receipt{}, err
	}
	return out[0].Receipt, out[0].Err
}

// RegisterBatch announces several services, each with its own outcome, in order. The call itself fails only for
// zero services or more than MaxBatch.
func (s *Service) RegisterBatch(ctx context.Context, offers []records.Offer) ([]discovery.Outcome, error) {
	return s.registerBatch(ctx, s.operator(ctx), offers)
}

func (s *Service) registerBatch(ctx context.Context, caller offers.Caller, offers []records.Offer) ([]discovery.Outcome, error) {
	const op = "discovery.Register"
	if len(offers) == 0 || len(offers) > discovery.MaxBatch {
		return nil, fault.Wrap(op, fault.Invalidf("records", len(offers), "must be 1 to %d", discovery.MaxBatch))
	}
	recs, errs := s.Registry.RegisterFor(caller, offers, s.Now())
	for i, r := range recs {
		if errs[i] != nil {
			s.Metrics.Failed(op, errs[i])
		} else {
			s.Metrics.Registered(r.Type(), 1)
		}
	}
	receipts, err := discovery.Accepted(recs, errs, func(accepted []*records.Record) ([]records.Receipt, error) {
		return s.announce(ctx, accepted), nil
	})
	out := make([]discovery.Outcome, len(offers))
	for i, receipt := range receipts {
		out[i] = discovery.Outcome{Receipt: receipt, Err: fault.Wrap(op, errs[i])}
	}
	return out, err
}

// Announce registers the offer of an instance for a caller, by whose share of the peer's services the registration may be refused, or
// replaces its content.
func (s *Service) Announce(ctx context.Context, caller string, o records.Offer) error {
	_, err := s.update(ctx, o)
	if fault.KindOf(err) == fault.NotFound {
		_, err = s.registerFor(ctx, offers.Caller{Name: caller}, o)
	}
	return err
}

// Retract withdraws the offer of an instance. Error: NotFound.
func (s *Service) Retract(ctx context.Context, id string) error {
	_, err := s.withdraw(ctx, id)
	return err
}

// ofInstance refuses to change what Announce keeps: the next check of the instance would undo the change.
func (s *Service) ofInstance(op, id string) error {
	r, known := s.Registry.Get(id)
	if !known || !s.instances {
		return nil
	}
	k := strings.SplitN(r.Service().GetMetadata().GetAttributes()[records.InstanceAttribute], "/", 3)
	if len(k) != 3 {
		return nil
	}
	return fault.Wrap(op, fault.Refused(fault.Conflict, "id",
		"is the offer of an instance, whose next check would announce it again: change or deregister instance %s of service %s", k[2], k[1]))
}

// Update replaces the content of an own service and keeps its created_at. Errors: Invalid, NotFound, Conflict for the offer of an
// instance. An error changes nothing.
func (s *Service) Update(ctx context.Context, o records.Offer) (records.Receipt, error) {
	if err := s.ofInstance("discovery.Update", o.ID); err != nil {
		return records.Receipt{}, err
	}
	return s.update(ctx, o)
}

func (s *Service) update(ctx context.Context, o records.Offer) (records.Receipt, error) {
	const op = "discovery.Update"
	before, _ := s.Registry.Get(o.ID)
	r, err := s.Registry.Update(o, s.Now())
	if err != nil {
		s.Metrics.Failed(op, err)
		return records.Receipt{}, fault.Wrap(op, err)
	}
	if before != nil && before.Type() != r.Type() {
		s.Metrics.Registered(before.Type(), -1)
		s.Metrics.Registered(r.Type(), 1)
	}
	return s.announce(ctx, []*records.Record{r})[0], nil
}

// Withdraw ends an own service everywhere by a tombstone. Errors: NotFound, Conflict for the offer of an instance.
func (s *Service) Withdraw(ctx context.Context, id string) (records.Receipt, error) {
	if err := s.ofInstance("discovery.Withdraw", id); err != nil {
		return records.Receipt{}, err
	}
	return s.withdraw(ctx, id)
}

func (s *Service) withdraw(ctx context.Context, id string) (records.Receipt, error) {
	const op = "discovery.Withdraw"
	r, err := s.Registry.Withdraw(id, s.Now())
	if err != nil {
		s.Metrics.Failed(op, err)
		return records.Receipt{}, fault.Wrap(op, err)
	}
	s.Metrics.Registered(r.Type(), -1)
	return s.announce(ctx, []*records.Record{r})[0], nil
}

// Pause leaves an own service out of all answers: for a time, or with 0 until Resume. Errors: NotFound, Invalid naming "for".
func (s *Service) Pause(ctx context.Context, id string, length time.Duration) (records.Receipt, error) {
	r, err := s.Registry.Pause(id, length, s.Now())
	return s.announceOne(ctx, "discovery.Pause", r, err)
}

// Resume ends a pause of an own service. Errors: NotFound, Conflict for a service without a pause.
func (s *Service) Resume(ctx context.Context, id string) (records.Receipt, error) {
	r, err := s.Registry.Resume(id, s.Now())
	return s.announceOne(ctx, "discovery.Resume", r, err)
}

func (s *Service) announceOne(ctx context.Context, op string, r *records.Record, err error) (records.Receipt, error) {
	if err != nil {
		s.Metrics.Failed(op, err)
		return records.Receipt{}, fault.Wrap(op, err)
	}
	return s.announce(ctx, []*records.Record{r})[0], nil
}

// Leave tells keepers and followers that this peer stops. Its services leave all answers until its next start. Call it before Close;
// nothing can be registered afterwards.
func (s *Service) Leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leaveTimeout)
	defer cancel()
	last, err := s.Registry.Stop(s.Now())
	if err != nil {
		s.Logger.Warn("other peers do not hear that this peer stops", "error", err)
		return
	}
	if len(last) > 0 {
		s.announce(ctx, last)
	}
}

// Own returns one own record, or NotFound.
func (s *Service) Own(id string) (*records.Record, error) {
	r, ok := s.Registry.Get(id)
	if !ok {
		return nil, fault.Wrap("discovery.Own", &fault.Error{
			Kind: fault.NotFound, Field: "id", Value: id, Err: errNoSuchService,
		})
	}
	return r, nil
}

// OwnAll returns the own records by id.
func (s *Service) OwnAll() []*records.Record { return s.Registry.List() }

// announce sends durable records to the network: to the own index and the live topics, which need no lookup,
// then to the keepers. The registry receives the outcome and schedules retries.
func (s *Service) announce(ctx context.Context, recs []*records.Record) []records.Receipt {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	live := make([]error, len(recs))
	for i, r := range recs {
		s.remember(r)
		if live[i] = s.Updates.Publish(ctx, r); live[i] != nil {
			s.Metrics.Failed("gossip.Publish", live[i])
		}
		if fault.KindOf(live[i]) == fault.LimitReached && s.hasty.again(s.Now(), time.Minute) {
			s.Logger.Warn("this peer changes its offers faster than others follow", "offer", r.Name().ID, "error", live[i])
		}
	}
	s.feed.waitFor(ctx, s.Index.Seq()) // the caller's next query must not get an older answer from the cache
	receipts := make([]records.Receipt, len(recs))
	var failure error
	for i, o := range s.Keepers.Store(ctx, recs) {
		r := recs[i]
		if o.Err != nil && fault.KindOf(o.Err) != fault.Exists {
			s.Metrics.Failed("keeper.Store", o.Err)
			s.Logger.Debug("no keeper stored a record; this peer announces again later", "record", r.Name(), "error", o.Err)
			failure = o.Err
		}
		s.Registry.Announced(r.Name(), r.Sequence(), s.settled(r, o), s.Now())
		receipts[i] = records.Receipt{
			ID: r.Name().ID, Key: r.Key().String(), Sequence: r.Sequence(), ExpiresAt: r.Expires(), Stored: o.Stored, Warnings: s.warnings(r, o.Stored, live[i]),
		}
	}
	s.reportUnstored(failure)
	s.nudge()
	return receipts
}

// reportUnstored raises or clears the condition that no keeper holds a service of this peer. Cause is the last
// error of a keeper, if any.
func (s *Service) reportUnstored(cause error) {
	const shown = 3
	ids := s.Registry.Unstored()
	if len(ids) == 0 {
		s.Conditions.Clear(condition.NotStored)
		return
	}
	if cause == nil {
		return // the services of an earlier announcement
	}
	s.Conditions.Raise(condition.NotStored, fault.Problem{
		What:   fmt.Sprintf("no keeper holds %d of this peer's services, among them %s: %s", len(ids), strings.Join(ids[:min(len(ids), shown)], ", "), fault.Message(cause)),
		Effect: "nobody else finds them until a repeated announcement succeeds",
		Remedy: "See the network of `blackholed doctor`",
	})
}

// settled converts an outcome for the registry. Keepers with a newer version refuse an overtaken one with
// Exists, which counts as stored.
func (s *Service) settled(r *records.Record, o records.Outcome) records.Stored {
	latest, ok := s.Index.Latest(r.Name())
	overtaken := ok && records.Compare(latest, r) > 0
	if overtaken && (o.Err == nil || fault.KindOf(o.Err) == fault.Exists) {
		return records.Stored{On: o.Stored.Of, Of: o.Stored.Of}
	}
	return o.Stored
}

// remember puts an own record into the index, so that this peer always finds it.
func (s *Service) remember(r *records.Record) {
	if _, err := s.Index.Put(r, s.Now()); err != nil && fault.KindOf(err) != fault.Exists {
		s.Logger.Warn("the index refused a record of this peer; local queries may miss it", "record", r.Name(), "error", err)
	}
}

// nudge wakes the refresh loop.
func (s *Service) nudge() {
	pause.Wake(s.wake)
}

// refresh announces due records: after their refresh interval, or after an incomplete announcement.
func (s *Service) refresh(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	unconfirmed := s.Now().Add(confirmFor) // until then, an unconfirmed version is not replaced
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
			if !s.confirmStale(ctx) && s.Now().Before(unconfirmed) {
				timer.Reset(confirmEvery)
				continue
			}
			if due := s.Registry.Due(s.Now(), announceBatch); len(due) > 0 {
				s.announce(ctx, due)
				s.Metrics.Refreshed(len(due))
			}
		}
		timer.Reset(s.untilDue())
	}
}

// confirmStale asks keepers for their own versions before Due replaces records. A newer or unknown one comes from
// another machine with this identity; it suspends the registry (see IdentityWatch). It reports false if no keeper
// answered: right after its start a peer knows no other, and an old copy of a registry must not bring a withdrawn
// service back.
func (p *Parts) confirmStale(ctx context.Context) bool {
	return !p.Registry.Stale(p.Now()) || p.Keepers.Refetch(ctx, p.Registry.List())
}

// untilDue is the sleep of the refresh loop.
func (s *Service) untilDue() time.Duration {
	const least, most = 50 * time.Millisecond, time.Minute
	next, ok := s.Registry.NextDue()
	if !ok {
		return most
	}
	return min(max(next.Sub(s.Now()), least), most)
}
