package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/agent/catalog"
	"github.com/blackhole/blackhole/internal/agent/health"
	"github.com/blackhole/blackhole/internal/agent/registry"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/pkg/records"
)

// market is a fake discovery plane.
type market struct {
	mu     sync.Mutex // guards the fields below
	key    crypto.PrivKey
	stands map[string]*records.Record
	news   int
	broken error
	slow   func() time.Duration // of each call; nil: none
	room   int                  // records; 0: any number
}

// delay is the time that a call takes.
func (m *market) delay() {
	m.mu.Lock()
	var wait time.Duration
	if m.slow != nil {
		wait = m.slow()
	}
	m.mu.Unlock()
	if wait > 0 {
		time.Sleep(wait)
	}
}

func newMarket(t *testing.T) *market {
	key, _, err := crypto.GenerateEd25519Key(bytes.NewReader(make([]byte, 64)))
	require.NoError(t, err)
	return &market{key: key, stands: map[string]*records.Record{}}
}

func (m *market) Announce(_ context.Context, caller string, o records.Offer) error {
	if caller == "" {
		return errors.New("the offer of an instance has the share of the operator")
	}
	m.delay()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken != nil {
		return m.broken
	}
	if m.room > 0 && m.stands[o.ID] == nil && len(m.stands) >= m.room {
		return fault.Exhausted("market", "offers", true, "no room for more")
	}
	m.news++
	r, err := records.Sign("test", m.key, o, records.Stamp{Sequence: uint64(m.news), Issued: time.Now(), Expires: time.Now().Add(time.Hour)})
	if err == nil {
		m.stands[o.ID] = r
	}
	return err
}

func (m *market) Retract(_ context.Context, id string) error {
	m.delay()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.stands[id] == nil {
		return fault.New("market", fault.NotFound, "no such record")
	}
	delete(m.stands, id)
	return nil
}

func (m *market) OwnAll() (all []*records.Record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.stands {
		all = append(all, r)
	}
	return all
}

// record returns the announced record of an id, or nil.
func (m *market) record(id string) *records.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.stands[id]
}

func (m *market) breaks(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.broken = err
}

// fixture is an agent on a disk that survives it.
type fixture struct {
	*Service
	disk   vfs.FS
	market *market
	mu     sync.Mutex // guards down
	down   bool       // checked addresses refuse connections
}

func (s *fixture) dial(context.Context, string, string) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.down {
		return nil, errors.New("refused")
	}
	here, there := net.Pipe()
	there.Close()
	return here, nil
}

func (s *fixture) fall(down bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.down = down
}

func (s *fixture) start(t *testing.T, change func(*Config)) {
	c := Config{
		Registry: registry.Config{Dir: "instances", FS: s.disk, Self: "me"}, Announcer: s.market, Loopback: true, Now: time.Now,
		Checks: health.Config{Dial: s.dial, Random: rand.New(rand.NewPCG(1, 2)).Uint64},
	}
	if change != nil {
		change(&c)
	}
	var err error
	s.Service, err = New(c)
	require.NoError(t, err)
	synctest.Wait()
}

