package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/blackhole/blackhole/internal/agent/catalog"
	"github.com/blackhole/blackhole/internal/agent/health"
	"github.com/blackhole/blackhole/internal/agent/registry"
	"github.com/blackhole/blackhole/internal/contract/coord/principals"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

const (
	// maxExpireInterval is the longest time between two searches for silent
	// instances: the shortest time until an instance is unhealthy.
	maxExpireInterval = instance.MinTTL
	// stallTime without a search means a suspended process.
	stallTime = 5 * maxExpireInterval
)

// Directory is the group's copy of the instances of all peers.
type Directory interface {
	// Publish queues local changes in the order of the registry, whose lock is
	// held: it neither blocks nor calls back. The last change of a key counts,
	// and a registration among them takes the key over until a commit.
	Publish(changes []instances.Change)
	// Committed waits for the commit of the last change of a key and returns its
	// revision. Errors: Unavailable, without a wait, while no leader is known;
	// Conflict after a takeover or removal by another peer, until the next
	// change; other kinds for a rejected instance; Timeout, Canceled.
	Committed(ctx context.Context, k instance.Key) (revision uint64, err error)
	// Read returns the instances of a service, or of a namespace without a
	// service, by key, and the revision of the answer, after a quorum round. Each
	// instance has the revision of its last change. Errors: Unavailable, Timeout,
	// Canceled.
	Read(ctx context.Context, n instance.Name) (list []*instance.Instance, revision uint64, err error)
}

// local manages the instances of this peer: their registry, checks, offers and
// entries in the directory.
type local struct {
	config    Config
	registry  *registry.Registry
	checker   *health.Checker
	offers    *offers          // nil without an Announcer
	directory Directory        // nil without a group
	catalog   *catalog.Catalog // fed here without a directory
	locks     keyLocks
	aliases   *lru.Cache[string, instance.Key] // former leases of adopted instances
	ends      *ends

	ctx    context.Context // ends with close
	cancel context.CancelFunc
	work   sync.WaitGroup
}

func (l *local) open() (err error) {
	c := &l.config
	c.Checks.Report, c.Checks.Now = func(r health.Report) { l.registry.Report(r.Key, r.Passing, r.Status, r.At) }, c.Now
	l.checker = health.New(c.Checks)
	if c.Announcer != nil {
		l.offers = newOffers(c.Announcer, l.checker.Measured, c.Metrics.Failed)
	}
	c.Registry.Changed, c.Registry.Stall = l.changed, stallTime
	if l.registry, err = registry.Open(c.Registry, c.Now()); err != nil {
		return err
	}
	if err := l.begin(l.registry.All()); err != nil {
		return err
	}
	l.work.Go(l.expire)
	if l.offers != nil {
		l.work.Go(func() { l.offers.run(l.ctx) })
	}
	return nil
}

// begin delivers the content of the registry. Checks start last, because their
// results change it.
func (l *local) begin(all []*instance.Instance, revision uint64) error {
	if l.directory == nil {
		if err := l.catalog.Reset(revision, all); err != nil {
			return err
		}
	} else if len(all) > 0 {
		changes := make([]instances.Change, len(all))
		for n, i := range all {
			changes[n] = instances.Change{Key: i.Key, Instance: i}
		}
		l.directory.Publish(changes)
	}
	for _, i := range all {
		l.follow(i.Key, i)
	}
	return nil
}

func (l *local) close() error {
	l.cancel()
	l.checker.Close()
	l.work.Wait()
	if l.registry == nil { // it did not open
		return nil
	}
	return errors.Join(l.registry.Suspend(l.config.Now()), l.registry.Close())
}

// changed delivers changes of the registry in its order.
func (l *local) changed(changes []instances.Change) {
	for _, c := range changes {
		if c.Last != nil {
			l.ends.add(c, l.checker.Last(c.Key), l.config.Now())
		}
		l.follow(c.Key, c.Instance)
	}
	if l.directory != nil {
		l.directory.Publish(changes)
		return
	}
	if err := l.catalog.Apply(changes[len(changes)-1].Revision, changes); err != nil {
		l.config.Metrics.Failed("agent.changed", err)
	}
}

// follow updates the check and the offer of an instance; nil means removed.
func (l *local) follow(k instance.Key, i *instance.Instance) {
	if l.offers != nil {
		l.offers.put(k, i)
	}
	if i == nil || i.Spec.Check == nil {
		l.checker.Remove(k)
		return
	}
	if err := l.checker.Set(l.target(k, i.Spec)); err != nil { // Register rejects invalid checks: there are too many
		l.config.Logger.Warn("the checker did not accept an instance; its health stays unknown", "instance", k.String(), "error", err)
		l.config.Metrics.Failed("agent.follow", err)
	}
}

