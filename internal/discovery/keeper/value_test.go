package keeper

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

func newVerifier(t testing.TB) *records.Verifier {
	t.Helper()
	v, err := records.NewVerifier(1000)
	require.NoError(t, err)
	return v
}

func TestValidate(t *testing.T) {
	now := time.Now()
	clock := func() time.Time { return now }
	v := Validator(newVerifier(t), clock)
	p := newProvider(t)
	r := p.sign(t, offer("one"), 1, now)
	key := r.Key().String()
	require.NoError(t, v.Validate(key, r.Envelope()))

	forged := bytes.Clone(r.Envelope())
	forged[len(forged)/2] ^= 1
	other := newProvider(t).sign(t, offer("one"), 1, now)
	for _, tc := range []struct {
		name  string
		key   string
		value []byte
		kind  fault.Kind
	}{
		{"no key", "", r.Envelope(), fault.Invalid},
		{"another namespace", "/pk/" + key, r.Envelope(), fault.Invalid},
		{"a cell's key", r.Cells()[0].String(), r.Envelope(), fault.Invalid},
		{"a long key", key + strings.Repeat("x", records.MaxKey), r.Envelope(), fault.Invalid},
		{"another's key", other.Key().String(), r.Envelope(), fault.Invalid},
		{"no value", key, nil, fault.Unauthentic},
		{"forged", key, forged, fault.Unauthentic},
		{"padded", key, append(bytes.Clone(r.Envelope()), 0x7a, 0), fault.Unauthentic},
		{"large", key, make([]byte, records.MaxSize+1), fault.TooLarge},
	} {
		t.Run(tc.name, func(t *testing.T) { require.ErrorIs(t, v.Validate(tc.key, tc.value), tc.kind) })
	}
	now = r.Expires()
	require.ErrorIs(t, v.Validate(key, r.Envelope()), fault.Conflict, "expired")
}

func TestSelect(t *testing.T) {
	now := time.Now()
	v := Validator(newVerifier(t), func() time.Time { return now })
	p := newProvider(t)
	v1, v2 := p.sign(t, offer("one"), 1, now), p.sign(t, offer("one"), 2, now)
	twin := p.sign(t, offer("one", priced(9)), 2, now)
	tomb := p.withdraw(t, v2, now)
	fresh, err := records.Sign(p.key, offer("one"), records.Stamp{Sequence: 9, Issued: now, Expires: now.Add(time.Minute)})
	require.NoError(t, err)
	key := v1.Key().String()
	better := 1 // of twin and v2
	if records.Compare(twin, v2) > 0 {
		better = 0
	}
	for _, tc := range []struct {
		name   string
		values []*records.Record
		want   int
	}{
		{"one", []*records.Record{v1}, 0},
		{"newer first", []*records.Record{v2, v1}, 0},
		{"newer last", []*records.Record{v1, v2}, 1},
		{"again: stored anew", []*records.Record{v2, v2}, 0},
		{"equivocation", []*records.Record{twin, v2}, better},
		{"a tombstone", []*records.Record{v1, tomb, v2}, 1},
		{"the freshest", []*records.Record{tomb, fresh}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var values [][]byte
			for _, r := range tc.values {
				values = append(values, r.Envelope())
			}
			got, err := v.Select(key, values)
			require.NoError(t, err)
			require.Equal(t, tc.want, got)
		})
	}

	got, err := v.Select(key, [][]byte{[]byte("garbage"), nil, v1.Envelope()})
	require.NoError(t, err)
	require.Equal(t, 2, got)
	_, err = v.Select(key, [][]byte{[]byte("garbage")})
	require.ErrorIs(t, err, fault.Unauthentic)
	_, err = v.Select(key, nil)
	require.ErrorIs(t, err, fault.Invalid)

	now = now.Add(2 * time.Minute)
	got, err = v.Select(key, [][]byte{fresh.Envelope(), v1.Envelope()})
	require.NoError(t, err)
	require.Equal(t, 1, got, "an expired record never wins")
}

// No value of the DHT makes the validator panic, and every valid value is a record under its own
// key.
func FuzzValidator(f *testing.F) {
	r := newProvider(f).sign(f, offer("one"), 1, time.Now())
	f.Add(r.Key().String(), r.Envelope())
	f.Add(r.Cells()[0].String(), r.Envelope()[:40])
	f.Add("/blackhole/services/x/_/global/12D3KooW/y", []byte{0x0a})
	verifier := newVerifier(f)
	v := Validator(verifier, time.Now)
	f.Fuzz(func(t *testing.T, key string, value []byte) {
		err := v.Validate(key, value)
		_, err2 := v.Select(key, [][]byte{value})
		require.Equal(t, err == nil, err2 == nil)
		if err != nil {
			return
		}
		r, err := verifier.Open(value, time.Now())
		require.NoError(t, err)
		k, err := records.ParseKey(key)
		require.NoError(t, err)
		require.NoError(t, k.Matches(r))
	})
}
