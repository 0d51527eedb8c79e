package clock

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
)

func at(d time.Duration) Moment {
	epoch := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return Moment{Wall: epoch.Add(d), Steady: epoch.Add(d)}
}

// compared returns a comparison with peers whose clocks are ahead of this peer's by the given offsets.
func compared(ahead ...time.Duration) *Comparison {
	c := new(Comparison)
	for i, d := range ahead {
		c.Add(Sample{Peer: peer.ID(fmt.Sprint(i)), Time: at(0).Wall.Add(d)}, at(0))
	}
	return c
}

const m = time.Minute

func TestEstimate(t *testing.T) {
	const s = time.Second
	for name, c := range map[string]struct {
		ahead []time.Duration // of the others
		want  Estimate
	}{
		"no sample":                            {nil, Estimate{}},
		"one peer that agrees":                 {[]time.Duration{2 * s}, Estimate{Known, -s, 1}},
		"one peer that differs":                {[]time.Duration{10 * m}, Estimate{Disputed, 10 * m, 1}},
		"two peers against this clock":         {[]time.Duration{10 * m, 10*m + 2*s}, Estimate{Known, -(10*m + s), 2}},
		"one liar of two":                      {[]time.Duration{10 * m, 0}, Estimate{Known, 0, 2}},
		"two that agree with nobody":           {[]time.Duration{10 * m, -10 * m}, Estimate{Disputed, 20 * m, 2}},
		"one liar of three":                    {[]time.Duration{0, 10 * m, 0}, Estimate{Known, 0, 3}},
		"one liar of three and a slow clock":   {[]time.Duration{5 * m, 0, 5 * m}, Estimate{Disputed, 5 * m, 3}},
		"three peers against this clock":       {[]time.Duration{-m, -m, -m}, Estimate{Known, m, 3}},
		"two liars of four":                    {[]time.Duration{0, 10 * m, 10 * m, 0}, Estimate{Known, 0, 4}},
		"median of five":                       {[]time.Duration{-3 * s, -2 * s, -s, 25 * time.Hour, 25 * time.Hour}, Estimate{Known, s, 5}},
		"median of five without any agreement": {[]time.Duration{m, 2 * m, 3 * m, 4 * m, 5 * m}, Estimate{Known, -3 * m, 5}},
		"median of six":                        {[]time.Duration{m, m, m, m + 2*s, m + 2*s, m + 2*s}, Estimate{Known, -(m + s), 6}},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, c.want, compared(c.ahead...).Estimate(at(0))) })
	}
}

// TestMinorityCannotMoveTheEstimate draws networks with a minority of liars, who know the honest clocks. The
// estimate stays within the range of the honest clocks, or is disputed.
func TestMinorityCannotMoveTheEstimate(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 20_000 {
		peers := 2 + r.IntN(12)
		liars := r.IntN((peers + 1) / 2) // fewer than half of the others
		own := time.Duration(0)          // this clock is right in half of the networks
		if r.IntN(2) == 0 {
			own = time.Duration(r.Int64N(int64(2*time.Hour))) - time.Hour
		}
		lie := time.Duration(r.Int64N(int64(200*time.Hour))) - 100*time.Hour
		c := new(Comparison)
		for i := range peers {
			ahead := -own + time.Duration(r.Int64N(int64(time.Second)))
			if i < liars {
				ahead = lie + time.Duration(r.Int64N(int64(time.Second)))
			}
			c.Add(Sample{Peer: peer.ID(fmt.Sprint(i)), Time: at(0).Wall.Add(ahead)}, at(0))
		}
		e := c.Estimate(at(0))
		if e.State == Known {
			require.InDelta(t, own.Seconds(), e.Offset.Seconds(), Agreement.Seconds()+1, "%d peers, %d liars", peers, liars)
		} else {
			require.Equal(t, Disputed, e.State)
			require.Less(t, peers, MinVotes)
		}
	}
}

func TestPeersOfOneNetworkShareAVote(t *testing.T) {
	c := compared(0, 0, 0)
	for i := range 20 {
		c.Add(Sample{
			Peer: peer.ID(fmt.Sprint("sybil ", i)), Prefix: netip.MustParsePrefix("192.0.2.0/24"), Time: at(0).Wall.Add(time.Hour),
		}, at(0))
	}
	require.Equal(t, Estimate{Known, 0, 4}, c.Estimate(at(0)))
}

func TestSampleAccountsForHalfTheRoundTrip(t *testing.T) {
	c := new(Comparison)
	offset, ok := c.Add(Sample{Peer: "a", Time: at(0).Wall, Trip: 4 * time.Second}, at(2*time.Second))
	require.True(t, ok)
	require.Zero(t, offset)
	_, ok = c.Add(Sample{Peer: "b", Time: at(0).Wall, Trip: maxTrip + 1}, at(2*time.Second))
	require.False(t, ok, "too slow to say anything")
	_, ok = c.Add(Sample{Peer: "b", Time: at(0).Wall, Trip: -1}, at(2*time.Second))
	require.False(t, ok)
}

func TestSamplesAge(t *testing.T) {
	c := compared(0, 0, 0)
	require.Equal(t, 3, c.Estimate(at(maxAge)).Votes)
	require.Equal(t, Estimate{}, c.Estimate(at(maxAge+1)))
}

func TestStepOfTheOwnClock(t *testing.T) {
	c := compared(m, m, m)
	require.Equal(t, -m, c.Estimate(at(0)).Offset)
	now := at(10 * time.Second)
	now.Wall = now.Wall.Add(m) // NTP sets the clock
	require.Equal(t, Estimate{}, c.Estimate(now), "the samples belong to the former clock")
	c.Add(Sample{Peer: "0", Time: now.Wall}, now)
	require.Equal(t, Estimate{Known, 0, 1}, c.Estimate(now))
}

func TestSamplesAreBounded(t *testing.T) {
	c := new(Comparison)
	for i := range 3 * maxSamples {
		c.Add(Sample{Peer: peer.ID(fmt.Sprint(i)), Time: time.Unix(int64(i)<<40, 0)}, at(0))
		c.Estimate(at(0))
	}
	require.Len(t, c.samples, maxSamples)
	require.Equal(t, maxOffset, c.Estimate(at(0)).Offset.Abs(), "nonsensical times do not overflow")
}