func opened(t *testing.T, change func(*Config)) *fixture {
	s := &fixture{disk: vfs.NewMem(), market: newMarket(t)}
	s.start(t, change)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

func web(id string) instance.Registration {
	return instance.Registration{
		Key:   instance.Key{Namespace: "default", Service: "web", ID: id},
		Spec:  instance.Spec{Host: "127.0.0.1", Port: 8080, UnhealthyAfter: 10 * time.Second, RemoveAfter: 20 * time.Second},
		Local: true,
	}
}

const disk = `{"id":"disk","metadata":{"type":"storage","endpoints":["http://127.0.0.1:9000"]},"capabilities":{"storage":{"total_space":10,"available_space":5}}}`

// webs asks for all instances of service web.
func webs() instance.Query {
	return instance.Query{Name: instance.Name{Namespace: "default", Service: "web"}, Selector: instance.Selector{AnyStatus: true}}
}

func (s *fixture) status(t *testing.T) instance.Status {
	found, err := s.Discover(t.Context(), webs())
	require.NoError(t, err)
	require.Len(t, found.Instances, 1)
	return found.Instances[0].Status
}

// TestSilence checks that a silent application becomes UNHEALTHY and is
// removed, visible step by step to a watcher.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := opened(t, nil)
		var seen []string
		ctx, cancel := context.WithCancel(t.Context())
		watched := make(chan error, 1)
		go func() {
			watched <- s.Watch(ctx, webs(), 0, func(b instance.Batch) error {
				for _, e := range b.Events {
					seen = append(seen, e.Instance.Status.String())
				}
				return nil
			})
		}()
		got, err := s.Register(t.Context(), web("a"))
		require.NoError(t, err)
		require.True(t, got.Created)
		time.Sleep(9 * time.Second)
		beats, err := s.Heartbeat(t.Context(), []instances.Ref{{Lease: got.Lease}})
		require.NoError(t, err)
		require.NoError(t, beats[0].Err)
		time.Sleep(9 * time.Second)
		require.Equal(t, instance.StatusUp, s.status(t))
		time.Sleep(2 * time.Second)
		require.Equal(t, instance.StatusUnhealthy, s.status(t))
		time.Sleep(10 * time.Second)
		found, err := s.Discover(t.Context(), webs())
		require.NoError(t, err)
		require.Empty(t, found.Instances)
		beats, err = s.Heartbeat(t.Context(), []instances.Ref{{Lease: got.Lease}})
		require.NoError(t, err)
		require.ErrorIs(t, beats[0].Err, fault.Gone)
		cancel()
		require.ErrorIs(t, <-watched, fault.Canceled)
		require.Equal(t, []string{"UP", "UNHEALTHY", "DOWN"}, seen)
	})
}

// TestChecked checks that a check alone keeps an instance, takes it down and
// brings it up.
func TestChecked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := opened(t, nil)
		r := web("a")
		r.Spec.Check = &instance.Check{Type: instance.TCP, Interval: 2 * time.Second, UnhealthyThreshold: 2}
		r.Spec.RemoveAfter = time.Minute
		_, err := s.Register(t.Context(), r)
		require.NoError(t, err)
		time.Sleep(time.Minute)
		require.Equal(t, instance.StatusUp, s.status(t))
		s.fall(true)
		time.Sleep(6 * time.Second)
		require.Equal(t, instance.StatusDown, s.status(t))
		s.fall(false)
		time.Sleep(30 * time.Second)
		require.Equal(t, instance.StatusUp, s.status(t))
		_, err = s.Deregister(t.Context(), r.Key)
		require.NoError(t, err)
		_, err = s.Deregister(t.Context(), r.Key)
		require.ErrorIs(t, err, fault.NotFound)
	})
}

// TestRemovalIsTold: the end of an instance is a line of the log, and a list shows it for an hour with its cause, until the
// instance returns.
func TestRemovalIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		s := opened(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
		name := web("a").Name()
		checked := web("a")
		checked.Spec.Check = &instance.Check{Type: instance.TCP, Interval: 2 * time.Second}
		stays := checked
		stays.ID, stays.Spec.RemoveAfter = "stays", 0
		checked.Spec.RemoveAfter = time.Minute
		for _, r := range []instance.Registration{checked, stays, web("b"), web("c")} {
			_, err := s.Register(t.Context(), r)
			require.NoError(t, err)
		}
		require.Empty(t, s.Removed(name))
		_, err := s.Deregister(t.Context(), web("c").Key)
		require.NoError(t, err)
		s.fall(true)
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		list := s.Removed(name)
		slices.SortFunc(list, func(a, b instances.Removal) int { return a.Key.Compare(b.Key) })
		require.Len(t, list, 3)
		require.Equal(t, "neither a heartbeat nor a passed check came for 1m0s", list[0].Cause)
		require.Equal(t, instance.StatusDown, list[0].Status)
		require.Equal(t, "refused", list[0].LastCheck.Cause)
		require.Equal(t, "no heartbeat came for 20s", list[1].Cause)
		require.Nil(t, list[1].LastCheck)
		require.Equal(t, "deregistered", list[2].Cause)
		require.Equal(t, s.Removed(name), s.Removed(instance.Name{Namespace: "default"}))
		require.Empty(t, s.Removed(instance.Name{Namespace: "default", Service: "other"}))
		require.Equal(t, 2, strings.Count(log.String(), `msg="removed a silent instance"`))
		require.Contains(t, log.String(), `instance=default/web/a status=DOWN cause="neither a heartbeat nor a passed check came for 1m0s" last_check=`)
		i, _ := s.registry.Get(stays.Key)
		require.Equal(t, instance.StatusDown, i.Status)

		_, err = s.Register(t.Context(), web("b"))
		require.NoError(t, err)
		require.Len(t, s.Removed(name), 2, "it returned")
		for range 240 {
			time.Sleep(5 * time.Second)
			_, err = s.Heartbeat(t.Context(), []instances.Ref{{Key: web("b").Key}})
			require.NoError(t, err)
		}
		require.Len(t, s.Removed(name), 2)
		time.Sleep(time.Hour)
		require.Len(t, s.Removed(name), 1, "only the end of b is within the hour")
	})
}