// target is the check of an instance that has one.
func (l *local) target(k instance.Key, i instance.Spec) health.Target {
	return health.Target{
		Key: k, Host: i.Host, Port: i.Port, Check: *i.Check, Local: l.config.Loopback && onThisHost(i.Host),
		Unmeasured: l.offers == nil || len(i.Offer) == 0, // only offers use measurements
	}
}

// expire searches for silent instances until close.
func (l *local) expire() {
	for wait := time.Duration(0); pause.For(l.ctx, wait); {
		now := l.config.Now()
		wait = maxExpireInterval
		if next := l.registry.Expire(now); !next.IsZero() {
			wait = min(max(next.Sub(now), 0), maxExpireInterval)
		}
		l.ends.log(l.config.Logger)
	}
}

// Storage returns the error that prevents writes of the registry, or nil.
func (l *local) Storage() error { return l.registry.Storage() }

// LastChecks returns the ends of the last checks of an instance of this peer, newest first.
func (l *local) LastChecks(k instance.Key) []instances.LastCheck { return l.checker.Last(k) }

// Aside names the stored instances of this peer that did not pass at its start.
func (l *local) Aside() []string { return l.registry.Aside() }

// Census counts the instances of this peer by status.
func (l *local) Census() map[instance.Status]int {
	all, _ := l.registry.All()
	counts := make(map[instance.Status]int)
	for _, i := range all {
		counts[i.Status]++
	}
	return counts
}

// commit waits for the commit of the last change of a key.
func (l *local) commit(ctx context.Context, k instance.Key, wait time.Duration) (revision uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return l.directory.Committed(ctx, k)
}

// settle waits for the commit of a change that stands either way, so that reads
// after the answer see it if possible. It returns 0 without a commit.
func (l *local) settle(ctx context.Context, k instance.Key, wait time.Duration) (revision uint64) {
	if l.directory == nil {
		return 0
	}
	revision, err := l.commit(ctx, k, wait)
	if err != nil {
		return 0
	}
	return revision
}

// Lost drops instances that another peer has taken over or removed. The next
// heartbeat of such an instance fails, and its application registers again. Lost
// waits for running calls about each key and for the disk. It keeps an instance
// registered again since, because the directory has not decided about that
// registration yet. The removal reaches the directory as any removal and takes
// nothing from the other peer.
func (l *local) Lost(keys []instance.Key) {
	parallel(len(keys), func(n int) {
		unlock, err := l.locks.lock(l.ctx, keys[n])
		if err != nil {
			return // this peer closes
		}
		defer unlock()
		_, err = l.commit(l.ctx, keys[n], commitWait)
		if kind := fault.KindOf(err); kind == fault.Conflict || kind == fault.Forbidden {
			l.config.Logger.Warn("an instance of this peer ended: another peer has taken it over, or it was removed there", "instance", keys[n].String(), "cause", err)
			l.drop(keys[n])
		}
	})
}

// drop removes an instance of another peer.
func (l *local) drop(k instance.Key) {
	if _, err := l.registry.Deregister(k, l.config.Now()); err != nil && fault.KindOf(err) != fault.NotFound {
		l.config.Metrics.Failed("agent.drop", err)
	}
}

func (l *local) put(r instance.Registration) (instances.Registered, error) {
	got, err := l.registry.Register(r, l.config.Now())
	l.config.Metrics.Stored("put", err)
	return got, err
}

// undo restores last, or deregisters now if last is nil.
func (l *local) undo(last, now *instance.Instance) {
	var err error
	switch {
	case last == nil:
		_, err = l.registry.Deregister(now.Key, l.config.Now())
	case !last.Spec.Equal(now.Spec) || last.Status != now.Status:
		_, err = l.registry.Register(registrationOf(last), l.config.Now())
	}
	if err != nil && fault.KindOf(err) != fault.NotFound {
		l.config.Metrics.Failed("agent.undo", err)
	}
}

// registrationOf returns the registration of an existing instance.
func registrationOf(i *instance.Instance) instance.Registration {
	r := instance.Registration{Key: i.Key, Spec: i.Spec, Principal: i.Principal}
	if i.Override == instance.StatusUnknown && i.Status == instance.StatusStarting {
		r.Status = i.Status
	}
	return r
}

