package ledger

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	pb "github.com/blackhole/blackhole/proto/blackhole/trade/v1"
)

func epoch() time.Time { return time.Unix(1_800_000_000, 0) }

func terms(total uint32) Terms {
	price := 0.4
	return Terms{Key: "/k/gpu", Offer: "gpu", Sequence: 7, Unit: "gpu", Total: total, MaxTime: time.Hour, Price: &price, Currency: "USDC", PriceUnit: "per-hour"}
}

func ask(units uint32, id string) *api.ReserveRequest {
	return &api.ReserveRequest{Key: "/k/gpu", Units: units, TtlMs: 100_000, RequestId: id}
}

// TestTimes: a grant ends at its time, its units are free a twentieth later, and it is remembered as long again. A restart gives it its full time.
func TestTimes(t *testing.T) {
	l, offer := New(), terms(4)
	e, err := l.Reserve(Consumer{ID: "a"}, ask(1, "r1"), offer, 0, epoch())
	require.NoError(t, err)
	require.Equal(t, 100*time.Second, l.Left(e.Token, 0))
	require.False(t, l.Expire(100*time.Second-1))
	_, err = l.Holder("a", e.Token, 100*time.Second)
	require.ErrorIs(t, err, fault.Gone, "it has ended before anybody says so")
	require.True(t, l.Expire(100*time.Second))
	require.Equal(t, uint32(3), l.Free(offer))
	next, ok := l.Next()
	require.True(t, ok)
	require.Equal(t, 105*time.Second, next)
	require.True(t, l.Expire(105*time.Second))
	require.Equal(t, uint32(4), l.Free(offer))
	repeated, err := l.Reserve(Consumer{ID: "a"}, ask(1, "r1"), offer, 106*time.Second, epoch())
	require.NoError(t, err)
	require.Equal(t, e.Token, repeated.Token, "a late repetition has no second effect")
	require.Equal(t, api.Grant_STATE_EXPIRED, repeated.State)
	require.Equal(t, uint32(4), Load(l.State(), nil, 106*time.Second).Free(offer), "a restart knows that they are free")
	require.False(t, l.Expire(210*time.Second-1))
	require.True(t, l.Expire(210*time.Second))
	require.Empty(t, l.Entries())

	e, err = l.Reserve(Consumer{ID: "a"}, ask(1, "r2"), offer, 0, epoch().Add(-time.Hour))
	require.NoError(t, err)
	require.Greater(t, e.Token, uint64(epoch().UnixMilli()), "tokens rise, whatever the clock says")
	again := Load(l.State(), nil, 90*time.Second)
	require.Equal(t, 100*time.Second, again.Left(e.Token, 90*time.Second), "who did not know it gives it its full time")
	require.Equal(t, 10*time.Second, Load(l.State(), l, 90*time.Second).Left(e.Token, 90*time.Second))
}

// TestNews: what began and what ended between two states, each once, also if nothing of it is left.
func TestNews(t *testing.T) {
	l, offer := New(), terms(8)
	tokens := func(all []*pb.Entry) (list []string) {
		for _, e := range all {
			list = append(list, e.RequestId+" "+e.State.String())
		}
		return list
	}
	is := func(before *Ledger, began, ended []string) {
		t.Helper()
		b, e := l.News(before)
		require.Equal(t, began, tokens(b))
		require.Equal(t, ended, tokens(e))
	}
	before := l.Clone()
	first, err := l.Reserve(Consumer{ID: "a"}, ask(1, "r1"), offer, 0, epoch())
	require.NoError(t, err)
	short, err := l.Reserve(Consumer{ID: "a"}, ask(1, "r2"), offer, 0, epoch())
	require.NoError(t, err)
	_, err = l.Release("a", short.Token, 0)
	require.NoError(t, err)
	is(before, []string{"r1 STATE_ACTIVE", "r2 STATE_RELEASED"}, []string{"r2 STATE_RELEASED"})
	before = l.Clone()
	_, err = l.Extend("a", &api.ExtendRequest{Token: first.Token}, offer, time.Second)
	require.NoError(t, err)
	is(before, nil, nil)
	for at, ended := range map[time.Duration][]string{102 * time.Second: {"r1 STATE_EXPIRED"}, time.Hour: {"r1 STATE_EXPIRED"}} {
		l = before.Clone()
		require.True(t, l.Expire(at))
		is(before, nil, ended)
	}
	before = l.Clone()
	l.Expire(2 * time.Hour)
	is(before, nil, nil)
}

