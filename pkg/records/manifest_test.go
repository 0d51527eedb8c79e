package records_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	"github.com/blackhole/blackhole/pkg/records/recordstest"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// A manifest of as many offers as a provider may have lists each, fits into a record, lies in the provider's cell alone and lapses
// with the first of them.
func TestManifest(t *testing.T) {
	k := key(t, 1)
	var offers []*records.Record
	for i := range records.MaxPerProvider {
		o, st := storage(), stamp()
		o.ID = fmt.Sprintf("an-offer-with-a-name-of-the-maximum-length-of-all-%014d", i)
		st.Sequence += uint64(i)
		st.Expires = st.Expires.Add(-time.Duration(i) * time.Minute)
		offers = append(offers, sign(t, k, o, st))
	}
	st := stamp()
	st.Sequence += 1000
	m, err := records.SignManifest("test", k, offers, nil, st)
	require.NoError(t, err)
	require.True(t, m.Name().IsManifest())
	require.Equal(t, []records.CellKey{records.ProviderCell(m.Name().Provider)}, m.Cells())
	require.Equal(t, offers[len(offers)-1].Expires(), m.Expires())
	list := m.Manifest()
	require.Len(t, list, len(offers))
	for _, r := range offers {
		require.Equal(t, r.Sequence(), list[r.Name().Listed()])
		require.Nil(t, r.Manifest())
	}

	none, err := records.SignManifest("test", k, nil, nil, st)
	require.NoError(t, err)
	require.NotNil(t, none.Manifest(), "a provider without offers")
	require.Empty(t, none.Manifest())

	_, err = records.SignManifest("test", k, append(offers, sign(t, k, storage(), stamp())), nil, st)
	require.Equal(t, "manifest", fault.FieldOf(err))
}

// No offer has the id of manifests, and no other record a manifest.
func TestManifestIsNoOffer(t *testing.T) {
	k := key(t, 1)
	o := storage()
	o.ID = records.ManifestID
	require.Equal(t, "id", fault.FieldOf(o.Validate()))
	_, err := records.Sign("test", k, o, stamp())
	require.Equal(t, "id", fault.FieldOf(err))

	good, err := records.SignManifest("test", k, []*records.Record{sign(t, k, storage(), stamp())}, nil, stamp())
	require.NoError(t, err)
	for name, change := range map[string]func(*pb.ServiceRecord){
		"manifest": func(s *pb.ServiceRecord) { s.Id = "other" },
		"id":       func(s *pb.ServiceRecord) { s.Manifest = nil },
	} {
		s := good.Service()
		s.Signature = nil
		change(s)
		_, err := records.Open("test", recordstest.Sign(t, "test", k, s), t0())
		require.Equal(t, name, fault.FieldOf(err))
		require.True(t, records.Blameless(err))
	}
	entry := good.Service().Manifest.Offers
	for name, change := range map[string]func(*pb.ServiceRecord){
		"short": func(s *pb.ServiceRecord) { s.Manifest.Offers = entry[1:] },
		"twice": func(s *pb.ServiceRecord) { s.Manifest.Offers = slices.Concat(entry, entry) },
		"twice again": func(s *pb.ServiceRecord) {
			s.Manifest.Offers = binary.BigEndian.AppendUint64(slices.Concat(entry, entry[:16]), 1)
		},
		"a place": func(s *pb.ServiceRecord) {
			s.Location = &pb.GeoLocation{Latitude: new(float64), Longitude: new(float64)}
		},
		"a subtype": func(s *pb.ServiceRecord) { s.Metadata.Subtype = "x" },
		"a name":    func(s *pb.ServiceRecord) { s.Metadata.Name = "x" },
		"a type":    func(s *pb.ServiceRecord) { s.Metadata.Type = "x" },
		"an offer":  func(s *pb.ServiceRecord) { s.Critical = nil },
		"withdrawn": func(s *pb.ServiceRecord) { s.Withdrawn = true },
	} {
		s := good.Service()
		s.Signature = nil
		change(s)
		_, err := records.Open("test", recordstest.Sign(t, "test", k, s), t0())
		require.Equal(t, fault.Invalid, fault.KindOf(err), name)
	}

	later := good.Service()
	later.Signature, later.Critical = nil, append(later.Critical, "next")
	r, err := records.Open("test", recordstest.Sign(t, "test", k, later), t0())
	require.NoError(t, err)
	require.Nil(t, r.Manifest(), "a list that needs a later version")
}
