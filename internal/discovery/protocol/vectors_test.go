package protocol

import (
	"bytes"
	"crypto/ed25519"
	"encoding/hex"
	"encoding/json"
	"os"
	"testing"
	"time"

	"github.com/libp2p/go-libp2p/core/crypto"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/pkg/network"
	pb "github.com/blackhole/blackhole/proto/blackhole/keeper/v1"
)

// TestVectors: a statement must never change, because peers of all versions verify it. Another program computed
// the vectors, from docs/wire.md.
func TestVectors(t *testing.T) {
	text, err := os.ReadFile("testdata/findings.json")
	require.NoError(t, err)
	var vectors []struct {
		Network, Seed, By, Statement string
		Now                          int64 `json:"now_ms"`
		Findings                     []struct {
			Provider, State string
			RoundTrip       int64 `json:"round_trip_us"`
			Checked         int64 `json:"checked_ms"`
		}
	}
	require.NoError(t, json.Unmarshal(text, &vectors))
	require.NotEmpty(t, vectors)
	for i, v := range vectors {
		data, err := hex.DecodeString(v.Statement)
		require.NoError(t, err)
		s, err := OpenFindings(network.Name(v.Network), data, time.UnixMilli(v.Now))
		require.NoError(t, err)
		require.Equal(t, v.By, s.By.String())
		require.Len(t, s.Findings, len(v.Findings))
		for i, f := range s.Findings {
			w := v.Findings[i]
			require.Equal(t, w.Provider, f.Provider.String())
			require.Equal(t, w.State, string(f.State))
			require.Equal(t, w.RoundTrip, f.RoundTrip.Microseconds())
			require.Equal(t, w.Checked, f.CheckedAt.UnixMilli())
		}
		_, err = OpenFindings("another", data, time.UnixMilli(v.Now))
		require.Error(t, err)

		if i == len(vectors)-1 {
			continue // it has findings that Sign does not make, and Open leaves out
		}
		seed, err := hex.DecodeString(v.Seed)
		require.NoError(t, err)
		key, _, err := crypto.GenerateEd25519Key(bytes.NewReader(seed))
		require.NoError(t, err)
		raw, err := key.Raw()
		require.NoError(t, err)
		require.Equal(t, seed, raw[:ed25519.SeedSize])
		again, err := SignFindings(network.Name(v.Network), key, s.Findings)
		require.NoError(t, err)
		require.Equal(t, v.Statement, hex.EncodeToString(again))
	}
}

// FuzzLaterStatement: a later version may add fields to a statement and to its findings. They change nothing for
// this version, and no bytes of any origin cause a panic.
func FuzzLaterStatement(f *testing.F) {
	f.Add([]byte{9 << 3, 1})
	f.Add([]byte{0xfa, 0x07, 2, 'h', 'i'})
	f.Add([]byte{0xff})
	key, _, err := crypto.GenerateEd25519Key(bytes.NewReader(bytes.Repeat([]byte{7}, 32)))
	require.NoError(f, err)
	by, err := peer.IDFromPrivateKey(key)
	require.NoError(f, err)
	now := time.UnixMilli(1767225600000)
	f.Fuzz(func(t *testing.T, unknown []byte) {
		_, _ = OpenFindings("test", unknown, now)
		for len(unknown) > 0 {
			number, _, n := protowire.ConsumeField(unknown)
			if n < 0 || number <= 15 || number > protowire.MaxValidNumber {
				return // not a field of a later version
			}
			if n == len(unknown) {
				break
			}
			unknown = unknown[:n]
		}
		if len(unknown) > MaxStatement/4 {
			return
		}
		finding := &pb.Finding{Provider: []byte("provider"), State: 3, CheckedMs: uint64(now.UnixMilli())}
		finding.ProtoReflect().SetUnknown(unknown)
		content := &pb.Findings{Findings: []*pb.Finding{finding}}
		content.ProtoReflect().SetUnknown(unknown)
		b, err := proto.Marshal(content)
		require.NoError(t, err)
		signature, err := key.Sign(append([]byte(findingDomain("test")), b...))
		require.NoError(t, err)
		signed := &pb.SignedFindings{Findings: b, By: []byte(by), Signature: signature}
		signed.ProtoReflect().SetUnknown(unknown)
		data, err := proto.Marshal(signed)
		require.NoError(t, err)
		_, err = OpenFindings("test", data, now)
		require.NoError(t, err, "an honest peer of a later version is blamed")
	})
}
