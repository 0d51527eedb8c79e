package main

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestProgress: packages are counted, and told at times; what the compiler says is passed on.
func TestProgress(t *testing.T) {
	var out bytes.Buffer
	p := &progress{people: &out, all: 4, every: time.Hour, end: "\n"}
	for _, part := range []string{"internal/goarch\nruntime/inter", "nal/sys\n# example.com/a\na.go:1:2: ", "wrong\nfmt\nos\n"} {
		n, err := io.WriteString(p, part)
		require.NoError(t, err)
		require.Equal(t, len(part), n)
	}
	require.Equal(t, "1 of 4 packages compiled\n# example.com/a\na.go:1:2: wrong\n4 of 4 packages compiled\n", out.String())
}
