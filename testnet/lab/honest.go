package lab

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/miekg/dns"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/blackhole/blackhole/pkg/client"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/pkg/query"
	"github.com/blackhole/blackhole/testnet/await"
	"github.com/blackhole/blackhole/testnet/market"
)

const (
	honestOffers   = 16               // updated in turn
	honestLocks    = 16               // taken in turn
	honestAtOnce   = 8                // calls of one operation under way
	honestLimit    = 30 * time.Second // of one operation, with its repetitions
	honestRetry    = time.Second      // after a call that found no leader
	resolverTries  = 3                // as resolvers do
	resolverWaits  = 2 * time.Second  // for each answer
	honestDiscKM   = 50.0             // of the honest question
	honestResults  = 10               // of its answer
	honestService  = "app"            // its DNS name is asked
	watchReopens   = time.Second      // after the loss of the honest watch
	honestFailures = 8                // failures to print, of one window
)

// operations are the honest operations, each with its pause. All of them need the victim: what it answers itself, what it keeps for a
// provider at another peer, and what it commits.
func (h *honest) operations() []operation {
	return []operation{
		{"query", 50 * time.Millisecond, h.query},
		{"resolve", 50 * time.Millisecond, h.resolve},
		{"register", 750 * time.Millisecond, h.register}, // a caller may register 100 times a minute
		{"lock", 100 * time.Millisecond, h.lock},
		{"update", 100 * time.Millisecond, h.update},
		{"probe", 250 * time.Millisecond, h.probe},
	}
}

