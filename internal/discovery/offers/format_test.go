package offers

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
)

// The value of a service is stable: a change needs a new number of the format. The envelope has golden vectors in
// package records.
func TestValueIsGolden(t *testing.T) {
	r := open(t, config(t, vfs.NewMem()), epoch())
	first := register(t, r, epoch(), at(offer("one"), 52.5, 13.4))[0]
	got, err := r.services["one"].encode()
	require.NoError(t, err)
	require.Equal(t, `{"format":1,"offer":{"id":"one","metadata":{"type":"relay","name":"Relay one"},"location":{"latitude":52.5,"longitude":13.4}},`+
		`"operator":true,"created":"2026-03-01T12:00:00Z","until":"2026-03-02T12:00:00Z","current":{"issued":"2026-03-01T12:00:00Z","envelope":"ENVELOPE"}}`,
		strings.Replace(string(got), base64.StdEncoding.EncodeToString(first.Envelope()), "ENVELOPE", 1))
}
