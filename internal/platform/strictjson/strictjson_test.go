package strictjson_test

import (
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/platform/strictjson"
	"github.com/blackhole/blackhole/pkg/fault"
)

const limit = 1 << 16

type embedded struct {
	Zone string `json:"zone"`
}

type part struct {
	Model string `json:"model"`
	Count uint32 `json:"count"`
}

// level has a reader of its own.
type level int

func (l *level) UnmarshalJSON(text []byte) error {
	if string(text) != `"high"` {
		return fault.Invalidf("", nil, "must be high")
	}
	*l = 1
	return nil
}

// legacy reports errors as encoding/json does.
type legacy int

func (l *legacy) UnmarshalJSON(text []byte) error {
	return &json.UnmarshalTypeError{Value: string(text)}
}

type whole struct {
	embedded
	ID      string                     `json:"id"`
	Port    uint16                     `json:"port"`
	Delta   int8                       `json:"delta"`
	Big     uint64                     `json:"big"`
	Ratio   *float64                   `json:"ratio"`
	On      bool                       `json:"on"`
	At      time.Time                  `json:"at"`
	Key     []byte                     `json:"key"`
	Parts   []part                     `json:"parts"`
	Near    *part                      `json:"near"`
	Labels  map[string]string          `json:"labels"`
	Prices  map[string]float64         `json:"prices"`
	Raw     json.RawMessage            `json:"raw"`
	Raws    map[string]json.RawMessage `json:"raws"`
	Level   level                      `json:"level"`
	Legacy  legacy                     `json:"legacy"`
	Matrix  [][]string                 `json:"matrix"`
	Ignored string                     `json:"-"`
}

func TestDecode(t *testing.T) {
	var v whole
	text := ` {"zone": "z", "id": "\u00e9\ud83d\ude00", "port": 65535, "delta": -128, "big": 18446744073709551615, "ratio": 1e-3, "on": true,
		"at": "2026-03-01T12:00:00.5+01:00", "key": "AQI=", "parts": [{"model": "a"}, {}], "near": null, "labels": {"a": "null"},
		"prices": {"x": -0.5}, "raw": {"n": null, "l": [null]}, "raws": {"a": null, "b": 1}, "level": "high", "matrix": [[], ["a"]]} `
	require.NoError(t, strictjson.Decode([]byte(text), limit, &v))
	ratio := 1e-3
	require.WithinDuration(t, time.Date(2026, 3, 1, 11, 0, 0, 5e8, time.UTC), v.At, 0)
	v.At = time.Time{}
	require.Equal(t, whole{
		embedded: embedded{"z"}, ID: "é😀", Port: 65535, Delta: -128, Big: math.MaxUint64, Ratio: &ratio, On: true, Key: []byte{1, 2},
		Parts: []part{{Model: "a"}, {}}, Labels: map[string]string{"a": "null"}, Prices: map[string]float64{"x": -0.5},
		Raw: json.RawMessage(`{"n": null, "l": [null]}`), Raws: map[string]json.RawMessage{"a": json.RawMessage("null"), "b": json.RawMessage("1")},
		Level: 1, Matrix: [][]string{{}, {"a"}},
	}, v)
}

func TestNullFieldsStayZero(t *testing.T) {
	var v whole
	require.NoError(t, strictjson.Decode([]byte(`{"id":null,"port":null,"ratio":null,"at":null,"key":null,"parts":null,"near":null,"labels":null}`), limit, &v))
	require.Zero(t, v)
}

// refusal is a text that Decode refuses, with the field and a part of the message.
type refusal struct{ name, text, field, message string }

func TestTextThatIsNotJSON(t *testing.T) {
	refused(t, []refusal{
		{"nothing", ``, "", "ends early"},
		{"spaces", "  \n", "", "ends early"},
		{"cut", `{"id":"x"`, "", "ends early"},
		{"cut in a value", `{"id":"x`, "id", "ends early"},
		{"no JSON", `id: x`, "", "is not JSON"},
		{"no quotes", `{id:"x"}`, "", "is not JSON"},
		{"single quotes", `{'id':"x"}`, "", "is not JSON"},
		{"trailing comma", `{"id":"x",}`, "", "is not JSON"},
		{"comment", `{"id":"x"/**/}`, "", "is not JSON"},
		{"leading zero", `{"big":01}`, "", "is not JSON"},
		{"hexadecimal", `{"big":0x1}`, "", "is not JSON"},
		{"NaN", `{"ratio":NaN}`, "ratio", "is not JSON"},
		{"two values", `{} {}`, "", "after top-level value"},
		{"junk behind", `{},`, "", "after top-level value"},
		{"null", `null`, "", "must not be null"},
		{"list", `[]`, "", "must be an object, not a list"},
		{"string", `"x"`, "", `must be an object, not the string "x"`},
		{"control character", "{\"id\":\"a\nb\"}", "id", "is not JSON"},
		{"invalid UTF-8", "{\"id\":\"\xff\"}", "id", "UTF-8"},
		{"invalid UTF-8 in a name", "{\"\xff\":1}", "", "UTF-8"},
		{"lone surrogate", `{"id":"\ud800"}`, "id", "surrogate"},
	})
}

