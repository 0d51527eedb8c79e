package jsonform_test

import (
	"encoding/json"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/internal/platform/jsonform"
)

// alike compares an appended form with the standard encoder's. The text before it must stay
// unchanged.
func alike(t require.TestingT, v any, appended []byte) {
	want, err := json.Marshal(v)
	require.NoError(t, err)
	require.Equal(t, "before "+string(want), string(appended))
}

func before() []byte { return []byte("before ") }

func TestStrings(t *testing.T) {
	for c := range 256 { // every single byte; most above 127 are invalid UTF-8
		s := "a" + string([]byte{byte(c)}) + "z"
		alike(t, s, jsonform.AppendString(before(), s))
	}
	for _, s := range []string{"", "é", "日本", "😀", "\u2027\u2028\u2029\u202a", "\ufffd", "\xe2\x80", "\xed\xa0\x80", "</script>&\\\""} {
		alike(t, s, jsonform.AppendString(before(), s))
		alike(t, s, jsonform.AppendString(before(), []byte(s)))
	}
	rapid.Check(t, func(t *rapid.T) {
		raw := rapid.SliceOf(rapid.Byte()).Draw(t, "raw")
		alike(t, string(raw), jsonform.AppendString(before(), raw))
		s := rapid.String().Draw(t, "text")
		alike(t, s, jsonform.AppendString(before(), s))
	})
}

func TestNumbers(t *testing.T) {
	for _, f := range []float64{
		0, 1, 0.1, 99.99, 1e-6, 9.999e-7, 1e-7, 1e-9, 1e-10, 1.5e-9, 1e-99, 1e-100, math.SmallestNonzeroFloat64,
		1e20, 1e21, 1 << 53, 1<<53 + 2, 123456789012345.6, 1e100, math.MaxFloat64, math.Nextafter(1e21, 0), math.Nextafter(1e-6, 0),
	} {
		alike(t, f, jsonform.AppendNumber(before(), f))
		alike(t, -f, jsonform.AppendNumber(before(), -f))
	}
	alike(t, math.Copysign(0, -1), jsonform.AppendNumber(before(), math.Copysign(0, -1)))
	for _, f := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		require.Equal(t, "null", string(jsonform.AppendNumber(nil, f)))
	}
	rapid.Check(t, func(t *rapid.T) {
		any := math.Float64frombits(rapid.Uint64().Draw(t, "bits"))
		short := float64(rapid.Int64Range(-1e12, 1e12).Draw(t, "digits")) / math.Pow10(rapid.IntRange(0, 12).Draw(t, "decimals"))
		for _, f := range []float64{any, short, math.Nextafter(short, 1e300), rapid.Float64().Draw(t, "f")} {
			if !math.IsNaN(f) && !math.IsInf(f, 0) {
				alike(t, f, jsonform.AppendNumber(before(), f))
			}
		}
	})
}

func TestTimes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seconds := rapid.Int64Range(-62135596800, 253402300799).Draw(t, "seconds") // years 1 to 9999
		nanos := rapid.SampledFrom([]int64{0, 1, 1e3, 5e8, 999_999_999}).Draw(t, "nanos")
		at := time.Unix(seconds, nanos).UTC()
		alike(t, at, jsonform.AppendTime(before(), at))
	})
	at := time.Date(2026, 3, 1, 12, 0, 0, 1, time.FixedZone("", -5400))
	alike(t, at, jsonform.AppendTime(before(), at))
}

func TestNothingIsAllocated(t *testing.T) {
	dst := make([]byte, 0, 256)
	at := time.Unix(1e9, 1).UTC()
	require.Zero(t, testing.AllocsPerRun(10, func() {
		b := jsonform.AppendString(dst, "<é\u2028>")
		b = jsonform.AppendNumber(b, 1e-9)
		jsonform.AppendTime(b, at)
	}))
}

func FuzzAppendString(f *testing.F) {
	f.Add("a<b>&\u2028\xff\"\\\n")
	f.Fuzz(func(t *testing.T, s string) {
		alike(t, s, jsonform.AppendString(before(), s))
		alike(t, s, jsonform.AppendString(before(), []byte(s)))
	})
}

func FuzzAppendNumber(f *testing.F) {
	f.Add(1e21)
	f.Add(-1e-9)
	f.Fuzz(func(t *testing.T, v float64) {
		if !math.IsNaN(v) && !math.IsInf(v, 0) {
			alike(t, v, jsonform.AppendNumber(before(), v))
		}
	})
}