// fits rejects an instance this peer cannot check or announce.
func (l *local) fits(r instance.Registration) error {
	if r.Spec.Check != nil {
		if err := l.checker.Validate(l.target(r.Key, r.Spec)); err != nil {
			return err
		}
	}
	if l.offers != nil {
		return l.offers.check(r.Key, r.Spec.Offer)
	}
	return nil
}

// remove deregisters an instance of this peer.
func (l *local) remove(ctx context.Context, k instance.Key, wait time.Duration) (instances.Removal, error) {
	unlock, err := l.locks.lock(ctx, k)
	if err != nil {
		return instances.Removal{}, err
	}
	defer unlock()
	gone, err := l.registry.Deregister(k, l.config.Now())
	l.config.Metrics.Stored("delete", err)
	if err == nil {
		l.settle(ctx, k, wait)
	}
	return gone, err
}

// override sets the status of an instance of this peer.
func (l *local) override(ctx context.Context, k instance.Key, status instance.Status, wait time.Duration) (*instance.Instance, error) {
	i, err := l.registry.SetStatus(k, status, l.config.Now())
	if err != nil {
		return nil, err
	}
	if revision := l.settle(ctx, k, wait); revision > 0 {
		shown := *i
		shown.Revision = revision
		i = &shown
	}
	return i, nil
}

// beat renews leases of instances of this peer.
func (l *local) beat(refs []instances.Ref) ([]instances.Beat, error) {
	if len(refs) > instances.MaxBeats {
		return nil, fault.Invalidf("lease_ids", len(refs), "must be at most %d", instances.MaxBeats)
	}
	beats := l.registry.Heartbeat(refs, l.config.Now())
	for n := range beats {
		if beats[n].Err == nil {
			continue
		}
		if k, ok := l.aliases.Get(refs[n].Lease); ok {
			beats[n] = l.beatOne(k)
		}
	}
	return beats, nil
}

func (l *local) beatOne(k instance.Key) instances.Beat {
	return l.registry.Heartbeat([]instances.Ref{{Key: k}}, l.config.Now())[0]
}

// adopt registers the last known state of an instance here, because its own peer
// failed with cause. The instance gets a new lease; the old one becomes an alias.
// An instance with a check of loopback is not adopted: its registrant could
// otherwise make this peer call services of this host. Nor is one with the note of a front end. The instance of another
// authenticated caller is not adopted: its peer may live. Errors: as a
// registration, with the cause.
func (l *local) adopt(ctx context.Context, i *instance.Instance, cause error) error {
	unlock, err := l.locks.lock(ctx, i.Key)
	if err != nil {
		return err
	}
	defer unlock()
	if _, ok := l.registry.Get(i.Key); ok {
		return nil
	}
	r := registrationOf(i)
	switch err = l.fits(r); {
	case err != nil:
	case i.Principal != "" && i.Principal != l.principal(ctx):
		err = &fault.Error{Kind: fault.Forbidden, Field: "id", Value: i.Key.String(), Err: errHeld}
	case r.Spec.Note != "": // a front end at its peer keeps it alive and checks it
		err = fault.Invalidf("id", i.Key.String(), "is kept by a front end of its peer: register it again where it runs")
	case r.Spec.Check != nil && onThisHost(r.Spec.Host):
		err = fault.Invalidf("host", r.Spec.Host, "is a loopback address: a check from this peer would reach another host than the instance's; register it again where it runs")
	default:
		_, err = l.put(r)
	}
	if err == nil && i.Override != instance.StatusUnknown {
		_, err = l.registry.SetStatus(i.Key, i.Override, l.config.Now())
	}
	if err != nil {
		return fault.Wrap("agent.adopt", fmt.Errorf("%w (adoption was tried because peer %s does not answer: %v)", err, i.Peer, cause))
	}
	if i.Lease != "" {
		l.aliases.Add(i.Lease, i.Key)
	}
	l.config.Logger.Info("adopted an instance whose peer does not answer", "audit", "instance_takeover", "instance", i.Key.String(), "peer", i.Peer, "cause", cause)
	return nil
}

// principal returns the owner that an authenticated caller of this peer is; "" without a name.
func (l *local) principal(ctx context.Context) string {
	if name := l.config.Caller(ctx); name != "" {
		return principals.Named(name)
	}
	return ""
}

// onThisHost reports whether a host is a loopback name or address. Only callers
// on this host may register it.
func onThisHost(host string) bool {
	addr, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && addr.Unmap().IsLoopback()
}