// TestRepetitions: a repeated request has one effect, also after the end of its grant.
func TestRepetitions(t *testing.T) {
	l, offer := New(), terms(8)
	first, err := l.Reserve(Consumer{ID: "a"}, ask(1, "r1"), offer, 0, epoch())
	require.NoError(t, err)
	again, err := l.Reserve(Consumer{ID: "a"}, ask(1, "r1"), offer, time.Second, epoch())
	require.NoError(t, err)
	require.Same(t, first, again)
	_, err = l.Reserve(Consumer{ID: "a"}, ask(2, "r1"), offer, 0, epoch())
	require.ErrorIs(t, err, fault.Conflict)
	other, err := l.Reserve(Consumer{ID: "b"}, ask(1, "r1"), offer, 0, epoch())
	require.NoError(t, err, "ids of requests belong to their consumer")
	require.Greater(t, other.Token, first.Token)

	extend := &api.ExtendRequest{Token: first.Token, RequestId: "x1"}
	_, err = l.Extend("a", extend, offer, 50*time.Second)
	require.NoError(t, err)
	_, err = l.Extend("a", extend, offer, 70*time.Second)
	require.NoError(t, err)
	require.Equal(t, 80*time.Second, l.Left(first.Token, 70*time.Second))

	_, err = l.Release("a", first.Token, 71*time.Second)
	require.NoError(t, err)
	again, err = l.Reserve(Consumer{ID: "a"}, ask(1, "r1"), offer, 72*time.Second, epoch())
	require.NoError(t, err)
	require.Equal(t, api.Grant_STATE_RELEASED, again.State, "a late copy of the request takes nothing")
	require.Equal(t, uint32(7), l.Free(offer))
	_, err = l.Extend("a", &api.ExtendRequest{Token: first.Token}, offer, 72*time.Second)
	require.ErrorContains(t, err, "was released")
	_, err = l.Extend("b", &api.ExtendRequest{Token: first.Token}, offer, 72*time.Second)
	require.ErrorIs(t, err, fault.NotFound, "the token of somebody else is unknown")
	_, err = l.Revoke(other.Token, "maintenance", 72*time.Second)
	require.NoError(t, err)
	_, err = l.Holder("b", other.Token, 72*time.Second)
	require.ErrorContains(t, err, "was revoked (maintenance)")

	brief := ask(1, "r2")
	brief.TtlMs = uint64(MinTime.Milliseconds())
	first, err = l.Reserve(Consumer{ID: "a"}, brief, offer, 100*time.Second, epoch())
	require.NoError(t, err)
	l.Expire(160 * time.Second)
	again, err = l.Reserve(Consumer{ID: "a"}, brief, offer, 160*time.Second, epoch())
	require.NoError(t, err)
	require.Equal(t, first.Token, again.Token, "who lost the answer repeats for longer than a brief grant lasts")
	l.Expire(163 * time.Second)
	again, err = l.Reserve(Consumer{ID: "a"}, brief, offer, 163*time.Second, epoch())
	require.NoError(t, err)
	require.Greater(t, again.Token, first.Token, "nobody remembers for ever")
}

// TestHolds: a hold ends after a minute unless its holder confirms it, by a call or by use.
func TestHolds(t *testing.T) {
	l, offer := New(), terms(40)
	hold := func(id string) *api.ReserveRequest {
		r := ask(1, id)
		r.Hold, r.TtlMs = true, 3_600_000
		return r
	}
	used, err := l.Reserve(Consumer{ID: "a"}, hold("1"), offer, 0, epoch())
	require.NoError(t, err)
	called, err := l.Reserve(Consumer{ID: "a"}, hold("2"), offer, 0, epoch())
	require.NoError(t, err)
	_, err = l.Reserve(Consumer{ID: "a"}, hold("3"), offer, 0, epoch())
	require.NoError(t, err)
	_, err = l.Reserve(Consumer{ID: "a"}, hold("4"), offer, 0, epoch())
	require.NoError(t, err)
	_, err = l.Reserve(Consumer{ID: "a"}, hold("5"), offer, 0, epoch())
	require.ErrorContains(t, err, "4 grants of yours or of your network are held and not confirmed, at most 4 may be")
	_, err = l.Confirm("a", used.Token, "", 59*time.Second)
	require.NoError(t, err)
	_, err = l.Extend("a", &api.ExtendRequest{Token: called.Token, TtlMs: 60_000}, offer, 59*time.Second)
	require.NoError(t, err)
	require.True(t, l.Expire(60*time.Second))
	require.Equal(t, time.Hour-time.Second, l.Left(used.Token, 60*time.Second))
	require.Equal(t, 59*time.Second, l.Left(called.Token, 60*time.Second))
	require.Equal(t, uint32(36), l.Free(offer))
	require.True(t, l.Expire(63*time.Second))
	require.Equal(t, uint32(38), l.Free(offer), "the margin of a hold is a twentieth of its minute")
}

