package store

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The format on disk is stable: a change needs a new number of the format.
func TestMetaIsGolden(t *testing.T) {
	const golden = `{"format":1,"keeper":"ada","floor":7}`
	c := Config{Role: "keeper", Owner: "ada"}
	require.Equal(t, golden, string(c.encodeMeta(1, 7)))
	m, err := c.decodeMeta([]byte(golden))
	require.NoError(t, err)
	require.Equal(t, meta{format: 1, owner: "ada", floor: 7}, m)
}