// probe asks for health as an orchestrator does, on a connection of its own.
func (h *honest) probe(ctx context.Context, _ int) (time.Duration, error) {
	began := time.Now()
	c, err := grpc.NewClient(grpcAddress, h.victim.inside(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return 0, fault.As("lab.probe", fault.Internal, err)
	}
	defer c.Close()
	_, err = healthpb.NewHealthClient(c).Check(ctx, &healthpb.HealthCheckRequest{})
	return time.Since(began), fault.As("lab.probe", fault.Unavailable, err)
}

// updateSeen is the operation that ends with the event of an update at the watch.
const updateSeen = "watch"

// operation is an honest operation at a steady pace. do returns what it took.
type operation struct {
	name  string
	every time.Duration
	do    func(ctx context.Context, i int) (time.Duration, error)
}

// honest are honest programs: at the victim, and at a provider that is another peer. They work at a steady pace until stop.
type honest struct {
	w        *world
	victim   *peer
	provider *peer

	opening sync.Mutex // guards session
	session *client.Session

	cancel context.CancelFunc
	work   sync.WaitGroup

	mu     sync.Mutex // guards what follows
	now    *window
	events map[string]chan time.Time // updates under way, by their text
}

// window is what honest programs saw in a time.
type window struct {
	took       map[string][]time.Duration
	failed     map[string]int
	incomplete int // answers
	load       load
}

// load is processor time a second, in processors: of the victim, of all other peers, and of the lab, which is the network and
// the honest programs.
type load struct{ victim, others, lab float64 }

// newHonest registers what the programs need, and starts them.
func newHonest(ctx context.Context, w *world, victim, provider *peer) (*honest, error) {
	h := &honest{w: w, victim: victim, provider: provider, events: map[string]chan time.Time{}}
	h.turn()
	for i := range honestOffers {
		if _, err := w.register(ctx, provider, offerName(i)); err != nil {
			return nil, err
		}
	}
	if _, err := victim.Agent().Register(ctx, h.registration("at-all-times", time.Hour)); err != nil {
		return nil, err
	}
	if _, err := h.lease(ctx); err != nil {
		return nil, err
	}
	ctx, h.cancel = context.WithCancel(ctx)
	watcher, err := h.watch(ctx)
	if err != nil {
		h.cancel()
		return nil, err
	}
	h.work.Go(func() { h.follow(ctx, watcher) })
	for _, d := range h.operations() {
		h.work.Go(func() { h.repeat(ctx, d) })
	}
	return h, nil
}

func offerName(i int) string { return fmt.Sprintf("honest-%d", i) }

// stop ends the programs.
func (h *honest) stop(ctx context.Context) {
	h.cancel()
	h.work.Wait()
	_ = h.session.Close(context.WithoutCancel(ctx)) // the peers end next
}

// turn begins a new window and returns the last one.
func (h *honest) turn() *window {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := h.now
	h.now = &window{took: map[string][]time.Duration{}, failed: map[string]int{}}
	return last
}

// window returns the present window.
func (h *honest) window() *window {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

// repeat does one thing at its pace. The time of a call counts from its turn, also if earlier calls took all places.
func (h *honest) repeat(ctx context.Context, d operation) {
	places := make(chan struct{}, honestAtOnce)
	var calls sync.WaitGroup
	defer calls.Wait()
	tick := time.NewTicker(d.every)
	defer tick.Stop()
	for i := 0; ; i++ {
		var turn time.Time
		select {
		case <-ctx.Done():
			return
		case turn = <-tick.C:
		}
		in := h.window()
		select {
		case <-ctx.Done():
			return
		case places <- struct{}{}:
		}
		waited := time.Since(turn)
		calls.Go(func() {
			defer func() { <-places }()
			limited, cancel := context.WithTimeout(ctx, honestLimit)
			defer cancel()
			took, err := d.do(limited, i)
			if ctx.Err() == nil {
				h.note(in, d.name, waited+took, err)
			}
		})
	}
}

// note adds an observation to a window.
func (h *honest) note(in *window, name string, took time.Duration, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil {
		in.took[name] = append(in.took[name], took)
		return
	}
	what := fmt.Sprintf("%s: %v", name, err)
	if _, known := in.failed[what]; !known && len(in.failed) >= honestFailures {
		what = "others"
	}
	in.failed[what]++
}

// question asks for the honest offers. The attackers' records have no uptime.
func (h *honest) question() query.Query {
	least, radius := market.PlainUptime/2*float64(h.w.truth.asked.Add(1))/1e6, honestDiscKM // unknown to caches
	q := query.Query{Type: market.PlainType, Limit: honestResults, Near: &query.Near{Latitude: 52.5, Longitude: 13.4, RadiusKM: &radius}}
	q.MinUptime = &least
	return q
}

// watch opens the honest watch at the victim.
func (h *honest) watch(ctx context.Context) (*client.Watcher, error) {
	q := h.question()
	q.Limit = 0 // a watch sends all matches
	return h.victim.Offers().Watch(ctx, q, "")
}

// query asks the victim.
func (h *honest) query(ctx context.Context, _ int) (time.Duration, error) {
	in, began := h.window(), time.Now()
	a, err := h.victim.Offers().Query(ctx, h.question())
	took := time.Since(began)
	if err == nil && !a.Complete {
		h.mu.Lock()
		in.incomplete++
		h.mu.Unlock()
	}
	if err == nil && a.Complete && len(a.Results) != honestResults {
		err = fault.New("lab.query", fault.NotFound, "%d of %d honest records, and complete", len(a.Results), honestResults)
	}
	return took, err
}

// resolve asks the victim's name server over UDP.
func (h *honest) resolve(ctx context.Context, _ int) (took time.Duration, err error) {
	began := time.Now()
	for range resolverTries {
		if err = h.resolveOnce(ctx); err == nil {
			break
		}
	}
	return time.Since(began), err
}

func (h *honest) resolveOnce(ctx context.Context) error {
	const op = "lab.resolve"
	conn, err := h.victim.host.space.DialUDP(ctx, dnsAddress)
	if err != nil {
		return fault.As(op, fault.Unavailable, err)
	}
	defer conn.Close()
	m := new(dns.Msg).SetQuestion(honestService+".service.blackhole.", dns.TypeA)
	c := dns.Client{Timeout: resolverWaits}
	answer, _, err := c.ExchangeWithConnContext(ctx, m, &dns.Conn{Conn: conn})
	if err != nil {
		return fault.As(op, fault.Unavailable, err)
	}
	if len(answer.Answer) == 0 {
		return fault.New(op, fault.NotFound, "%s without an address", dns.RcodeToString[answer.Rcode])
	}
	return nil
}

func (h *honest) registration(id string, until time.Duration) instance.Registration {
	return instance.Registration{
		Key:           instance.Key{Service: honestService, ID: id},
		Spec:          instance.Spec{Host: "192.0.2.7", Port: 9, UnhealthyAfter: until},
		RequireCommit: true,
	}
}

// register registers an instance at the victim, in the directory of all peers, and deregisters it.
func (h *honest) register(ctx context.Context, i int) (time.Duration, error) {
	r := h.registration("at-"+strconv.Itoa(i), time.Hour)
	began := time.Now()
	err := again(ctx, func() error {
		_, err := h.victim.Agent().Register(ctx, r)
		return err
	})
	took := time.Since(began)
	if err == nil {
		err = again(ctx, func() error {
			_, err := h.victim.Agent().Deregister(ctx, r.Key)
			return err
		})
	}
	return took, err
}

// again repeats a call that found no leader, as programs do.
func again(ctx context.Context, call func() error) error {
	for {
		err := call()
		if kind := fault.KindOf(err); err == nil || kind != fault.Unavailable || await.Pause(ctx, honestRetry) != nil {
			return err
		}
	}
}

// lock takes a free lock at the victim, and gives it back. Without its lease it begins another session.
func (h *honest) lock(ctx context.Context, i int) (time.Duration, error) {
	began := time.Now()
	for {
		s, err := h.lease(ctx)
		if err != nil {
			return 0, err
		}
		held, err := s.Lock(ctx, fmt.Sprintf("honest/%d", i%honestLocks))
		took := time.Since(began)
		if err == nil {
			err = held.Unlock(ctx)
		}
		if s.Remaining() > 0 || await.Pause(ctx, honestRetry) != nil {
			return took, err
		}
	}
}

// lease returns the session, a new one if the last one is lost.
func (h *honest) lease(ctx context.Context) (*client.Session, error) {
	h.opening.Lock()
	defer h.opening.Unlock()
	if h.session != nil && h.session.Remaining() > 0 {
		return h.session, nil
	}
	err := again(ctx, func() (err error) {
		h.session, err = h.victim.Locks().Session(ctx)
		return err
	})
	return h.session, err
}

// update changes an offer at its provider, which stores it at the victim too, and waits for the event at the victim.
func (h *honest) update(ctx context.Context, i int) (time.Duration, error) {
	text := fmt.Sprintf("update %d", i)
	arrived := make(chan time.Time, 1)
	in := h.window()
	h.mu.Lock()
	h.events[text] = arrived
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.events, text)
	}()
	o := market.Plain(offerName(i%honestOffers), 1)
	o.Metadata.Description = text
	began := time.Now()
	if _, err := h.provider.Offers().Update(ctx, o); err != nil {
		return 0, err
	}
	took := time.Since(began)
	select {
	case at := <-arrived:
		h.note(in, updateSeen, at.Sub(began), nil)
		return took, nil
	case <-ctx.Done():
		return 0, fault.New("lab.update", fault.Timeout, "the watch saw no event of an update within %v", honestLimit)
	}
}

// follow reads the watch, and opens it again after a loss, which counts as a failure.
func (h *honest) follow(ctx context.Context, watcher *client.Watcher) {
	for ctx.Err() == nil {
		e, err := watcher.Next()
		if err == nil {
			h.arrived(e)
			continue
		}
		if ctx.Err() != nil {
			return
		}
		h.note(h.window(), updateSeen, 0, err)
		if await.Pause(ctx, watchReopens) != nil {
			return
		}
		if again, err := h.watch(ctx); err == nil {
			watcher = again
		}
	}
}

func (h *honest) arrived(e client.Event) {
	if e.Record == nil || !strings.HasPrefix(e.Record.Metadata.Description, "update ") {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if arrived, ok := h.events[e.Record.Metadata.Description]; ok {
		select {
		case arrived <- time.Now():
		default:
		}
	}
}