func TestUnknownAndRepeatedNames(t *testing.T) {
	refused(t, []refusal{
		{"unknown", `{"id":"x","price":1}`, "price", "is not a known field"},
		{"unknown within a list", `{"parts":[{},{"tag":[]}]}`, "parts[1].tag", "is not a known field"},
		{"unexported tag", `{"Ignored":"x"}`, "Ignored", "is not a known field"},
		{"embedded", `{"embedded":{}}`, "embedded", "is not a known field"},
		{"upper case", `{"ID":"x"}`, "ID", "is not a known field"},
		{"Go name", `{"Port":1}`, "Port", "is not a known field"},
		{"Kelvin sign", `{"\u212aey":""}`, "\u212aey", "is not a known field"},
		{"empty name", `{"":1}`, "", "is not a known field"},
		{"long name", `{"` + strings.Repeat("n", 1000) + `":1}`, strings.Repeat("n", 61) + "…", "is not a known field"},
		{"name with a slash", `{"a/b~c":1}`, "a/b~c", "is not a known field"},

		{"twice", `{"id":"x","id":"y"}`, "id", "is given twice"},
		{"twice with null", `{"id":null,"id":"y"}`, "id", "is given twice"},
		{"twice by an escape", `{"id":"x","\u0069d":"y"}`, "id", "is given twice"},
		{"twice in a map", `{"labels":{"a":"1","b":"2","a":"1"}}`, "labels.a", "is given twice"},
		{"twice in raw text", `{"raw":{"x":[{"1":1,"1":2}]}}`, "raw.x[0].1", "is given twice"},
		{"twice in a list", `{"parts":[{},{"count":1,"count":1}]}`, "parts[1].count", "is given twice"},
	})
}

func TestValuesOfTheWrongType(t *testing.T) {
	refused(t, []refusal{
		{"number for a string", `{"id":1}`, "id", "must be a string, not 1"},
		{"string for an object", `{"near":"here"}`, "near", `must be an object, not the string "here"`},
		{"object for a list", `{"parts":{}}`, "parts", "must be a list, not an object"},
		{"list for a map", `{"labels":[]}`, "labels", "must be an object, not a list"},
		{"long string", `{"near":"` + strings.Repeat("x", 100) + `"}`, "near", "must be an object, not a long string"},
		{"null in a list", `{"parts":[{},null]}`, "parts[1]", "must not be null"},
		{"null in a list of lists", `{"matrix":[["a"],[null]]}`, "matrix[1][0]", "must not be null"},
		{"null in a map", `{"prices":{"a":1,"b":null}}`, "prices.b", "must not be null"},
		{"boolean in a map", `{"labels":{"a":true}}`, "labels.a", "must be a string, not true"},
		{"number in a list", `{"matrix":[["a",2]]}`, "matrix[0][1]", "must be a string, not 2"},

		{"negative", `{"port":-1}`, "port", "a whole number of 0 to 65535, not -1"},
		{"above 16 bits", `{"port":65536}`, "port", "a whole number of 0 to 65535, not 65536"},
		{"above 64 bits", `{"big":18446744073709551616}`, "big", "a whole number of 0 to 18446744073709551615"},
		{"below 8 bits", `{"delta":-129}`, "delta", "a whole number of -128 to 127"},
		{"fraction", `{"big":1.5}`, "big", "not 1.5"},
		{"exponent", `{"big":1e3}`, "big", "not 1e3"},
		{"decimal point", `{"big":1.0}`, "big", "not 1.0"},
		{"quoted number", `{"big":"5"}`, "big", `not the string "5"`},
		{"infinite", `{"ratio":1e999}`, "ratio", "must be a finite number, not 1e999"},
		{"number of many digits", `{"port":` + strings.Repeat("9", 10_000) + `}`, "port", "…"},
		{"string for a boolean", `{"on":"yes"}`, "on", `must be true or false, not the string "yes"`},
		{"no time", `{"at":"yesterday"}`, "at", "must be a time as in RFC 3339"},
		{"number for a time", `{"at":0}`, "at", "must be a time as in RFC 3339, not 0"},
		{"no base64", `{"key":"***"}`, "key", "must be base64 text"},
		{"own reader", `{"level":"low"}`, "level", "must be high"},
		{"own reader, old form", `{"legacy":1}`, "legacy", "has the wrong type or is out of range"},

		{"deep list", `{"raw":` + strings.Repeat("[", 32) + strings.Repeat("]", 32) + `}`, "", "deeper than 32"},
		{"deep objects", strings.Repeat(`{"raw":`, 33) + "1" + strings.Repeat("}", 33), "", "deeper than 32"},
		{"very deep", strings.Repeat("[", limit), "", "deeper than 32"},
	})
}

