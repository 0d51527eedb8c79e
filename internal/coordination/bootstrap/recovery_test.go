package bootstrap

import (
	"bytes"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

func TestRecovery(t *testing.T) {
	keys, ids := keyring(t, 3)
	group := listed(ids...).Membership().GroupID()
	s, err := NewRecovery(keys[1], group, 2, 77)
	require.NoError(t, err)
	require.Equal(t, ids[1], s.Peer)
	got, err := DecodeRecovery(s.Encode())
	require.NoError(t, err)
	require.Equal(t, s, got)
	require.False(t, s.IsZero())

	for i := range s.Encode() {
		b := s.Encode()
		b[i] ^= 1
		_, err := DecodeRecovery(b)
		require.Error(t, err, "byte %d", i)
	}
	for _, b := range [][]byte{nil, s.Encode()[1:], append(s.Encode(), 0), bytes.Repeat([]byte{0}, recoveryBytes)} {
		_, err := DecodeRecovery(b)
		require.ErrorIs(t, err, fault.Invalid)
	}
	for _, bad := range []Recovery{{Group: group, Member: 1}, {Group: group, Incarnation: 1}, {Incarnation: 1, Member: 1}} {
		_, err := NewRecovery(keys[1], bad.Group, bad.Incarnation, bad.Member)
		require.ErrorIs(t, err, fault.Invalid)
	}
}

func FuzzDecodeRecovery(f *testing.F) {
	keys, ids := keyring(f, 1)
	s, err := NewRecovery(keys[0], listed(ids...).Membership().GroupID(), 1, 1)
	require.NoError(f, err)
	f.Add(s.Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := DecodeRecovery(b); err == nil {
			require.Equal(t, b, s.Encode())
		}
	})
}

func TestRecoveryIsSaved(t *testing.T) {
	keys, ids := keyring(t, 1)
	s, err := NewRecovery(keys[0], listed(ids...).Membership().GroupID(), 1, 1)
	require.NoError(t, err)
	fs := vfs.NewMem()
	require.NoError(t, fs.MkdirAll("d", 0o700))
	got, err := LoadRecovery(fs, "d")
	require.NoError(t, err)
	require.True(t, got.IsZero())
	require.NoError(t, s.Save(fs, "d"))
	got, err = LoadRecovery(fs, "d")
	require.NoError(t, err)
	require.Equal(t, s, got)
	file, err := readFile(fs, "d/recovery")
	require.NoError(t, err)
	require.Equal(t, "recovery record, format 1\n"+string(s.Encode()), string(file))
	for _, damaged := range [][]byte{s.Encode(), file[1:], file[:len(file)-1], nil} {
		require.NoError(t, writeFile(fs, "d/recovery", damaged))
		_, err = LoadRecovery(fs, "d")
		require.ErrorIs(t, err, fault.Internal)
	}
}
