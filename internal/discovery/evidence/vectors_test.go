package evidence

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/network"
	"github.com/blackhole/blackhole/pkg/records"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// vector is an omission, and the kind of the error with which it is refused; "" if it is proven.
type vector struct {
	Name, Network, Want, Keeper, Record, Omission string
	Now                                           int64 `json:"now_ms"`
}

func vectors(t testing.TB) (list []vector) {
	t.Helper()
	text, err := os.ReadFile("testdata/omissions.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &list))
	require.NotEmpty(t, list)
	return list
}

func (v vector) message(t testing.TB) *pb.Omission {
	t.Helper()
	data, err := hex.DecodeString(v.Omission)
	require.NoError(t, err)
	m := new(pb.Omission)
	require.NoError(t, proto.Unmarshal(data, m))
	again, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	require.NoError(t, err)
	require.Equal(t, v.Omission, hex.EncodeToString(again))
	return m
}

// TestVectors: what proves an omission must never change, because peers of all versions verify it. Another program computed the vectors,
// from docs/wire.md.
func TestVectors(t *testing.T) {
	for _, v := range vectors(t) {
		opener, err := records.NewVerifier(network.Name(v.Network), 10)
		require.NoError(t, err)
		o, err := Open(network.Name(v.Network), v.message(t), opener, time.UnixMilli(v.Now))
		if v.Want != "" {
			require.Error(t, err, v.Name)
			require.Equal(t, v.Want, fault.KindOf(err).String(), "%s: %v", v.Name, err)
			continue
		}
		require.NoError(t, err, v.Name)
		require.Equal(t, v.Keeper, o.Keeper.String())
		require.Equal(t, v.Record, o.Record.Name().String())
	}
}

// FuzzOmission: no bytes cause a panic, and without its key nobody makes a keeper hide another record, at another time or to another
// question.
func FuzzOmission(f *testing.F) {
	for _, v := range vectors(f) {
		data, err := hex.DecodeString(v.Omission)
		require.NoError(f, err)
		f.Add(data)
	}
	opener, err := records.NewVerifier("test", 10)
	require.NoError(f, err)
	proven := make(map[string]bool)
	for _, v := range vectors(f) {
		if m := v.message(f); v.Want == "" {
			proven[string(m.Receipt.Terms)+string(m.Answer.Terms)+string(m.Envelope)] = true
		}
	}
	now := time.UnixMilli(vectors(f)[0].Now)
	f.Fuzz(func(t *testing.T, data []byte) {
		m := new(pb.Omission)
		if proto.Unmarshal(data, m) != nil {
			return
		}
		if _, err := Open("test", m, opener, now); err == nil {
			require.True(t, proven[string(m.Receipt.Terms)+string(m.Answer.Terms)+string(m.Envelope)], "something else is proven")
		}
	})
}
