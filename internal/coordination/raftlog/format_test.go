package raftlog

import (
	"bytes"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"
	pb "go.etcd.io/raft/v3/raftpb"
)

// The formats on disk are stable: a change of one needs a new number of the format.
func TestFormatsAreGolden(t *testing.T) {
	golden := func(want string, b []byte) {
		t.Helper()
		require.Equal(t, want, hex.EncodeToString(b))
	}
	h := header{format: 1, member: 0x0102030405060708, group: "group"}
	golden("01010203040506070867726f7570", h.append(nil))
	again, err := decodeHeader(h.append(nil))
	require.NoError(t, err)
	require.Equal(t, h, again)
	golden("0000000000000005000000000000000200000003", position{index: 5, term: 2, sum: 3}.append(nil))
	golden("650000000000000007", entryKey(7))

	index, term := uint64(5), uint64(2)
	snap := &pb.Snapshot{Data: []byte("state"), Metadata: &pb.SnapshotMetadata{Index: &index, Term: &term, ConfState: &pb.ConfState{Voters: []uint64{1, 2}}}}
	var b bytes.Buffer
	require.NoError(t, writeMetadata(&b, snap))
	golden("424847524f5550010000001392c958620a057374617465120a0a040801080210051802", b.Bytes())
}
