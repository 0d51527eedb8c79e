package command

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestManText: text cannot become an order of man(7).
func TestManText(t *testing.T) {
	require.Equal(t, "\\&.so /etc/passwd\na\\eb \\-\\-c \\(aqd\\(aq", roff(".so /etc/passwd\na\\b --c 'd'"))
	require.Equal(t, "one\n.PP\n.nf\n  two\n.fi\n", manText("one\n\n  two"))
}
