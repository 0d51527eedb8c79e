package records_test

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/libp2p/go-libp2p/core/record"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/discovery/recordstest"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/discovery/v1"
)

// An accepted envelope is in the same encoding that libp2p gives its content.
func FuzzOpen(f *testing.F) {
	for _, o := range offers() {
		f.Add(sign(f, key(f, 1), o, stamp()).Envelope())
	}
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, envelope []byte) {
		r, err := records.Open("test", envelope, t0())
		if err != nil {
			require.Contains(t, []fault.Kind{fault.Unauthentic, fault.Unsupported, fault.Invalid, fault.TooLarge, fault.Conflict}, fault.KindOf(err))
			return
		}
		env, err := record.UnmarshalEnvelope(envelope)
		require.NoError(t, err)
		again, err := env.Marshal()
		require.NoError(t, err)
		require.Equal(t, envelope, again)
		consistent(t, r)
	})
}

// A hostile provider may sign any payload.
func FuzzPayload(f *testing.F) {
	for _, o := range offers() {
		f.Add(payloadOf(f, sign(f, key(f, 1), o, stamp()).Envelope()))
	}
	k := key(f, 1)
	f.Fuzz(func(t *testing.T, payload []byte) {
		r, err := records.Open("test", recordstest.Seal(t, k, recordstest.Content{Of: domain, Type: codec, Payload: payload}), t0())
		if err == nil {
			consistent(t, r)
		}
	})
}

// consistent checks the invariants of every record.
func consistent(t *testing.T, r *records.Record) {
	t.Helper()
	require.NoError(t, r.Key().Matches(r))
	k, err := records.ParseKey(r.Key().String())
	require.NoError(t, err)
	require.Equal(t, r.Key(), k)
	for _, c := range r.Cells() {
		parsed, err := records.ParseCellKey(c.String())
		require.NoError(t, err)
		require.Equal(t, c, parsed)
		require.True(t, r.In(c))
	}
	alike(t, r)
	if !r.Withdrawn() {
		require.NoError(t, r.View().Offer.Validate())
	}
	s := r.Service()
	s.Signature = nil
	again, err := records.Seal("test", key(t, 1), s)
	if err == nil { // the provider may have chosen a longer encoding
		require.Equal(t, r.Facts(), again.Facts())
	}
}

func FuzzParseKey(f *testing.F) {
	f.Add("/blackhole/services/storage/ssd/9q8yyk/" + provider + "/ssd-1")
	f.Add("/blackhole/services/storage/_/global/" + provider + "/ssd-1")
	f.Fuzz(func(t *testing.T, s string) {
		if k, err := records.ParseKey(s); err == nil {
			require.Equal(t, s, k.String())
		} else {
			require.Equal(t, "key", fault.FieldOf(err))
		}
	})
}

func FuzzParseCellKey(f *testing.F) {
	f.Add("/blackhole/services/storage/ssd/9q8yyk")
	f.Add("/blackhole/services/storage/_/global")
	f.Add("/blackhole/providers/12D3KooWJWoaqZhDaoEFshF7Rh1bpY9ohihFhzcW6d69Lr2NASuq")
	f.Fuzz(func(t *testing.T, s string) {
		if c, err := records.ParseCellKey(s); err == nil {
			require.Equal(t, s, c.String())
		} else {
			require.Equal(t, "key", fault.FieldOf(err))
		}
	})
}

// A parsed offer keeps its meaning when written and parsed again. It can be signed unless it is
// too large.
func FuzzParseOffer(f *testing.F) {
	for _, o := range offers() {
		text, err := json.Marshal(o)
		require.NoError(f, err)
		f.Add(text)
	}
	f.Add([]byte(`{"id":"x","metadata":{"type":"a","attributes":{"a":"1"}},"health":{"last_check":"0001-01-01T00:00:00Z"}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		o, err := records.ParseOffer(text)
		if err != nil {
			require.Contains(t, []fault.Kind{fault.Invalid, fault.TooLarge}, fault.KindOf(err))
			return
		}
		require.True(t, json.Valid(text))
		faithful(t, o)
	})
}

func FuzzParseOffersYAML(f *testing.F) {
	text, err := os.ReadFile("testdata/offers.yaml")
	require.NoError(f, err)
	f.Add(text)
	f.Add([]byte("- &a {id: x, metadata: {type: other}}\n- *a\n"))
	f.Add([]byte(laughs()))
	f.Fuzz(func(t *testing.T, text []byte) {
		parsed, err := records.ParseOffersYAML(text)
		if err != nil {
			require.Contains(t, []fault.Kind{fault.Invalid, fault.TooLarge}, fault.KindOf(err))
			return
		}
		for _, o := range parsed {
			faithful(t, o)
		}
	})
}

func faithful(t *testing.T, o records.Offer) {
	t.Helper()
	text, err := json.Marshal(o)
	require.NoError(t, err)
	again, err := records.ParseOffer(text)
	require.NoError(t, err)
	require.True(t, proto.Equal(o.Service(), again.Service()))
	if _, err := records.Sign("test", key(t, 1), o, stamp()); err != nil {
		require.ErrorIs(t, err, fault.TooLarge)
	}
}

// Messages of other programs decode like this program's messages.
func FuzzOfferOf(f *testing.F) {
	f.Add(payloadOf(f, sign(f, key(f, 1), storage(), stamp()).Envelope()))
	f.Fuzz(func(t *testing.T, raw []byte) {
		var s pb.ServiceRecord
		if proto.Unmarshal(raw, &s) == nil {
			_ = records.ViewOfService(&s)
		}
	})
}