func refused(t *testing.T, list []refusal) {
	for _, tt := range list {
		t.Run(tt.name, func(t *testing.T) {
			err := strictjson.Decode([]byte(tt.text), limit, new(whole))
			require.ErrorIs(t, err, fault.Invalid)
			require.Equal(t, tt.field, fault.FieldOf(err))
			require.Contains(t, err.Error(), tt.message)
			require.Less(t, len(err.Error()), 300, "an error does not repeat its input")
		})
	}
}

func TestSizeIsBounded(t *testing.T) {
	text := []byte(`{"id":"0123456789"}`)
	require.NoError(t, strictjson.Decode(text, len(text), new(whole)))
	require.ErrorIs(t, strictjson.Decode(text, len(text)-1, new(whole)), fault.TooLarge)
}

func TestDepthIsBounded(t *testing.T) {
	nested := func(n int) []byte {
		return []byte(`{"id":"[[[\"[[\\","raw":` + strings.Repeat("[", n-1) + strings.Repeat("]", n-1) + `,"raws":{"b":[]}}`)
	}
	require.NoError(t, strictjson.Decode(nested(strictjson.MaxDepth), limit, new(whole)))
	require.ErrorIs(t, strictjson.Decode(nested(strictjson.MaxDepth+1), limit, new(whole)), fault.Invalid)
	wide := []byte(`{"matrix":[` + strings.Repeat("[],", 1000) + `[]]}`)
	require.NoError(t, strictjson.Decode(wide, limit, new(whole)))
}

func TestDecodeOpen(t *testing.T) {
	var v part
	require.NoError(t, strictjson.DecodeOpen([]byte(`{"model":"a","more":{"x":[1]},"MODEL":"b"}`), limit, &v))
	require.Equal(t, part{Model: "a"}, v)
	for text, field := range map[string]string{
		`{"more":1,"more":2}`:       "more",
		`{"more":{"a":1,"a":1}}`:    "more.a",
		`{"count":-1}`:              "count",
		`{"model":"a","model":"b"}`: "model",
	} {
		require.Equal(t, field, fault.FieldOf(strictjson.DecodeOpen([]byte(text), limit, &v)), text)
	}
	require.Error(t, strictjson.DecodeOpen([]byte(`{} {}`), limit, &v))
	require.Error(t, strictjson.DecodeOpen([]byte(`null`), limit, &v))
	require.Error(t, strictjson.DecodeOpen([]byte(`{"x":`+strings.Repeat("[", 40)+strings.Repeat("]", 40)+`}`), limit, &v))
}

func TestUnknownNamesCanBeRecognised(t *testing.T) {
	err := strictjson.Decode([]byte(`{"x":1}`), limit, new(part))
	require.ErrorIs(t, err, strictjson.ErrUnknown)
	require.False(t, errors.Is(strictjson.Decode([]byte(`{"count":-1}`), limit, new(part)), strictjson.ErrUnknown))
}

// FuzzDecode compares with encoding/json: a text that Decode accepts has the same meaning there.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"zone":"z","id":"x","port":1,"ratio":1e-3,"at":"2026-03-01T12:00:00Z","key":"AQI=","parts":[{"model":"a"}],"labels":{"a":"b"}}`))
	f.Add([]byte(`{"id":"x","ID":"y","raw":{"a":[null,{"b":1,"b":2}]},"near":null,"prices":{"a":null}}`))
	f.Add([]byte(`{"matrix":[[["a"]]],"raws":{"\u0000":null}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var v, same whole
		if err := strictjson.Decode(text, limit, &v); err != nil {
			require.Contains(t, []fault.Kind{fault.Invalid, fault.TooLarge}, fault.KindOf(err))
			require.Less(t, len(err.Error()), 3000)
			return
		}
		require.True(t, utf8.Valid(text))
		require.NoError(t, json.Unmarshal(text, &same))
		a, err := json.Marshal(v)
		require.NoError(t, err)
		b, err := json.Marshal(same)
		require.NoError(t, err)
		require.Equal(t, string(b), string(a))
	})
}

func BenchmarkDecode(b *testing.B) {
	for name, text := range map[string]string{
		"plain": `{"zone":"z","id":"x","port":1,"ratio":0.5,"parts":[{"model":"a","count":1}],"labels":{"a":"b"}}`,
		"nulls": `{"zone":"z","id":"x","port":1,"ratio":null,"parts":[{"model":"a","count":1}],"labels":{"a":"b"}}`,
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := strictjson.Decode([]byte(text), limit, new(whole)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
