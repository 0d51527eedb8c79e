package tour

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/testnet/app"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/network"
)

// Names of the applications.
const (
	web      = "web"        // one server that is checked, and dies
	resident = "worker"     // some at every peer, from early on to the end
	required = "encoder"    // what a requirement asks for
	awaited  = "transcoder" // the same, over a change of leaders

	lastingLife = "1h" // without a heartbeat
	turn        = time.Minute
)

func services() []string { return []string{web, resident, required, awaited} }

// everything queries the instances of a service in any status.
func everything(service string) instance.Query {
	return instance.Query{
		Name: instance.Name{Namespace: instance.DefaultNamespace, Service: service}, Selector: instance.Selector{AnyStatus: true},
	}
}

// follow watches a service at a peer until its view is fresh and fits.
func follow(ctx context.Context, p *network.Peer, service string, fits func(instance.Result) error) error {
	ctx, cancel := context.WithTimeout(ctx, turn)
	defer cancel()
	objection := errors.New("no answer")
	for r, err := range p.Services().Follow(ctx, everything(service)) {
		switch {
		case err != nil:
			return fault.New(p.Name, fault.KindOf(err), "%w: %w", err, objection)
		case r.Stale:
			objection = fault.New(p.Name, fault.Unavailable, "stale: %s", r.Reason)
		default:
			if objection = fits(r); objection == nil {
				return nil
			}
		}
	}
	return fault.Wrap(p.Name, ctx.Err())
}

// followAll runs follow at every living peer.
func (t *Tour) followAll(ctx context.Context, service string, fits func(instance.Result) error) error {
	for _, p := range t.Network.Living() {
		if err := follow(ctx, p, service, fits); err != nil {
			return err
		}
	}
	return nil
}

// present demands instances with exactly these ids, each once.
func present(ids ...string) func(instance.Result) error {
	want := slices.Sorted(slices.Values(ids))
	return func(r instance.Result) error {
		got := make([]string, len(r.Instances))
		for n, i := range r.Instances {
			got[n] = i.ID
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			return fault.New("tour.present", fault.Conflict, "%v are there, not %v", got, want)
		}
		return nil
	}
}

// up demands exactly one instance, in status UP.
func up(r instance.Result) error {
	if len(r.Instances) != 1 || r.Instances[0].Status != instance.StatusUp {
		return fault.New("tour.up", fault.Conflict, "%d instances, the first not UP", len(r.Instances))
	}
	return nil
}

// register registers an instance with a peer and requires the commit, and repeats until it
// succeeds.
func register(ctx context.Context, p *network.Peer, service string, i app.Registration) error {
	return await.Until(ctx, takeover, p.Name+" takes a registration", func(ctx context.Context) error {
		_, err := p.API.Register(ctx, service, i, true)
		if kind := fault.KindOf(err); err != nil && kind != fault.Unavailable && kind != fault.Timeout {
			return await.Never(err)
		}
		return err
	})
}

// comer is an application without a check that stays until deregistered.
func comer(id string) app.Registration {
	return app.Registration{ID: id, Host: "127.0.0.1", Port: 9, UnhealthyAfter: lastingLife, RemoveAfter: lastingLife}
}

// way is one way to find the UP instances of a service.
type way struct {
	name string
	find func(ctx context.Context, p *network.Peer, service string) ([]string, error)
}

func ways() []way {
	return []way{{"REST, instances", byInstances}, {"REST, SAP-044", byService}, {"gRPC", byDiscover}, {"DNS", byDNS}}
}

func byInstances(ctx context.Context, p *network.Peer, service string) (addresses []string, err error) {
	list, err := p.API.Instances(ctx, service, false)
	for _, i := range list.Instances {
		addresses = append(addresses, i.Address())
	}
	return addresses, err
}

func byService(ctx context.Context, p *network.Peer, service string) (addresses []string, err error) {
	list, err := p.API.Service(ctx, service)
	for _, i := range list.Instances {
		if i.Status == "up" {
			addresses = append(addresses, i.Address())
		}
	}
	return addresses, err
}

func byDiscover(ctx context.Context, p *network.Peer, service string) (addresses []string, err error) {
	r, err := p.Agent().Discover(ctx, instance.Query{Name: everything(service).Name})
	if err != nil {
		return nil, fault.Wrap(p.Name, err)
	}
	for _, i := range r.Instances {
		addresses = append(addresses, net.JoinHostPort(i.Spec.Host, strconv.Itoa(i.Spec.Port)))
	}
	return addresses, nil
}

