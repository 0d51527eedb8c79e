package raftlog

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
)

func TestHeaderHasAFormat(t *testing.T) {
	h := header{format: format().Version(), member: 7, group: "group"}
	got, err := decodeHeader(h.append(nil))
	require.NoError(t, err)
	require.Equal(t, h, got)

	later := header{format: format().Version() + 1, member: 7, group: "group"}
	got, err = decodeHeader(later.append(nil))
	require.NoError(t, err, "only the number is read")
	err = format().Upgrade("/data/raft", got.format, nil, nil)
	require.ErrorIs(t, err, fault.Unsupported)
	require.ErrorContains(t, err, "the log of the coordination group in /data/raft has format 2, this program reads formats 1 to 1")
}
