package announce

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/coordination/bootstrap"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// posted returns the founder's announcement, made some time from now.
func (f *founder) posted(t testing.TB, from time.Duration, change func(*groupv1.GroupInfo)) []byte {
	t.Helper()
	info := proto.CloneOf(f.info)
	if change != nil {
		change(info)
	}
	b, err := sign(f.key, f.network, uint64(time.Now().Add(from).UnixMilli()), info)
	require.NoError(t, err)
	return b
}

// succeeded puts an announcement into an incarnation that a peer began.
func (f *founder) succeeded(t testing.TB, by *founder, incarnation uint64) func(*groupv1.GroupInfo) {
	s, err := bootstrap.NewRecovery(by.key, bootstrap.GroupID(f.info.GetGroupId()), incarnation, 1)
	require.NoError(t, err)
	return func(g *groupv1.GroupInfo) { g.Recovery = s.Encode() }
}

func TestValidate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stranger := newFounder(t), newFounder(t)
		own := Key(f.network)
		good := f.posted(t, 0, nil)
		forged := slices.Clone(good)
		forged[len(forged)/2] ^= 1
		strangers, err := sign(stranger.key, f.network, uint64(time.Now().UnixMilli()), f.info)
		require.NoError(t, err)
		for name, c := range map[string]struct {
			key   string
			value []byte
			want  fault.Kind // Internal: none
		}{
			"good":                      {own, good, fault.Internal},
			"of hours ago":              {own, f.posted(t, -lifetime+time.Second, nil), fault.Internal},
			"of a new incarnation":      {own, f.posted(t, 0, f.succeeded(t, f, 1)), fault.Internal},
			"stale":                     {own, f.posted(t, -lifetime-time.Second, nil), fault.Conflict},
			"of the future":             {own, f.posted(t, window+time.Second, nil), fault.Conflict},
			"of the beginning":          {own, f.posted(t, -time.Duration(1<<62), nil), fault.Conflict},
			"nothing":                   {own, nil, fault.Unauthentic},
			"noise":                     {own, []byte{1, 2, 3}, fault.Invalid},
			"too large":                 {own, make([]byte, maxMessage+1), fault.TooLarge},
			"ballast":                   {own, append([]byte{0xf8, 1, 1}, good...), fault.Invalid},
			"forged":                    {own, forged, fault.Unauthentic},
			"who may be no member":      {own, strangers, fault.Forbidden},
			"another network's":         {own, stranger.posted(t, 0, nil), fault.Unauthentic},
			"no membership":             {own, f.posted(t, 0, func(g *groupv1.GroupInfo) { g.Membership = nil }), fault.Invalid},
			"another membership":        {own, f.posted(t, 0, func(g *groupv1.GroupInfo) { g.Membership = stranger.info.GetMembership() }), fault.Unauthentic},
			"another group":             {own, f.posted(t, 0, func(g *groupv1.GroupInfo) { g.GroupId = stranger.info.GetGroupId() }), fault.Unauthentic},
			"no recovery record":        {own, f.posted(t, 0, func(g *groupv1.GroupInfo) { g.Recovery = []byte{1} }), fault.Invalid},
			"another group's successor": {own, f.posted(t, 0, stranger.succeeded(t, f, 1)), fault.Unauthentic},
			"a stranger as a successor": {own, f.posted(t, 0, f.succeeded(t, stranger, 1)), fault.Unauthentic},
			"another network's key":     {Key(stranger.network), stranger.posted(t, 0, nil), fault.Invalid},
			"no key":                    {"", good, fault.Invalid},
			"a longer key":              {own + "0", good, fault.Invalid},
			"a long key":                {strings.Repeat("\xff", 1<<16), good, fault.Invalid},
		} {
			refused := 0
			v := NewValidator(f.network, time.Now, func(error) { refused++ })
			err := v.Validate(c.key, c.value)
			_, unselected := v.Select(c.key, [][]byte{c.value})
			if c.want == fault.Internal {
				require.NoError(t, err, name)
				require.NoError(t, unselected, name)
				continue
			}
			require.ErrorIs(t, err, c.want, name)
			require.ErrorIs(t, unselected, c.want, name)
			require.Equal(t, c.key == own, refused == 1, "%s: only values under the key are counted, once", name)
		}
	})
}