// TestEndsAreBounded: no number of ended instances takes more memory, and the last ones keep their causes, also under readers.
func TestEndsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := opened(t, nil)
		for n := range catalog.MaxEnded + 50 {
			r := web(fmt.Sprint(n))
			_, err := s.Register(t.Context(), r)
			require.NoError(t, err)
			_, err = s.Deregister(t.Context(), r.Key)
			require.NoError(t, err)
			time.Sleep(time.Second)
			if n >= catalog.MaxEnded {
				s.Removed(instance.Name{})
			}
		}
		list := s.Removed(web("a").Name())
		require.Len(t, list, catalog.MaxEnded)
		require.Equal(t, catalog.MaxEnded, s.ends.known.Len())
		for _, r := range list {
			require.Equal(t, "deregistered", r.Cause)
		}
	})
}

// TestRestart checks that registrations survive the process, UNKNOWN until a
// sign of life.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := opened(t, nil)
		r := web("a")
		r.Spec.Offer = json.RawMessage(disk)
		got, err := s.Register(t.Context(), r)
		require.NoError(t, err)
		synctest.Wait()
		require.NotNil(t, s.market.record("disk"))
		before, err := s.Discover(t.Context(), webs())
		require.NoError(t, err)
		require.NoError(t, s.Close())
		s.start(t, nil)
		require.Equal(t, instance.StatusUp, s.status(t))
		require.NotNil(t, s.market.record("disk"))
		after, err := s.Discover(t.Context(), webs())
		require.NoError(t, err)
		require.Greater(t, after.Index, before.Index)
		beats, err := s.Heartbeat(t.Context(), []instances.Ref{{Lease: got.Lease}})
		require.NoError(t, err)
		require.NoError(t, beats[0].Err)
		require.Equal(t, instance.StatusUp, s.status(t))
	})
}

// An application may claim any part of its health. The agent compares it with the announced one every five minutes.
func TestOfferWithSomeClaims(t *testing.T) {
	for _, claims := range []string{`"uptime_percent":99.5`, `"response_time_ms":9`, `"error_rate":5`, `"status":"HEALTHY"`} {
		synctest.Test(t, func(t *testing.T) {
			s := opened(t, nil)
			r := web("a")
			r.Spec.UnhealthyAfter, r.Spec.RemoveAfter = time.Hour, time.Hour
			r.Spec.Offer = json.RawMessage(disk[:len(disk)-1] + `,"health":{` + claims + `}}`)
			_, err := s.Register(t.Context(), r)
			require.NoError(t, err)
			synctest.Wait()
			news := s.market.news
			time.Sleep(2 * remeasure)
			synctest.Wait()
			require.NotNil(t, s.market.record("disk"))
			require.Equal(t, news, s.market.news, "nothing new, nothing announced")
		})
	}
}

func TestDiffers(t *testing.T) {
	health := func(uptime float64, response uint64, errors uint32) records.Health {
		return records.Health{Status: "HEALTHY", UptimePercent: &uptime, ResponseTimeMs: &response, ErrorRate: &errors}
	}
	for _, c := range []struct {
		want bool
		a, b records.Health
	}{
		{false, health(99, 50, 0), health(99.5, 60, 99)},
		{true, health(99, 50, 0), health(98, 50, 0)},
		{true, health(99, 50, 0), health(99, 61, 0)},
		{true, health(99, 50, 0), health(99, 50, 100)},
		{false, health(99, 1, 0), health(99, 2, 0)},
		{false, records.Health{}, records.Health{}},
		{true, records.Health{}, health(99, 50, 0)},
		{true, health(99, 50, 0), records.Health{Status: "HEALTHY"}},
		{true, health(99, 50, 0), records.Health{Status: "DEGRADED"}},
	} {
		require.Equal(t, c.want, differs(c.a, c.b), "%+v %+v", c.a, c.b)
	}
}