// TestRefusals name their numbers.
func TestRefusals(t *testing.T) {
	l, offer := New(), terms(8)
	grant := func(id, prefix string, units uint32) error {
		_, err := l.Reserve(Consumer{ID: id, Prefix: prefix}, ask(units, fmt.Sprint(id, units)), offer, 0, epoch())
		return err
	}
	require.ErrorContains(t, grant("a", "", 3), "asks for 3 gpu: one consumer may have 2 of 8, and you have 0")
	require.NoError(t, grant("a", "192.0.2.0/24", 2))
	require.NoError(t, grant("b", "192.0.2.0/24", 2))
	require.ErrorContains(t, grant("c", "192.0.2.0/24", 1), "consumers in 192.0.2.0/24 may have 4 of 8 together, and they have 4")
	require.NoError(t, grant("c", "198.51.100.0/24", 2))
	require.NoError(t, grant("d", "198.51.100.0/24", 1))
	require.ErrorContains(t, grant("e", "", 2), "asks for 2 gpu, and 1 of 8 are free")

	for want, change := range map[string]func(*api.ReserveRequest){
		"names version 6 of the offer, and the newest is 7": func(r *api.ReserveRequest) { r.Sequence = 6 },
		"is 0.3, and the price is 0.4 USDC per-hour":        func(r *api.ReserveRequest) { r.MaxPrice = proto.Float64(0.3) },
		"must be 1000 to 3600000":                           func(r *api.ReserveRequest) { r.TtlMs = 3_600_001 },
		"must be 1000 to 3600000 ":                          func(r *api.ReserveRequest) { r.TtlMs = 1<<64 - 1 },
	} {
		r := ask(1, "x")
		change(r)
		_, err := l.Reserve(Consumer{ID: "z"}, r, offer, 0, epoch())
		require.ErrorContains(t, err, strings.TrimSpace(want))
	}
	dearer := offer
	dearer.Price, dearer.Sequence = proto.Float64(0.5), 8
	_, err := l.Extend("a", &api.ExtendRequest{Token: l.Entries()[0].Token}, dearer, 0)
	require.ErrorContains(t, err, "has another price than version 8 of the offer")
}

// TestMost: a consumer gets as many units as it is told, and not one more, whatever share is used up first.
func TestMost(t *testing.T) {
	l, offer, n := New(), terms(8), 0
	offer.PerOne = 3
	take := func(by Consumer, units uint32) error {
		n++
		_, err := l.Reserve(by, ask(units, fmt.Sprint(n)), offer, 0, epoch())
		return err
	}
	for _, c := range []struct {
		by   Consumer
		most uint32
	}{
		{Consumer{ID: "a", Prefix: "p"}, 3}, {Consumer{ID: "a", Prefix: "p"}, 0}, {Consumer{ID: "b", Prefix: "p"}, 1}, // of four for a network
		{Consumer{ID: "c"}, 3}, {Consumer{ID: "d"}, 1}, // what is free
	} {
		require.Equal(t, c.most, l.Most(c.by, offer), c.by)
		require.Error(t, take(c.by, c.most+1))
		if c.most > 0 {
			require.NoError(t, take(c.by, c.most))
		}
	}
}

