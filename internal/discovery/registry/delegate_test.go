package registry

import (
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records/delegation"
)

// A peer with a delegation signs its services and their list for the provider, those from before too, until shortly before the end.
func TestOffersForAnother(t *testing.T) {
	fs := vfs.NewMem()
	c := config(t, fs)
	r, err := Open(c, epoch())
	require.NoError(t, err)
	done(r, epoch(), register(t, r, epoch(), offer("before"))...)
	require.NoError(t, r.Close())

	owner := self(t, Config{Key: key(t, 2)})
	c.OffersFor, err = delegation.Sign("test", key(t, 2), self(t, c), epoch(), 30*time.Hour)
	require.NoError(t, err)
	r = open(t, c, epoch())
	due := r.Due(epoch(), 10)
	require.Equal(t, []string{"before"}, ids(due))
	require.Equal(t, owner, due[0].OfferedFor())
	done(r, epoch(), due...)
	after := register(t, r, epoch(), offer("after"))
	require.Equal(t, owner, after[0].OfferedFor())
	require.Equal(t, owner, r.Manifest(epoch()).OfferedFor())
	done(r, epoch(), after...)

	for now := epoch(); now.Before(epoch().Add(40 * time.Hour)); now = now.Add(time.Hour) {
		done(r, now, r.Due(now, 10)...)
		left := c.OffersFor.Expires.Sub(now)
		for _, v := range append(r.List(), r.Manifest(now)) {
			require.False(t, v.Expired(now))
			require.True(t, left < 4*time.Hour || v.OfferedFor() == owner)
			require.Equal(t, v.OfferedFor() != "", v.Of(owner))
			if left <= 0 {
				require.Empty(t, v.OfferedFor())
			}
		}
	}

	c.Delegates = []peer.ID{owner}
	require.Equal(t, "delegates", fault.FieldOf(c.Validate()))
}

// A provider names its delegates in its list.
func TestNamesItsDelegates(t *testing.T) {
	c := config(t, vfs.NewMem())
	c.Delegates = []peer.ID{self(t, Config{Key: key(t, 3)}), self(t, Config{Key: key(t, 2)})}
	r := open(t, c, epoch())
	require.Nil(t, r.Manifest(epoch()))
	register(t, r, epoch(), offer("a"))
	require.ElementsMatch(t, c.Delegates, r.Manifest(epoch()).Delegates())
}

// A list with other delegates than that of an earlier process follows it, and one with the same is the same.
func TestOtherDelegatesAfterRestart(t *testing.T) {
	c := config(t, vfs.NewMem())
	r, err := Open(c, epoch())
	require.NoError(t, err)
	done(r, epoch(), register(t, r, epoch(), offer("a"))...)
	last := r.Manifest(epoch())
	two, three := self(t, Config{Key: key(t, 2)}), self(t, Config{Key: key(t, 3)})
	for _, delegates := range [][]peer.ID{{two}, {two}, {two, three}, {three}, nil, nil, {three}} {
		require.NoError(t, r.Close())
		same := len(delegates) == len(last.Delegates()) && (len(delegates) == 0 || delegates[0] == last.Delegates()[0])
		c.Delegates = delegates
		r, err = Open(c, epoch())
		require.NoError(t, err)
		m := r.Manifest(epoch())
		require.ElementsMatch(t, delegates, m.Delegates())
		require.Equal(t, same, m.Sequence() == last.Sequence())
		require.Equal(t, !same, m.Sequence() > last.Sequence())
		last = m
	}
	require.NoError(t, r.Close())
}