func TestSelect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFounder(t)
		key, v := Key(f.network), NewValidator(f.network, time.Now, nil)
		at := func(config, term, leader uint64) func(*groupv1.GroupInfo) {
			return func(g *groupv1.GroupInfo) { g.ConfigIndex, g.Term, g.Leader = config, term, leader }
		}
		renewed := func(g *groupv1.GroupInfo) { f.succeeded(t, f, 1)(g); at(1, 1, 0)(g) }
		// Each value is better than the earlier ones and older than them, except the last.
		values := [][]byte{
			f.posted(t, 8*time.Second, at(4, 6, 1)),
			f.posted(t, 7*time.Second, at(5, 6, 0)),
			f.posted(t, 6*time.Second, at(5, 6, 1)),
			f.posted(t, 5*time.Second, at(5, 7, 0)),
			f.posted(t, 4*time.Second, at(5, 7, 9)),
			f.posted(t, 3*time.Second, renewed),
			f.posted(t, 9*time.Second, renewed),
		}
		for old := range values {
			for fresh := range values {
				got, err := v.Select(key, [][]byte{values[fresh], values[old]})
				require.NoError(t, err)
				require.Equal(t, fresh >= old, got == 0, "%d is put where %d is", fresh, old)
			}
		}
		got, err := v.Select(key, [][]byte{nil, values[0], f.posted(t, window+time.Second, at(9, 9, 9)), values[2], values[1]})
		require.NoError(t, err)
		require.Equal(t, 3, got, "only what holds can be best")
		_, err = v.Select(key, nil)
		require.ErrorIs(t, err, fault.Invalid)
		time.Sleep(lifetime + 5500*time.Millisecond)
		got, err = v.Select(key, [][]byte{values[5], values[2]})
		require.NoError(t, err)
		require.Equal(t, 1, got, "what has lapsed is not")
	})
}

// TestCompare: the order is total, so the best value does not depend on positions.
func TestCompare(t *testing.T) {
	few := rapid.Uint64Range(0, 2)
	one := rapid.Custom(func(t *rapid.T) announcement {
		return announcement{
			verified:    verified{sequence: few.Draw(t, "sequence"), info: &groupv1.GroupInfo{ConfigIndex: few.Draw(t, "config"), Term: few.Draw(t, "term"), Leader: few.Draw(t, "leader")}},
			incarnation: few.Draw(t, "incarnation"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := one.Draw(t, "a"), one.Draw(t, "b"), one.Draw(t, "c")
		require.Equal(t, a.compare(b), -b.compare(a))
		if a.compare(b) >= 0 && b.compare(c) >= 0 {
			require.GreaterOrEqual(t, a.compare(c), 0)
		}
	})
}

// drawer is a DHT of one value, which everybody may change.
type drawer struct {
	Validator *Validator
	value     []byte
	asked     int
}

func (d *drawer) PutValue(_ context.Context, key string, value []byte) error {
	if err := d.Validator.Validate(key, value); err != nil {
		return err
	}
	if at, err := d.Validator.Select(key, [][]byte{value, d.value}); err != nil || at != 0 {
		return fault.New("drawer.PutValue", fault.Exists, "there is a better one")
	}
	d.value = value
	return nil
}

func (d *drawer) GetValue(context.Context, string) ([]byte, error) {
	d.asked++
	if d.value == nil {
		return nil, fault.New("drawer.GetValue", fault.NotFound, "it is empty")
	}
	return d.value, nil
}

// TestDHTStore: a published value is read once; a worse value is not published; a lying DHT is not believed.
func TestDHTStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, stranger := newFounder(t), newFounder(t)
		d := &drawer{Validator: NewValidator(f.network, time.Now, nil)}
		b := NewDHTStore(d, f.network, f.key, time.Now)
		reader := NewDHTStore(d, f.network, stranger.key, time.Now)
		_, _, err := reader.Lookup(t.Context())
		require.ErrorIs(t, err, fault.NotFound)
		require.NoError(t, b.Publish(t.Context(), f.info))
		by, info, err := reader.Lookup(t.Context())
		require.NoError(t, err)
		require.Equal(t, f.id, by)
		require.True(t, proto.Equal(f.info, info))
		_, _, err = reader.Lookup(t.Context())
		require.ErrorIs(t, err, fault.NotFound, "it is known")

		require.NoError(t, b.Publish(t.Context(), f.info), "the same again, at the same moment")
		_, _, err = reader.Lookup(t.Context())
		require.NoError(t, err)
		worse := proto.CloneOf(f.info)
		worse.Term--
		require.ErrorIs(t, b.Publish(t.Context(), worse), fault.Exists)
		require.ErrorIs(t, reader.Publish(t.Context(), f.info), fault.Forbidden, "who may be no member")

		for _, lie := range [][]byte{stranger.posted(t, 0, nil), f.posted(t, -2*lifetime, nil), {1}} {
			d.value = lie
			_, _, err = reader.Lookup(t.Context())
			require.Error(t, err)
			require.NotErrorIs(t, err, fault.NotFound)
		}
	})
}