// TestFlood: one network neither fills the ledger nor makes it forget the requests of others, whether it gives back what it
// takes or not.
func TestFlood(t *testing.T) {
	l, offer := New(), terms(1_000_000)
	early := Consumer{ID: "early", Prefix: "203.0.113.0/24"}
	first, err := l.Reserve(early, ask(1, "r"), offer, 0, epoch())
	require.NoError(t, err)
	_, err = l.Release(early.ID, first.Token, 0)
	require.NoError(t, err)
	refused := 0
	for i := range 3 * maxEntries {
		by := Consumer{ID: fmt.Sprint("flood", i), Prefix: "192.0.2.0/24"}
		e, err := l.Reserve(by, ask(1, "r"), offer, 0, epoch())
		if err != nil {
			require.ErrorIs(t, err, fault.LimitReached)
			refused++
			continue
		}
		if i < 2*maxEntries {
			_, err = l.Release(by.ID, e.Token, 0)
			require.NoError(t, err)
		}
		require.LessOrEqual(t, len(l.Entries()), maxEntries)
	}
	require.NotZero(t, refused)
	require.Less(t, refused, maxEntries, "who gives units back may take others")
	again, err := l.Reserve(early, ask(1, "r"), offer, 0, epoch())
	require.NoError(t, err)
	require.Equal(t, first.Token, again.Token, "an earlier request is still known")
	_, err = l.Reserve(Consumer{ID: "other", Prefix: "198.51.100.0/24"}, ask(1, "r"), offer, 0, epoch())
	require.NoError(t, err)
}

// belief is what a consumer thinks that it holds: until a time of its own, counted from before it asked.
type belief struct {
	units uint32
	until time.Duration
}

// TestRandom: consumers repeat, lose and reorder requests at two granters that share the durable state, crash and
// start again. At no moment do the consumers together believe in more units than there are, and in the end all
// units are free.
func TestRandom(t *testing.T) {
	for seed := range uint64(300) {
		draw := rand.New(rand.NewPCG(seed, 1))
		const total = 6
		offer := terms(total)
		offer.PerOne = 4
		durable, revision := &pb.Ledger{}, 0
		type granter struct {
			l    *Ledger
			read int
		}
		granters := []*granter{{l: New()}, {l: New()}}
		beliefs := map[uint64]belief{}
		tokens := map[uint64]string{}
		highest := uint64(0)
		now := time.Duration(0)
		// commit is one compare-and-swap.
		commit := func(g *granter, to *Ledger) bool {
			if g.read != revision {
				g.l, g.read = Load(durable, g.l, now), revision
				return false
			}
			revision++
			durable, g.l, g.read = proto.CloneOf(to.State()), to, revision
			return true
		}
		for step := range 400 {
			now += time.Duration(draw.IntN(9_000)) * time.Millisecond
			g := granters[draw.IntN(2)]
			consumer := fmt.Sprint("c", draw.IntN(4))
			to := g.l.Clone()
			to.Expire(now)
			sent := now - time.Duration(draw.IntN(3_000))*time.Millisecond // requests are late
			clock := epoch().Add(time.Duration(draw.IntN(7200)-3600) * time.Second)
			switch draw.IntN(8) {
			case 0, 1, 2:
				r := ask(1+draw.Uint32N(3), fmt.Sprint("r", draw.IntN(step+1)))
				r.TtlMs, r.Hold = 1_000+draw.Uint64N(90_000), draw.IntN(3) == 0
				e, err := to.Reserve(Consumer{ID: consumer, Prefix: "p"}, r, offer, now, clock)
				if err == nil && commit(g, to) && beliefs[e.Token].until == 0 && Live(e.State) && e.Token > highest {
					require.Greater(t, e.Token, highest)
					highest, tokens[e.Token] = e.Token, consumer
					if draw.IntN(4) > 0 { // the answer arrives
						beliefs[e.Token] = belief{e.Units, sent + spanOf(e)}
					}
				}
			case 3:
				for token, owner := range tokens {
					e, err := to.Extend(owner, &api.ExtendRequest{Token: token, TtlMs: 5_000 + draw.Uint64N(60_000)}, offer, now)
					if err == nil && commit(g, to) {
						beliefs[token] = belief{e.Units, sent + spanOf(e)}
					}
					break
				}
			case 4:
				for token, owner := range tokens {
					if _, known := beliefs[token]; known { // its owner gives it up first
						beliefs[token] = belief{}
						if _, err := to.Release(owner, token, now); err == nil {
							commit(g, to)
						}
					}
					break
				}
			case 5:
				g.l, g.read = Load(durable, nil, now), revision // a new process
			case 6:
				g.l, g.read = Load(durable, g.l, now), revision
			case 7:
				commit(g, to)
			}
			var sum uint32
			for _, b := range beliefs {
				if b.until > now {
					sum += b.units
				}
			}
			require.LessOrEqual(t, sum, uint32(total), "seed %d step %d", seed, step)
			require.LessOrEqual(t, Load(durable, nil, now).Used(offer.Offer), uint32(total), "seed %d step %d", seed, step)
		}
		last := Load(durable, nil, now)
		last.Expire(now + 100*time.Second)
		last.Expire(now + 110*time.Second)
		require.Equal(t, uint32(total), last.Free(offer), "seed %d", seed)
	}
}

