package ask

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/protocol"
	"github.com/blackhole/blackhole/pkg/records"
)

func newMeasurer(t *testing.T) (crypto.PrivKey, peer.ID) {
	key, _, err := crypto.GenerateEd25519Key(rand.Reader)
	require.NoError(t, err)
	id, err := peer.IDFromPrivateKey(key)
	require.NoError(t, err)
	return key, id
}

// stated is a statement of a new measurer about some peer or offer.
func stated(t *testing.T, n records.Name, s records.Reachability, at time.Time) protocol.Statement {
	key, _ := newMeasurer(t)
	data, err := protocol.SignFindings("test", key, []protocol.Finding{{Provider: n.Provider, Record: n.ID, State: s, CheckedAt: at}})
	require.NoError(t, err)
	st, err := protocol.OpenFindings("test", data, at)
	require.NoError(t, err)
	return st
}

func prefix(n int) netip.Prefix { return netip.MustParsePrefix(fmt.Sprintf("198.51.%d.0/24", n)) }

func TestPool(t *testing.T) {
	p, now := NewPool(""), time.UnixMilli(1_800_000_000_000)
	_, id := newMeasurer(t)
	x := records.Name{Provider: id}
	a, b := stated(t, x, records.Reachable, now), stated(t, x, records.Busy, now)
	p.Put(a, prefix(1), now)
	p.Put(b, prefix(2), now)
	p.Put(b, prefix(2), now) // replaces itself
	require.Equal(t, [][]byte{a.Bytes, b.Bytes}, p.About([]records.Name{x, {Provider: "unknown"}, x}, "", now))
	require.Equal(t, [][]byte{b.Bytes}, p.About([]records.Name{x}, a.By, now))
	require.Empty(t, p.About([]records.Name{x}, "", now.Add(protocol.FindingLife)))

	// Many measurers in one network take two places, those of others remain free.
	for range 10 {
		p.Put(stated(t, x, records.Unreachable, now), prefix(3), now)
	}
	require.Len(t, p.About([]records.Name{x}, "", now), 4)
	for i := range 10 {
		p.Put(stated(t, x, records.Busy, now), prefix(4+i), now)
	}
	require.Len(t, p.About([]records.Name{x}, "", now), maxOfProvider)
	for i := range maxProviders + 10 {
		p.Put(protocol.Statement{By: a.By, Bytes: []byte(fmt.Sprint(i)), Findings: []protocol.Finding{{Provider: peer.ID(fmt.Sprint(i)), CheckedAt: now}}}, prefix(1), now)
	}
	require.Equal(t, maxProviders, p.about.Len())
	var all []records.Name
	for i := range protocol.MaxTold + 20 {
		all = append(all, records.Name{Provider: peer.ID(fmt.Sprint(maxProviders - i))})
	}
	require.Len(t, p.About(all, "", now), protocol.MaxTold)

	offer := records.Name{Provider: id, ID: "a"}
	p.Put(stated(t, offer, records.Answers, now), netip.Prefix{}, now)
	require.Len(t, p.About([]records.Name{offer}, "", now), 1)
	require.Empty(t, p.About([]records.Name{{Provider: id, ID: "b"}}, "", now))
}