// TestOffer checks that an offer is announced while its instance is UP.
func TestOffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := opened(t, nil)
		require.NoError(t, s.market.Announce(t.Context(), nameless, mustParse(t, `{"id":"mine","metadata":{"type":"storage","endpoints":["http://127.0.0.1:9000"]},"capabilities":{"storage":{"total_space":10,"available_space":5}}}`)))
		r := web("a")
		r.Spec.UnhealthyAfter, r.Spec.RemoveAfter = 30*time.Second, time.Minute
		r.Spec.Offer = json.RawMessage(`{"id":"mine","metadata":{"type":"storage"}}`)
		_, err := s.Register(t.Context(), r)
		require.ErrorIs(t, err, fault.Invalid)
		require.Contains(t, fault.FieldOf(err), "offer.")
		r.Spec.Offer = bytes.ReplaceAll([]byte(disk), []byte(`"disk"`), []byte(`"mine"`))
		_, err = s.Register(t.Context(), r)
		require.ErrorIs(t, err, fault.Exists)
		require.Equal(t, "offer.id", fault.FieldOf(err))

		r.Spec.Offer = json.RawMessage(disk)
		s.market.breaks(errors.New("no network"))
		_, err = s.Register(t.Context(), r)
		require.NoError(t, err)
		synctest.Wait()
		require.Nil(t, s.market.record("disk"))
		s.market.breaks(nil)
		time.Sleep(again)
		synctest.Wait()
		require.Equal(t, "HEALTHY", s.market.record("disk").Service().GetHealth().GetStatus().String())
		require.Equal(t, "default/web/a", s.market.record("disk").Service().GetMetadata().GetAttributes()[records.InstanceAttribute])

		beat := func() {
			_, err := s.Heartbeat(t.Context(), []instances.Ref{{Key: r.Key}})
			require.NoError(t, err)
		}
		beat()
		_, err = s.SetStatus(t.Context(), r.Key, instance.StatusOutOfService)
		require.NoError(t, err)
		synctest.Wait()
		require.Nil(t, s.market.record("disk"))
		_, err = s.SetStatus(t.Context(), r.Key, instance.StatusUp)
		require.NoError(t, err)
		synctest.Wait()
		require.NotNil(t, s.market.record("disk"))
		news := s.market.news
		beat()
		_, err = s.Register(t.Context(), r)
		require.NoError(t, err)
		synctest.Wait()
		require.Equal(t, news, s.market.news, "nothing new, nothing announced")
		time.Sleep(31 * time.Second)
		require.Nil(t, s.market.record("disk"), "it fell silent")
		require.NotNil(t, s.market.record("mine"))
	})
}

// TestOrphan checks that the start withdraws records without an instance.
func TestOrphan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMarket(t)
		o, err := parseOffer(web("gone").Key, json.RawMessage(disk))
		require.NoError(t, err)
		require.NoError(t, m.Announce(t.Context(), nameless, o))
		s := &fixture{disk: vfs.NewMem(), market: m}
		s.start(t, nil)
		defer s.Close()
		require.Nil(t, m.record("disk"))
	})
}

