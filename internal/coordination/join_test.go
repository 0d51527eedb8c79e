package coordination

import (
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/blackhole/blackhole/internal/platform/strictproto"
	"github.com/blackhole/blackhole/pkg/fault"
	groupv1 "github.com/blackhole/blackhole/proto/blackhole/group/v1"
)

// A message of a later version with a part that this version does not know does not reach the founder.
func TestBootstrapMessageOfALaterVersion(t *testing.T) {
	m := &groupv1.BootstrapMessage{Network: []byte{1}}
	m.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1))
	b, err := proto.Marshal(m)
	require.NoError(t, err)
	_, err = receive(nil, nil)(t.Context(), "peer", b)
	require.ErrorIs(t, err, fault.Unsupported)
	require.Equal(t, []string{"99"}, strictproto.PathsOf(err))
}