// TestPublishSchedule: news at once, but not in bursts; repetitions more and more rarely.
func TestPublishSchedule(t *testing.T) {
	var p PublishSchedule
	began := time.Unix(1000, 0)
	var at []time.Duration
	play := func(from, to time.Duration, gist string) {
		for d := from; d < to; d += time.Second {
			if p.Due(began.Add(d), []byte(gist), 0) {
				at = append(at, d)
			}
		}
	}
	play(0, 200*time.Second, "a")
	require.Equal(t, []time.Duration{0, 60 * time.Second, 180 * time.Second}, at)
	at = nil
	play(200*time.Second, 203*time.Second, "b")
	play(203*time.Second, 215*time.Second, "c")
	require.Equal(t, []time.Duration{200 * time.Second, 210 * time.Second}, at, "what changes at once waits")
	at = nil
	p.End()
	play(215*time.Second, 225*time.Second, "c")
	require.Equal(t, []time.Duration{220 * time.Second}, at, "who leads anew has news")
	at = nil
	play(225*time.Second, 100*time.Hour, "c")
	require.Less(t, len(at), 30)
	for i := 1; i < len(at); i++ {
		require.LessOrEqual(t, at[i]-at[i-1], republish)
	}
	require.Less(t, 3*republish, lifetime, "an announcement does not lapse while somebody leads")
}

// TestLookupSchedule: no lookups with a leader; without one more and more rarely, and never often, however the
// knowledge changes.
func TestLookupSchedule(t *testing.T) {
	var l LookupSchedule
	began := time.Unix(1000, 0)
	var at []time.Duration
	for d := time.Duration(0); d < time.Hour; d += time.Second {
		if l.Due(began.Add(d), d < 5*time.Second, 0) {
			at = append(at, d-5*time.Second)
		}
	}
	require.Equal(t, []time.Duration{10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second, 320 * time.Second}, at[:6])
	require.Less(t, len(at), 20)
	rapid.Check(t, func(t *rapid.T) {
		var l LookupSchedule
		now, last := began, time.Time{}
		for range 200 {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(15*time.Second)).Draw(t, "pause")))
			led := rapid.Bool().Draw(t, "led")
			if l.Due(now, led, rapid.Float64Range(0, 0.999).Draw(t, "jitter")) {
				require.False(t, led)
				require.GreaterOrEqual(t, now.Sub(last), minInterval/2)
				last = now
			}
		}
	})
}

// TestPaceJitters: attempts of many peers spread, within bounds.
func TestPaceJitters(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 100 {
		var l LookupSchedule
		now := time.Unix(1000, 0)
		l.Due(now, false, 0)
		require.True(t, l.Due(now.Add(leaderless), false, r.Float64()))
		require.False(t, l.Due(now.Add(leaderless+minInterval/2-time.Nanosecond), false, 0))
		require.True(t, l.Due(now.Add(leaderless+minInterval), false, 0))
	}
}

// No value makes the validator panic. An accepted value decodes to its content, and Select accepts it too.
func FuzzValidator(f *testing.F) {
	one := newFounder(f)
	good := one.posted(f, 0, nil)
	f.Add(good)
	f.Add(one.posted(f, 0, one.succeeded(f, one, 1)))
	f.Add(good[:40])
	f.Add([]byte{0x0a})
	key := Key(one.network)
	v := NewValidator(one.network, time.Now, nil)
	f.Fuzz(func(t *testing.T, value []byte) {
		err := v.Validate(key, value)
		at, err2 := v.Select(key, [][]byte{value, good})
		if err != nil {
			require.NoError(t, err2)
			require.Equal(t, 1, at)
			return
		}
		said, err := v.open(value)
		require.NoError(t, err)
		require.Equal(t, one.id, said.from)
		require.Equal(t, one.info.GetGroupId(), said.info.GetGroupId())
	})
}