// TestOwed: an entry whose end owes a command is remembered until that has succeeded, or failed too often. Its units
// are free at their time all the same.
func TestOwed(t *testing.T) {
	for name, change := range map[string]struct {
		ok    []bool
		wants []uint32
	}{"success": {[]bool{true}, []uint32{0}}, "failures": {[]bool{false, false, false}, []uint32{2, 3, 0}}} {
		t.Run(name, func(t *testing.T) {
			l, offer := New(), terms(4)
			r := ask(1, "r1")
			r.Hold = true
			e, err := l.Reserve(Consumer{ID: "a"}, r, offer, 0, epoch())
			require.NoError(t, err)
			_, err = l.Begin("b", e.Token, 0)
			require.ErrorIs(t, err, fault.NotFound)
			_, err = l.Begin("a", e.Token, 0)
			require.NoError(t, err)
			_, err = l.Begin("a", e.Token, 0)
			require.ErrorIs(t, err, fault.Exists)
			e, err = l.Confirm("a", e.Token, "a key", 0)
			require.NoError(t, err)
			require.Equal(t, "a key", e.Handover)
			again, err := l.Confirm("a", e.Token, "another key", 0)
			require.NoError(t, err)
			require.Equal(t, "a key", again.Handover)

			require.True(t, l.Expire(100*time.Second))
			require.Equal(t, uint32(3), l.Free(offer))
			require.True(t, l.Expire(105*time.Second))
			require.Equal(t, uint32(4), l.Free(offer))
			require.True(t, l.Expire(210*time.Second))
			require.Len(t, l.Entries(), 1)
			_, ok := l.Next()
			require.False(t, ok, "no time changes it")
			require.False(t, l.Expire(time.Hour))
			same := Load(l.State(), l, time.Hour)
			require.Equal(t, uint32(4), same.Free(offer))
			require.False(t, same.Expire(time.Hour))
			for i, ok := range change.ok {
				settled, err := l.Settle(e.Token, ok, 3)
				require.NoError(t, err)
				require.Equal(t, change.wants[i], settled.Owed)
			}
			require.True(t, l.Expire(time.Hour))
			require.Empty(t, l.Entries())
			_, err = l.Settle(e.Token, true, 3)
			require.ErrorIs(t, err, fault.NotFound)
		})
	}
}

// TestHandovers: what holders get has room in the ledger, and one of them does not fill it.
func TestHandovers(t *testing.T) {
	l, offer := New(), terms(1000)
	offer.PerOne = 1000
	give := func(id string, n int) (count int, err error) {
		for ; ; count++ {
			r := ask(1, fmt.Sprint(count))
			r.Hold = true
			e, err := l.Reserve(Consumer{ID: id}, r, offer, 0, epoch())
			require.NoError(t, err)
			if _, err = l.Confirm(id, e.Token, strings.Repeat("x", n), 0); err != nil {
				_, revoked := l.Revoke(e.Token, "", 0)
				require.NoError(t, revoked)
				return count, err
			}
		}
	}
	n, err := give("a", MaxHandover)
	require.ErrorIs(t, err, fault.TooLarge)
	require.ErrorContains(t, err, "196608 of them for you: no room for 4096")
	require.Equal(t, 48, n, "three quarters")
	n, err = give("b", MaxHandover)
	require.ErrorIs(t, err, fault.TooLarge)
	require.Equal(t, 12, n)
}
