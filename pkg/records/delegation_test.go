package records_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
	"github.com/blackhole/blackhole/pkg/records/delegation"
	"github.com/blackhole/blackhole/pkg/records/recordstest"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// delegated is the delegation of the owner of key 1 for that of key 2.
func delegated(t *testing.T, n network.Name, life time.Duration) *delegation.Signed {
	t.Helper()
	d, err := delegation.Sign(n, key(t, 1), idOf(t, key(t, 2)), t0(), life)
	require.NoError(t, err)
	return d
}

// A delegation goes through its text, and a record that carries it says for whom it is offered, and ends no later.
func TestDelegation(t *testing.T) {
	owner, delegate := idOf(t, key(t, 1)), idOf(t, key(t, 2))
	made := delegated(t, "test", time.Hour)
	d, err := delegation.Parse("test", made.Text())
	require.NoError(t, err)
	require.Equal(t, made.Text(), d.Text())
	require.Less(t, len(d.Text()), 300)
	require.Equal(t, [2]peer.ID{owner, delegate}, [2]peer.ID{d.Provider, d.Delegate})
	require.Equal(t, t0().Add(time.Hour), d.Expires)

	st := stamp()
	st.OfferedFor = d
	r := sign(t, key(t, 2), storage(), st)
	require.Equal(t, d.Expires, r.Expires())
	require.Equal(t, owner, r.OfferedFor())
	require.Equal(t, delegate, r.Name().Provider)
	require.True(t, r.Of(owner) && r.Of(delegate))
	require.False(t, r.In(records.ProviderCell(owner)))
	again, err := records.Open("test", r.Envelope(), t0())
	require.NoError(t, err)
	require.Equal(t, owner, again.OfferedFor())
	require.Contains(t, string(r.AppendJSON(nil)), fmt.Sprintf(`"offered_for":"%s","signature"`, owner))
	view, err := json.Marshal(r.View())
	require.NoError(t, err)
	require.Equal(t, string(view), string(r.AppendJSON(nil)))

	own := sign(t, key(t, 2), storage(), stamp())
	require.Empty(t, own.OfferedFor())
	require.False(t, own.Of(owner))
	require.False(t, own.Of(""))

	ended, err := records.Tombstone(key(t, 2), r, records.Stamp{Sequence: r.Sequence() + 1, Issued: t0(), Expires: t0().Add(24 * time.Hour)})
	require.NoError(t, err)
	require.Empty(t, ended.OfferedFor())
}

