package offers

import (
	"crypto/rand"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/blackhole/blackhole/internal/platform/store/storetest"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/geo"
	"github.com/blackhole/blackhole/pkg/records"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestRegister(t *testing.T) {
	r, now := open(t, config(t, vfs.NewMem()), epoch()), epoch()
	got := register(t, r, now, offer("b"), offer("a"))
	require.Equal(t, []string{"b", "a"}, ids(got))
	require.Equal(t, 2, r.Len())
	require.Equal(t, []string{"a", "b"}, ids(r.List()))
	a, ok := r.Get("a")
	require.True(t, ok)
	require.Equal(t, uint64(now.UnixMilli()), a.Sequence())
	require.Equal(t, now, created(a))
	require.Equal(t, now, a.Issued())
	require.Equal(t, now.Add(DefaultTTL), a.Expires())
	_, ok = r.Get("c")
	require.False(t, ok)
	_, err := records.Open("test", a.Envelope(), now)
	require.NoError(t, err)
}

func TestRegisterRefuses(t *testing.T) {
	c := config(t, vfs.NewMem())
	c.MaxServices = 3
	r, now := open(t, c, epoch()), epoch()
	register(t, r, now, offer("a"))
	bad := offer("bad")
	bad.Metadata.Type = "No Type"
	accepted, errs := r.Register([]records.Offer{offer("a"), bad, offer("b"), offer("b"), offer("c"), offer("d")}, now)
	for i, want := range []error{fault.Exists, fault.Invalid, nil, fault.Exists, nil, fault.LimitReached} {
		require.ErrorIs(t, errs[i], want, i)
		require.Equal(t, want == nil, accepted[i] != nil, i)
	}
	require.Equal(t, "id", fault.FieldOf(errs[0]))
	require.Equal(t, "metadata.type", fault.FieldOf(errs[1]))
	require.Equal(t, []string{"a", "b", "c"}, ids(r.List()))

	// After a refused first offer, the second can use the id.
	_, err := r.Withdraw("a", now)
	require.NoError(t, err)
	twice := bad
	twice.ID = "e"
	_, errs = r.Register([]records.Offer{twice, offer("e")}, now)
	require.ErrorIs(t, errs[0], fault.Invalid)
	require.NoError(t, errs[1])
}

func TestWithdrawnIDsAreBounded(t *testing.T) {
	c := config(t, vfs.NewMem())
	c.MaxServices = 1
	r, now := open(t, c, epoch()), epoch()
	for i := range NamesPerService {
		_, errs := r.RegisterFor(Caller{Name: strconv.Itoa(i), Operator: true}, []records.Offer{offer(strconv.Itoa(i))}, now)
		require.NoError(t, errs[0])
		_, err := r.Withdraw(strconv.Itoa(i), now)
		require.NoError(t, err)
	}
	_, errs := r.Register([]records.Offer{offer("more")}, now)
	require.ErrorIs(t, errs[0], &fault.Error{Kind: fault.PoolExhausted, Field: "pool.offers"})
	require.Equal(t, DefaultTTL, fault.ValueOf(errs[0]), "the oldest lapses then")
	register(t, r, now, offer("0")) // a known id needs no further room
	_, err := r.Withdraw("0", now)
	require.NoError(t, err)

	r.Due(now.Add(DefaultTTL), 100)
	register(t, r, now.Add(DefaultTTL), offer("more"))
}

// TestWithdrawnOffersAreShared: callers that register and withdraw without end leave ids to each other, and a quarter
// to operators, over a restart too. Operators leave ids to each other and to the others.
func TestWithdrawnOffersAreShared(t *testing.T) {
	c := config(t, vfs.NewMem())
	r, now := open(t, c, epoch()), epoch()
	made := 0
	operator := false
	flood := func(caller string) (taken int) {
		for range 2000 {
			made++
			o := offer(caller + "-" + strconv.Itoa(made))
			_, errs := r.RegisterFor(Caller{caller, operator}, []records.Offer{o}, now)
			if errs[0] != nil {
				require.ErrorIs(t, errs[0], fault.PoolExhausted)
				require.Equal(t, DefaultTTL, fault.ValueOf(errs[0]))
				continue
			}
			taken++
			_, err := r.Withdraw(o.ID, now)
			require.NoError(t, err)
		}
		return taken
	}
	places := NamesPerService * c.withDefaults().MaxServices
	require.InDelta(t, places*9/16, flood("a"), 2, "three quarters of what the operator leaves")
	require.NoError(t, r.Close())
	r = open(t, c, now)
	require.Zero(t, flood("a"), "its share is known after a restart")
	for _, caller := range []string{"b", "c", "d", "e"} {
		require.Positive(t, flood(caller), caller)
	}
	operator = true
	require.GreaterOrEqual(t, flood("mine"), places*3/16, "three quarters of what is for operators")
	require.Positive(t, flood("second"))
	lapse := func() {
		now = now.Add(DefaultTTL)
		r.Due(now, 10_000)
	}
	lapse()
	require.InDelta(t, places*3/4, flood("mine"), 2)
	require.NoError(t, r.Close())
	r = open(t, c, now)
	require.Zero(t, flood("mine"), "its share is known after a restart")
	require.Positive(t, flood("second"))
	operator = false
	require.Positive(t, flood("a"), "what operators have is of the part for them")
	lapse()
	require.Positive(t, flood("a"), "the records of its withdrawn ones have lapsed")
}

func TestUpdate(t *testing.T) {
	r, now := open(t, config(t, vfs.NewMem()), epoch()), epoch()
	first := register(t, r, now, offer("a"))[0]
	changed := offer("a")
	changed.Metadata.Name = "Other"
	second, err := r.Update(changed, now.Add(time.Hour))
	require.NoError(t, err)
	require.Equal(t, now, created(second), "an update keeps created_at")
	require.Equal(t, now.Add(time.Hour), second.Issued())
	require.Positive(t, records.Compare(second, first))
	require.Equal(t, "Other", second.Service().GetMetadata().GetName())

	_, err = r.Update(offer("b"), now)
	require.ErrorIs(t, err, fault.NotFound)
	changed.Metadata.Type = ""
	_, err = r.Update(changed, now)
	require.ErrorIs(t, err, fault.Invalid)
	require.Equal(t, "metadata.type", fault.FieldOf(err))
	unchanged, _ := r.Get("a")
	require.Same(t, second, unchanged)
}

func TestWithdraw(t *testing.T) {
	c := config(t, vfs.NewMem())
	r, now := open(t, c, epoch()), epoch()
	first := register(t, r, now, offer("a"))[0]
	tombstone, err := r.Withdraw("a", now.Add(time.Hour))
	require.NoError(t, err)
	require.True(t, tombstone.Withdrawn())
	require.Positive(t, records.Compare(tombstone, first))
	require.False(t, tombstone.Expires().Before(first.Expires()))

	_, ok := r.Get("a")
	require.False(t, ok)
	_, ok = r.Offer("a")
	require.False(t, ok)
	require.Empty(t, r.List())
	require.Zero(t, r.Len())
	_, err = r.Withdraw("a", now)
	require.ErrorIs(t, err, fault.NotFound)
	_, err = r.Update(offer("a"), now)
	require.ErrorIs(t, err, fault.NotFound)

	later := now.Add(2 * time.Hour)
	again := register(t, r, later, offer("a"))[0]
	require.Equal(t, later, created(again), "a new registration")
	require.Positive(t, records.Compare(again, tombstone))
}

func TestNothingIsShared(t *testing.T) {
	r, now := open(t, config(t, vfs.NewMem()), epoch()), epoch()
	o := offer("a")
	o.Metadata.Attributes = map[string]string{"k": "given"}
	register(t, r, now, o)
	o.Metadata.Attributes["k"] = "changed"
	got, ok := r.Offer("a")
	require.True(t, ok)
	require.Equal(t, "given", got.Metadata.Attributes["k"])
	got.Metadata.Attributes["k"] = "changed"
	got, _ = r.Offer("a")
	require.Equal(t, "given", got.Metadata.Attributes["k"])
}

func TestExactPlaceStaysLocal(t *testing.T) {
	c := config(t, vfs.NewMem())
	c.PublishPrecision, c.Precision = 4, 5
	now := epoch()
	r, err := Open(c, now)
	require.NoError(t, err)
	exact := geo.Point{Lat: 52.520008, Lon: 13.404954}
	published := register(t, r, now, at(offer("a"), exact.Lat, exact.Lon))[0]
	require.NoError(t, r.Close())

	check := func(v *records.Record) {
		p, ok := v.Facts().Place()
		require.True(t, ok)
		require.NotEqual(t, exact, p)
		require.Equal(t, geo.CellOf(exact, 4), geo.CellOf(p, 4))
		require.Len(t, v.Key().Cell, 5)
	}
	check(published)
	r = open(t, c, now)
	kept, ok := r.Offer("a")
	require.True(t, ok)
	require.Equal(t, at(offer("a"), exact.Lat, exact.Lon), kept)
	refreshed := r.Due(now.Add(DefaultRefresh), 1)[0]
	require.Greater(t, refreshed.Sequence(), published.Sequence())
	check(refreshed)
}

func TestMoveLeavesTombstone(t *testing.T) {
	c := config(t, vfs.NewMem())
	now := epoch()
	r, err := Open(c, now)
	require.NoError(t, err)
	berlin := register(t, r, now, at(offer("a"), 52.52, 13.40))[0]
	done(r, now, berlin)

	paris, err := r.Update(at(offer("a"), 48.85, 2.35), now)
	require.NoError(t, err)
	due := r.Due(now, 10)
	require.Len(t, due, 1, "the tombstone is due at once, the new version is handed out")
	tombstone := due[0]
	require.True(t, tombstone.Withdrawn())
	require.Equal(t, berlin.Key(), tombstone.Key())
	require.Equal(t, []*records.Record{tombstone, paris}, r.Due(now.Add(ackTimeout), 10))
	require.Positive(t, records.Compare(tombstone, berlin))
	require.Positive(t, records.Compare(paris, tombstone), "where both belong, the new version wins")
	require.NoError(t, r.Close())

	r = open(t, c, now)
	require.Equal(t, []string{"a", "a"}, ids(r.Due(now, 10)), "the tombstone survives a restart")
	require.Equal(t, 1, r.Len())

	// Back at the first place: its tombstone would end the service and is dropped; Paris gets one instead.
	home, err := r.Update(at(offer("a"), 52.52, 13.40), now)
	require.NoError(t, err)
	due = r.Due(now, 10)
	require.Len(t, due, 1)
	require.Equal(t, paris.Key(), due[0].Key())
	require.Equal(t, []*records.Record{due[0], home}, r.Due(now.Add(ackTimeout), 10))
	require.Len(t, r.services["a"].versions(), 2)

	// It is deleted once all versions have lapsed.
	end := now.Add(DefaultTTL)
	done(r, end, r.Due(end, 10)...)
	require.Len(t, r.services["a"].versions(), 1)
}

func TestTombstonesAreBounded(t *testing.T) {
	r, now := open(t, config(t, vfs.NewMem()), epoch()), epoch()
	register(t, r, now, at(offer("a"), 0, 0))
	for i := range 3 * maxTombstones {
		now = now.Add(time.Second)
		_, err := r.Update(at(offer("a"), 0, float64(i+1)), now)
		require.NoError(t, err)
	}
	versions := r.services["a"].versions()
	require.Len(t, versions, maxTombstones+1)
	require.Len(t, r.scheduler.tasks, maxTombstones+1)
	for i := range versions[1:] {
		require.Positive(t, records.Compare(versions[i+1], versions[i]))
	}
}

func TestReregistrationElsewhereKeepsTombstone(t *testing.T) {
	r, now := open(t, config(t, vfs.NewMem()), epoch()), epoch()
	register(t, r, now, at(offer("a"), 52.52, 13.40))
	tombstone, err := r.Withdraw("a", now)
	require.NoError(t, err)
	again := register(t, r, now, at(offer("a"), 48.85, 2.35))[0]
	require.Empty(t, r.Due(now, 10), "both are handed out")
	require.Equal(t, []*records.Record{tombstone, again}, r.Due(now.Add(ackTimeout), 10))
}

func TestClockWasAhead(t *testing.T) {
	c := config(t, vfs.NewMem())
	ahead, now := epoch().Add(30*24*time.Hour), epoch()
	r, err := Open(c, ahead)
	require.NoError(t, err)
	future := register(t, r, ahead, offer("a"), offer("b"))
	require.NoError(t, r.Close())

	r = open(t, c, now)
	tombstone, err := r.Withdraw("a", now)
	require.NoError(t, err)
	require.Greater(t, tombstone.Sequence(), future[0].Sequence())
	require.False(t, tombstone.Expires().Before(future[0].Expires()))
	require.False(t, tombstone.Issued().After(future[0].Issued()), "peers that accepted the record accept its tombstone")

	due := r.Due(now, 10)
	require.Equal(t, []string{"b"}, ids(due))
	b := due[0]
	require.Greater(t, b.Sequence(), future[1].Sequence())
	_, err = records.Open("test", b.Envelope(), now)
	require.NoError(t, err, "a version from the future is replaced at once")
	require.Equal(t, []*records.Record{tombstone, b}, r.Due(now.Add(ackTimeout), 10))
}

func TestSequenceOutlivesTombstone(t *testing.T) {
	c := config(t, vfs.NewMem())
	now := epoch()
	r, err := Open(c, now)
	require.NoError(t, err)
	register(t, r, now, offer("a"))
	tombstone, err := r.Withdraw("a", now)
	require.NoError(t, err)
	require.Empty(t, r.Due(now.Add(DefaultTTL), 10))
	require.Empty(t, r.services)
	_, ok := r.NextDue()
	require.False(t, ok)
	require.NoError(t, r.Close())

	r = open(t, c, now)
	require.Empty(t, r.services, "it is gone from the disk")
	again := register(t, r, now.Add(-time.Hour), offer("a"))[0]
	require.Greater(t, again.Sequence(), tombstone.Sequence())
}

func TestSequenceNumbersRunOut(t *testing.T) {
	_, err := next(1<<64-1, epoch())
	require.ErrorIs(t, err, fault.LimitReached)
}

func TestClosed(t *testing.T) {
	r, now := open(t, config(t, vfs.NewMem()), epoch()), epoch()
	register(t, r, now, offer("a"))
	require.NoError(t, r.Close())
	require.NoError(t, r.Close())
	_, errs := r.Register([]records.Offer{offer("b")}, now)
	require.ErrorIs(t, errs[0], fault.Unavailable)
	_, err := r.Update(offer("a"), now)
	require.ErrorIs(t, err, fault.Unavailable)
	_, err = r.Withdraw("a", now)
	require.ErrorIs(t, err, fault.Unavailable)
	require.Empty(t, r.Due(now, 10))
	require.Equal(t, 1, r.Len())
}

// prepared closes a registry with two services.
func prepared(t *testing.T) Config {
	c := config(t, vfs.NewMem())
	r, err := Open(c, epoch())
	require.NoError(t, err)
	register(t, r, epoch(), offer("a"), offer("b"))
	require.NoError(t, r.Close())
	return c
}

func read(t *testing.T, c Config) map[string]string { return storetest.Read(t, c.FS, c.Dir) }

func write(t *testing.T, c Config, key, value string) {
	storetest.Write(t, c.FS, c.Dir, map[string]string{key: value})
}

func TestOpenRefuses(t *testing.T) {
	t.Run("another identity", func(t *testing.T) {
		c := prepared(t)
		mine := self(t, c)
		c.Key = key(t, 2)
		_, err := Open(c, epoch())
		require.ErrorIs(t, err, fault.Conflict)
		require.ErrorContains(t, err, mine.String())
		require.ErrorContains(t, err, self(t, c).String())
	})
	t.Run("in use", func(t *testing.T) {
		c := prepared(t)
		open(t, c, epoch())
		_, err := Open(c, epoch())
		require.ErrorIs(t, err, fault.Unavailable)
	})
	t.Run("not ours", func(t *testing.T) {
		c := config(t, vfs.NewMem())
		write(t, c, "somebody", "else's")
		_, err := Open(c, epoch())
		require.ErrorIs(t, err, fault.Internal)
		require.ErrorContains(t, err, "somebody")
	})
	t.Run("no directory", func(t *testing.T) {
		c := config(t, vfs.NewMem())
		f, err := c.FS.Create("/home", vfs.WriteCategoryUnspecified)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		_, err = Open(c, epoch())
		require.ErrorIs(t, err, fault.Unavailable)
	})
}

func TestOpenRefusesCorruptValues(t *testing.T) {
	constant := func(value string) func(*testing.T, Config) string {
		return func(*testing.T, Config) string { return value }
	}
	for name, k := range map[string]struct {
		key  string
		make func(t *testing.T, c Config) string
		kind fault.Kind
	}{
		"not JSON":      {"service/a", constant("{"), fault.Internal},
		"empty":         {"service/a", constant(""), fault.Internal},
		"newer value":   {"service/a", constant(`{"format":2}`), fault.Unsupported},
		"unknown field": {"service/a", constant(`{"format":1,"colour":"red"}`), fault.Internal},
		"unknown key":   {"zebra", constant(""), fault.Internal},
		"meta not JSON": {"meta", constant("x"), fault.Internal},
		"not its own":   {"service/a", func(t *testing.T, c Config) string { return read(t, c)["service/b"] }, fault.Internal},
		"followed":      {"service/a", func(t *testing.T, c Config) string { return read(t, c)["service/a"] + "{}" }, fault.Internal},
		"offer of other": {"service/a", func(t *testing.T, c Config) string {
			return strings.Replace(read(t, c)["service/a"], `"id":"a"`, `"id":"b"`, 1)
		}, fault.Internal},
		"early end": {"service/a", func(t *testing.T, c Config) string {
			return strings.Replace(read(t, c)["service/a"], `"until":"2026`, `"until":"2025`, 1)
		}, fault.Internal},
		"signature": {"service/a", func(t *testing.T, c Config) string {
			v := read(t, c)["service/a"]
			end := strings.LastIndex(v, `"}`) // of the envelope in base64
			return v[:end-8] + "AAAAAAAA" + v[end:]
		}, fault.Internal}, // damage of the disk, not a forgery
	} {
		t.Run(name, func(t *testing.T) {
			c := prepared(t)
			bad := k.make(t, c)
			write(t, c, k.key, bad)
			_, err := Open(c, epoch())
			require.ErrorContains(t, err, k.key)
			require.Equal(t, k.kind, fault.KindOf(err))
			require.Equal(t, bad, read(t, c)[k.key], "nothing is deleted")
		})
	}
}

func TestConfigValidate(t *testing.T) {
	require.NoError(t, config(t, nil).Validate())
	short := config(t, nil)
	short.TTL = time.Minute // the refresh interval is shorter too
	require.NoError(t, short.Validate())
	ecdsa, _, err := crypto.GenerateECDSAKeyPair(rand.Reader)
	require.NoError(t, err)
	for field, spoil := range map[string]func(*Config){
		"dir":               func(c *Config) { c.Dir = "" },
		"key":               func(c *Config) { c.Key = ecdsa },
		"max_services":      func(c *Config) { c.MaxServices = records.MaxPerProvider + 1 },
		"ttl":               func(c *Config) { c.TTL = records.MaxTTL + 1 },
		"refresh":           func(c *Config) { c.Refresh = DefaultTTL/2 + 1 },
		"precision":         func(c *Config) { c.Precision = 3 },
		"publish_precision": func(c *Config) { c.PublishPrecision = 13 },
	} {
		c := config(t, nil)
		spoil(&c)
		_, err := Open(c, epoch())
		require.ErrorIs(t, err, fault.Invalid, field)
		require.Equal(t, field, fault.FieldOf(err))
	}
}

// TestConcurrentUse is for the race detector, with assertions for any order.
func TestConcurrentUse(t *testing.T) {
	c := config(t, vfs.NewMem())
	c.MaxServices = 8
	r, now := open(t, c, epoch()), epoch()
	var work sync.WaitGroup
	for g := range 4 {
		id := strconv.Itoa(g)
		work.Go(func() {
			for i := range 20 {
				at := now.Add(time.Duration(i) * time.Minute)
				r.Register([]records.Offer{offer(id), offer("shared")}, at)
				if v, err := r.Update(offer(id), at); err == nil {
					r.Announced(v.Name(), v.Sequence(), records.Stored{On: 1, Of: 1}, at)
				}
				_, _ = r.Withdraw("shared", at)
			}
		})
		work.Go(func() {
			for i := range 20 {
				at := now.Add(time.Duration(i) * time.Hour)
				due := r.Due(at, 2)
				done(r, at, due...)
				r.NextDue()
				list := r.List()
				if len(list) > c.MaxServices {
					t.Errorf("%d services", len(list))
				}
				r.Get(id)
				r.Offer(id)
				r.Len()
			}
		})
	}
	work.Wait()
	require.GreaterOrEqual(t, r.Len(), 4)
}
