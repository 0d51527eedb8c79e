package coord_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
)

// TestJSON: the nouns have the names of the API's messages, readable values, and no id that the caller may not learn.
func TestJSON(t *testing.T) {
	for want, noun := range map[string]any{
		`{"key":"a","value":"b","create_revision":1,"mod_revision":2,"version":3}`:                                             &coord.KeyValue{Key: "a", Value: []byte("b"), CreateRevision: 1, ModRevision: 2, Version: 3},
		`{"key":"","key_base64":"/w==","value_base64":"/g==","create_revision":0,"mod_revision":0,"version":0,"lease_id":"5"}`: &coord.KeyValue{Key: "\xff", Value: []byte("\xfe"), Lease: 5},
		`{"revision":7,"key":"a"}`: coord.Event{Revision: 7, Key: "a"},
		`["exclusive","shared"]`:   []coord.Mode{coord.Exclusive, coord.Shared},
	} {
		got, err := json.Marshal(noun)
		require.NoError(t, err)
		require.Equal(t, want, string(got))
	}
}