// Nobody but the provider makes a delegation, and it holds for one delegate, in one network and for its time alone.
func TestFalseDelegation(t *testing.T) {
	good := delegated(t, "test", 30*time.Hour)
	st := stamp()
	st.OfferedFor = good
	for name, change := range map[string]func(*pb.ServiceRecord){
		"forged":    func(s *pb.ServiceRecord) { s.OfferedFor.Signature[7]++ },
		"by others": func(s *pb.ServiceRecord) { s.OfferedFor.By = []byte(idOf(t, key(t, 3))) },
		"longer":    func(s *pb.ServiceRecord) { s.OfferedFor.Terms = append(s.OfferedFor.Terms, 0x18, 1) },
		"empty":     func(s *pb.ServiceRecord) { s.OfferedFor = &pb.Delegation{} },
		"ended":     func(s *pb.ServiceRecord) { s.ExpiresAt.Seconds += 6*3600 + 1 },
		"early": func(s *pb.ServiceRecord) {
			s.CreatedAt.Seconds -= 121
			s.UpdatedAt.Seconds -= 121
		},
		"tombstone": func(s *pb.ServiceRecord) {
			*s = pb.ServiceRecord{
				Id: s.Id, ProviderId: s.ProviderId, Metadata: &pb.ServiceMetadata{Type: s.Metadata.Type}, CreatedAt: s.CreatedAt,
				UpdatedAt: s.UpdatedAt, ExpiresAt: s.ExpiresAt, Sequence: s.Sequence, Withdrawn: true, OfferedFor: s.OfferedFor,
			}
		},
	} {
		s := sign(t, key(t, 2), storage(), st).Service()
		s.Signature = nil
		change(s)
		_, err := records.Open("test", recordstest.Sign(t, "test", key(t, 2), s), t0())
		require.Equal(t, fault.Invalid, fault.KindOf(err), name)
		require.True(t, records.Blameless(err))
		if name != "tombstone" {
			require.Equal(t, "offered_for", fault.FieldOf(err), name)
		}
	}
	for name, d := range map[string]*delegation.Signed{"another network": delegated(t, "other", time.Hour), "another delegate": good} {
		st, k := stamp(), key(t, 2)
		if st.OfferedFor = d; d == good {
			k = key(t, 3)
		}
		_, err := records.Sign("test", k, storage(), st)
		require.Equal(t, "offered_for", fault.FieldOf(err), name)
	}

	for _, text := range []string{"", "?", good.Text()[1:], good.Text() + "AA", strings.Repeat("A", 4096), delegated(t, "other", time.Hour).Text()} {
		_, err := delegation.Parse("test", text)
		require.Equal(t, fault.Invalid, fault.KindOf(err), text)
	}
	for life, delegate := range map[time.Duration]peer.ID{
		0: idOf(t, key(t, 2)), delegation.MaxLife + 1: idOf(t, key(t, 2)), time.Minute: idOf(t, key(t, 1)), time.Hour: "x",
	} {
		_, err := delegation.Sign("test", key(t, 1), delegate, t0(), life)
		require.Equal(t, fault.Invalid, fault.KindOf(err), life)
	}
	require.NoError(t, good.Valid(idOf(t, key(t, 2)), t0(), t0().Add(30*time.Hour)))
	require.ErrorContains(t, good.Valid(idOf(t, key(t, 3)), t0(), t0()), "is for the delegate")
	require.ErrorContains(t, good.Valid(idOf(t, key(t, 2)), t0(), t0().Add(31*time.Hour)), "ended at")
	require.ErrorContains(t, good.Valid(idOf(t, key(t, 2)), t0().Add(-time.Hour), t0()), "begins in the future")
}

// A manifest of the most offers and delegates fits into a record. That of a delegate lies in the cell of its provider too.
func TestManifestOfDelegates(t *testing.T) {
	var offers []*records.Record
	var delegates []peer.ID
	for i := range records.MaxPerProvider {
		o := storage()
		o.ID = fmt.Sprint("o", i)
		offers = append(offers, sign(t, key(t, 1), o, stamp()))
	}
	for i := range records.MaxDelegates {
		delegates = append(delegates, idOf(t, key(t, byte(100+i))))
	}
	st := stamp()
	st.Sequence++
	longest := network.Name("n" + strings.Repeat("x", 31))
	_, err := records.SignManifest(longest, key(t, 1), offers, delegates, st)
	require.NoError(t, err)
	m, err := records.SignManifest("test", key(t, 1), offers, delegates, st)
	require.NoError(t, err)
	require.Len(t, m.Manifest(), len(offers))
	require.Equal(t, slices.Sorted(slices.Values(delegates)), m.Delegates())
	require.Nil(t, offers[0].Delegates())
	_, err = records.SignManifest("test", key(t, 1), nil, append(delegates, delegates[0]), st)
	require.Equal(t, "delegates", fault.FieldOf(err))
	_, err = records.SignManifest("test", key(t, 1), nil, []peer.ID{delegates[0], delegates[0]}, st)
	require.Equal(t, "delegates", fault.FieldOf(err))

	st.OfferedFor = delegated(t, "test", time.Hour)
	of, err := records.SignManifest("test", key(t, 2), nil, nil, st)
	require.NoError(t, err)
	owner, delegate := records.ProviderCell(idOf(t, key(t, 1))), records.ProviderCell(idOf(t, key(t, 2)))
	require.Equal(t, []records.CellKey{delegate, owner}, of.Cells())
	require.True(t, of.In(owner) && of.In(delegate))
	require.NotNil(t, of.Manifest())
	_, err = records.SignManifest("test", key(t, 2), nil, delegates[:1], st)
	require.Equal(t, "delegates", fault.FieldOf(err))
}
