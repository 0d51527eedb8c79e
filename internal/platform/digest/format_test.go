package digest

import (
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"
)

// Keepers of all versions compute equal sums of equal records.
func TestFormatsAreGolden(t *testing.T) {
	golden := func(want string, b []byte) {
		t.Helper()
		require.Equal(t, want, hex.EncodeToString(b))
	}
	entries := []Entry{
		{IDOf("12D3KooWA/one"), VersionOf(1, [32]byte{0xaa})},
		{IDOf("12D3KooWA/two"), VersionOf(1<<40, [32]byte{0xbb, 0xcc})},
		{IDOf("12D3KooWB/one"), VersionOf(3, [32]byte{})},
	}
	golden("cc42da80d9be003e987dfbe72a93b60b0000000000000001aa000000000000003dbc9d2eb72d38b1bea853aa00a9f37c0000010000000000bbcc0000000000008bf0f3957b1245bb1dcc3235080372b200000000000000030000000000000000", Append(nil, entries...))
	s := New(entries)
	root, sums := s.Root(), s.Sums()
	golden("55e628a2926b52e1fa218fc236fdfef1", root[:])
	golden("143d75b229e679e7bbd33e8a27b724e3", sums[entries[0].ID.Bucket()][:])
	empty := New(nil).Root()
	golden("00000000000000000000000000000000", empty[:])
}
