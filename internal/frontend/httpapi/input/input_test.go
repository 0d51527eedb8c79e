package input_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/pkg/fault"
)

type body struct {
	Name  string `json:"name"`
	Inner struct {
		Port uint16 `json:"port"`
	} `json:"inner"`
}

func TestObject(t *testing.T) {
	var b body
	require.NoError(t, input.Object([]byte(` {"name": "a", "inner": {"port": 1}} `), &b))
	require.Equal(t, "a", b.Name)
	require.NoError(t, input.Open([]byte(`{"name": "b", "more": 1}`), &b))
	require.Equal(t, "b", b.Name)
	for text, field := range map[string]string{
		``: "body", `{`: "body", `[]`: "body", `{} {}`: "body", `{},`: "body", `"x"`: "body", `{"name": 1}`: "name", `{"inner": {"port": 65536}}`: "inner.port",
		`{"inner": 1}`: "inner", `{"nam": 1}`: "nam", `{"": 1}`: "body", `{"` + strings.Repeat("n", 100) + `": 1}`: strings.Repeat("n", 61) + "…",
	} {
		err := input.Object([]byte(text), &b)
		require.ErrorIs(t, err, fault.Invalid, text)
		require.Equal(t, field, fault.FieldOf(err), text)
	}
	require.Error(t, input.Open([]byte(`{} {}`), &b))
}

func TestKnown(t *testing.T) {
	for query, field := range map[string]string{"": "", "a=1&b=2": "", "a=1&a=2": "a", "c=1": "c", "a=%zz": "url", "a;b": "url", "%20=1": " "} {
		values, err := input.Known(&url.URL{RawQuery: query}, "a", "b")
		require.Equal(t, field, fault.FieldOf(err), query)
		require.Equal(t, field == "", err == nil)
		if query == "a=1&b=2" {
			require.Equal(t, url.Values{"a": {"1"}, "b": {"2"}}, values)
		}
	}
}

// TestLists: clients made from the OpenAPI document repeat the parameter of a list.
func TestLists(t *testing.T) {
	for query, want := range map[string]string{"tags=a&tags=b": "a,b", "tags=a,b&tags=c": "a,b,c", "tags=a": "a"} {
		values, err := input.Known(&url.URL{RawQuery: query}, "tags")
		require.NoError(t, err)
		require.Equal(t, want, values.Get("tags"))
	}
}

func TestNumbersAndTruths(t *testing.T) {
	values := url.Values{"n": {"7"}, "t": {"true"}, "f": {"false"}, "x": {"-1"}}
	n, err := input.Number(values, "n")
	require.NoError(t, err)
	require.EqualValues(t, 7, n)
	n, err = input.Number(values, "none")
	require.NoError(t, err)
	require.Zero(t, n)
	_, err = input.Number(values, "x")
	require.Equal(t, "x", fault.FieldOf(err))
	for name, want := range map[string]bool{"t": true, "f": false, "none": false} {
		got, err := input.ParseBool(values, name)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	_, err = input.ParseBool(values, "n")
	require.Equal(t, "n", fault.FieldOf(err))
}