// TestOffersGoWithTheirInstances: whatever the order and the time of registrations, ends, announcements, withdrawals and restarts,
// the offers on sale are those of the living instances. Without room an instance says that its offer is not announced.
func TestOffersGoWithTheirInstances(t *testing.T) {
	for seed := range uint64(8) {
		for _, room := range []int{0, 7} {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, uint64(room)))
				m := newMarket(t)
				m.room, m.slow = room, func() time.Duration { return time.Duration(random.IntN(300)) * time.Millisecond }
				s := &fixture{disk: vfs.NewMem(), market: m}
				s.start(t, nil)
				draw := func(n int) int {
					m.mu.Lock()
					defer m.mu.Unlock()
					return random.IntN(n)
				}
				alive := map[string]int{} // instance to the number of its offer
				for range 300 {
					id := fmt.Sprint(draw(12))
					switch n := draw(10); {
					case n == 0:
						require.NoError(t, s.Close())
						s.start(t, nil)
					case n < 5:
						if _, err := s.Deregister(t.Context(), web(id).Key); err == nil {
							delete(alive, id)
						}
					default:
						r, offer := web(id), draw(2)
						r.Spec.RemoveAfter = instance.Never
						r.Spec.UnhealthyAfter = time.Hour
						r.Spec.Offer = json.RawMessage(strings.ReplaceAll(disk, `"disk"`, fmt.Sprintf("%q", fmt.Sprintf("disk-%s-%d", id, offer))))
						_, err := s.Register(t.Context(), r)
						require.NoError(t, err)
						alive[id] = offer
					}
					time.Sleep(time.Duration(draw(200)) * time.Millisecond)
				}
				for id := range alive { // a restart makes them unknown
					_, err := s.Heartbeat(t.Context(), []instances.Ref{{Key: web(id).Key}})
					require.NoError(t, err)
				}
				time.Sleep(time.Minute)
				var onSale, wanted []string
				for _, r := range m.OwnAll() {
					onSale = append(onSale, r.Name().ID)
				}
				refused := 0
				for id, offer := range alive {
					problems := s.Problems(web(id).Key)
					if len(problems) > 0 {
						require.Equal(t, "its offer is not announced: no room for more", problems[0])
						refused++
						continue
					}
					wanted = append(wanted, fmt.Sprintf("disk-%s-%d", id, offer))
				}
				require.ElementsMatch(t, wanted, onSale, "seed %d", seed)
				require.Equal(t, room > 0 && len(alive) > room, refused > 0, "seed %d", seed)
				require.NoError(t, s.Close())
			})
		}
	}
}

func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := opened(t, func(c *Config) { c.Validate, c.Strict = true, true })
		for field, change := range map[string]func(*instance.Registration){
			"host": func(r *instance.Registration) { r.Local = false },
			"port": func(r *instance.Registration) { r.Spec.Port = 70000 },
			"health_check.endpoint": func(r *instance.Registration) {
				r.Spec.Check = &instance.Check{Type: instance.HTTP, Endpoint: "http://169.254.169.254/"}
			},
			"metadata.dependencies": func(r *instance.Registration) { r.Spec.Dependencies = []string{"db", "web"} },
		} {
			r := web("a")
			change(&r)
			_, err := s.Register(t.Context(), r)
			require.Error(t, err, field)
			require.Equal(t, field, fault.FieldOf(err))
		}
		require.Empty(t, s.Census())
		_, err := s.Register(t.Context(), web("a"))
		require.NoError(t, err)
		_, err = s.Register(t.Context(), web("a"))
		require.ErrorIs(t, err, fault.Exists)
		r := web("b")
		r.Service, r.Spec.Dependencies = "shop", []string{"db", "web"}
		_, err = s.Register(t.Context(), r)
		require.ErrorIs(t, err, fault.Unprocessable)
		require.Equal(t, []string{"db"}, fault.ValueOf(err))
	})
}

// TestNamesAreWarnedOf: a registration is told what DNS makes of its names.
func TestNamesAreWarnedOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := opened(t, func(c *Config) { c.Multicast = true })
		for _, c := range []struct{ service, namespace, said string }{
			{"web", "", ""}, {"UserService", "", ""}, {"my_svc", "", ""},
			{"com.acme.app", "", "DNS cannot ask for the service com.acme.app: a service is one label there"},
			{"a-service-of-16b", "", "some programs do not find a-service-of-16b by multicast DNS: the name has 16 bytes, DNS-SD allows 15"},
			{"a-service-of-16b", "other", ""}, {"a-service-of-15", "", ""},
			{"userService", "", "DNS answers for the services userService and UserService as one"}, {"userService", "other", ""},
		} {
			r := web("a")
			r.Service, r.Namespace = c.service, c.namespace
			got, err := s.Register(t.Context(), r)
			require.NoError(t, err)
			require.Equal(t, c.service, got.Service)
			if c.said == "" {
				require.Empty(t, got.Warnings, c.service)
			} else {
				require.Len(t, got.Warnings, 1)
				require.Contains(t, got.Warnings[0], c.said)
			}
		}
	})
}

func mustParse(t *testing.T, text string) records.Offer {
	o, err := records.ParseOffer([]byte(text))
	require.NoError(t, err)
	return o
}