// byDNS asks like a stub resolver: SRV, then the addresses of each target.
func byDNS(ctx context.Context, p *network.Peer, service string) (addresses []string, err error) {
	r := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, p.DNS)
	}}
	_, all, err := r.LookupSRV(ctx, "", "", service+".service.blackhole.")
	var none *net.DNSError
	if errors.As(err, &none) && none.IsNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, fault.As(p.Name, fault.Unavailable, err)
	}
	for _, srv := range all {
		hosts, err := r.LookupHost(ctx, srv.Target)
		if err != nil {
			return nil, fault.As(p.Name, fault.Unavailable, err)
		}
		for _, host := range hosts {
			addresses = append(addresses, net.JoinHostPort(host, strconv.Itoa(int(srv.Port))))
		}
	}
	return addresses, nil
}

// found queries a service at every living peer in every way and compares the results.
func (t *Tour) found(ctx context.Context, service string, want ...string) error {
	ctx, cancel := context.WithTimeout(ctx, turn)
	defer cancel()
	slices.Sort(want)
	for _, p := range t.Network.Living() {
		for _, w := range ways() {
			got, err := w.find(ctx, p, service)
			if err != nil {
				return fault.Wrap(w.name, err)
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				return fault.New(p.Name, fault.Conflict, "by %s: %s is at %v, expected %v", w.name, service, got, want)
			}
		}
	}
	return nil
}

// instanceFound registers a server with its peer and finds it at every peer in every way, once
// the watch of that peer has it. Afterwards applications register at every peer for the rest of
// the tour.
func instanceFound(ctx context.Context, t *Tour) (string, error) {
	s, err := app.Serve()
	if err != nil {
		return "", err
	}
	defer s.Die()
	home, began := t.consumer(), time.Now()
	if err := register(ctx, home, web, checked(s)); err != nil {
		return "", err
	}
	committed := time.Since(began)
	if err := t.followAll(ctx, web, up); err != nil {
		return "", err
	}
	known := time.Since(began)
	if err := t.found(ctx, web, s.Address()); err != nil {
		return "", err
	}
	if err := home.API.Deregister(ctx, web, checked(s).ID); err != nil {
		return "", err
	}
	if err := t.followAll(ctx, web, present()); err != nil {
		return "", err
	}
	if err := errors.Join(t.found(ctx, web), t.settle(ctx)); err != nil {
		return "", err
	}
	return fmt.Sprintf("registered with %s in %v, UP and found at %d peers by REST (both dialects), gRPC and DNS after %v, and gone when deregistered",
		home.Name, committed.Round(time.Millisecond), len(t.Network.Living()), known.Round(time.Millisecond)), nil
}

// checked is a server with a check every second.
func checked(s *app.Server) app.Registration {
	return app.Registration{
		ID: "server", Host: s.Host, Port: s.Port, UnhealthyAfter: unhealthy.String(), RemoveAfter: deadAfter.String(),
		HealthCheck: &app.Check{
			Type: "HTTP", Endpoint: app.Health, Interval: checkEvery.String(), Timeout: checkTimeout.String(), UnhealthyThreshold: failures,
		},
	}
}

// Behaviour of the residents after the end of their peer: nothing, or a move to another peer.
const (
	stays = "stays"
	moves = "moves"
)

func idOf(kind string, p *network.Peer) string { return kind + "-" + p.Name }

// settle registers two applications with every peer.
func (t *Tour) settle(ctx context.Context) error {
	for _, p := range t.Network.Living() {
		for _, kind := range []string{stays, moves} {
			if err := register(ctx, p, resident, comer(idOf(kind, p))); err != nil {
				return err
			}
			t.residents = append(t.residents, idOf(kind, p))
		}
	}
	return t.followAll(ctx, resident, present(t.residents...))
}

// applicationMoves kills a peer and sends the heartbeat of one of its applications to another peer, which adopts the
// instance. It must come before the lease of the killed peer ends.
func applicationMoves(ctx context.Context, t *Tour) (string, error) {
	if err := t.killVictim(ctx); err != nil {
		return "", err
	}
	victim, home := t.victim(), t.consumer()
	id, began := idOf(moves, victim), time.Now()
	if err := home.API.Heartbeat(ctx, resident, id); err != nil {
		return "", err
	}
	err := t.followAll(ctx, resident, func(r instance.Result) error {
		for _, i := range r.Instances {
			if i.ID == id && i.Peer == home.ID.String() {
				return includes(t.remaining())(r)
			}
		}
		return fault.New("tour.applicationMoves", fault.Conflict, "%s is not at %s", id, home.Name)
	})
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s of %s sent its heartbeat to %s and was adopted, known everywhere after %v", id, victim.Name, home.Name,
		time.Since(began).Round(time.Millisecond)), nil
}

