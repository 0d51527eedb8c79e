package principals_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord/principals"
)

// TestCallersWithoutNames: one of them has the rights of the others at its peer and front, and one account with them.
func TestCallersWithoutNames(t *testing.T) {
	for _, front := range []string{"", "etcd"} {
		all := principals.OfFront(front, "p")
		one, other := principals.From(all, "uid:1"), principals.From(principals.OfFront(front, "q"), "2001:db8::/64")
		require.Equal(t, all, principals.From(all, ""))
		for owner, account := range map[string]string{all: all, one: all, other: principals.OfFront(front, "q")} {
			got, ok := principals.Account(owner)
			require.True(t, ok)
			require.Equal(t, account, got)
			require.True(t, principals.IsApplication(owner))
			require.False(t, principals.IsNamed(owner))
			require.True(t, principals.MayUse(owner, all))
			require.True(t, principals.Shows(owner, all))
		}
		require.True(t, principals.IsNamelessAt(one, "p"))
		require.False(t, principals.IsNamelessAt(other, "p"))
		require.False(t, principals.MayUse(one, principals.From(principals.OfFront("other", "p"), "uid:1")))
	}
	for _, owner := range []string{"", "peer", "@name", "@~p~uid:1"} {
		_, ok := principals.Account(owner)
		require.False(t, ok, owner)
		require.Equal(t, owner, principals.Quota(owner))
	}
}