// peerForgotten waits until the instances of the killed peer leave with its lease. The moved
// instance stays, and so do the instances of other peers.
func peerForgotten(ctx context.Context, t *Tour) (string, error) {
	victim := t.victim()
	if err := t.followAll(ctx, resident, present(t.remaining()...)); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s is gone %v after %s was killed, %s stays with %s", idOf(stays, victim),
		time.Since(t.killedAt).Round(100*time.Millisecond), victim.Name, idOf(moves, victim), t.consumer().Name), nil
}

// remaining lists the residents without the one that leaves with the lease of the killed peer.
func (t *Tour) remaining() []string {
	return slices.DeleteFunc(slices.Clone(t.residents), func(id string) bool { return id == idOf(stays, t.victim()) })
}

const satisfied, insufficient = "satisfied", "insufficient_nodes"

// requirementSatisfied requires two instances of a service with one. A waiter at another peer
// wakes after the second instance, which registers late at a third peer.
func requirementSatisfied(ctx context.Context, t *Tour) (string, error) {
	const name = required
	all := t.Network.Living()
	here, there, third := all[0], all[1], all[2%len(all)]
	if err := register(ctx, here, required, comer("early")); err != nil {
		return "", err
	}
	if err := here.API.Require(ctx, name, app.Requirement{Service: required, Min: 2}); err != nil {
		return "", err
	}
	if err := stalled(ctx, there, name); err != nil {
		return "", err
	}
	woken := make(chan error, 1)
	go func() { woken <- satisfiedBy(ctx, there, name, turn.String()) }() // ends with its call; the caller waits for it
	began := time.Now()
	err := register(ctx, third, required, comer("late"))
	if failed := <-woken; failed != nil || err != nil {
		return "", fault.New("tour.requirementSatisfied", fault.Conflict, "registered: %v; woken: %w", err, failed)
	}
	took := time.Since(began)
	for _, p := range all { // peers without a waiter see the status too
		err := await.Until(ctx, soon, p.Name+" knows", func(ctx context.Context) error {
			return satisfiedBy(ctx, p, name, "")
		})
		if err != nil {
			return "", err
		}
	}
	return fmt.Sprintf("2 required and 1 there: insufficient; a waiter at %s was woken %v after the second came at %s",
		there.Name, took.Round(100*time.Microsecond), third.Name), there.API.DropRequirement(ctx, name)
}

// stalled waits until a peer knows that a requirement lacks one of two instances.
func stalled(ctx context.Context, p *network.Peer, name string) error {
	return await.Until(ctx, soon, p.Name+" knows what is missing", func(ctx context.Context) error {
		got, err := p.API.Stands(ctx, name, "")
		if want := (app.Standing{State: insufficient, Needed: 2, Available: 1}); err == nil && got != want {
			return fault.New("tour.stalled", fault.Conflict, "it stands at %+v, not %+v", got, want)
		}
		return err
	})
}

func satisfiedBy(ctx context.Context, p *network.Peer, name, wait string) error {
	got, err := p.API.Stands(ctx, name, wait)
	if err == nil && got.State != satisfied {
		return fault.New(p.Name, fault.Conflict, "it stands at %+v", got)
	}
	return err
}

// Clear removes the instances and requirements that the steps left: nothing answers at their addresses.
func (t *Tour) Clear(ctx context.Context) error {
	living := t.Network.Living()
	if len(living) == 0 {
		return nil
	}
	var all error
	for _, name := range []string{required, awaited} {
		if err := living[0].API.DropRequirement(ctx, name); err != nil && fault.KindOf(err) != fault.NotFound {
			all = errors.Join(all, fault.Wrap(name, err))
		}
	}
	for _, service := range services() {
		list, err := living[0].API.Instances(ctx, service, true)
		all = errors.Join(all, err)
		for _, id := range list.IDs() {
			err := living[0].API.Deregister(ctx, service, id)
			if kind := fault.KindOf(err); err != nil && kind != fault.NotFound && kind != fault.Gone {
				all = errors.Join(all, fault.Wrap(service+"/"+id, err))
			}
		}
	}
	return all
}
