package partial

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/blackhole/blackhole/pkg/fault"
)

type place struct {
	City string  `json:"city"`
	Lat  float64 `json:"lat,omitempty"`
}

type entry struct {
	place
	ID    string            `json:"id"`
	Home  *place            `json:"home,omitempty"`
	Parts []place           `json:"parts"`
	Tags  map[string]string `json:"tags"`
	Raw   json.RawMessage   `json:"raw"`
	Deep  [][]int           `json:"deep"`
}

func shape() *Shape { return ShapeOf(reflect.TypeFor[*entry]()) }

func TestNames(t *testing.T) {
	require.Equal(t, []string{"city", "deep", "home", "home.city", "home.lat", "id", "lat", "parts", "parts.city", "parts.lat", "raw", "tags", "tags.KEY"}, shape().Names())
}

const whole1 = `{"city":"a,\"}","lat":1e3,"id":"x\\","home":{"city":"b","lat":2},"parts":[{"city":"c","lat":3},{"lat":4}],"tags":{"a.b":"1","\u003c":"2"},"raw":[],"deep":[[1],[]]}`

func TestCut(t *testing.T) {
	for names, want := range map[string]string{
		"id":                   `{"id":"x\\"}`,
		"city,lat":             `{"city":"a,\"}","lat":1e3}`,
		"home.lat":             `{"home":{"lat":2}}`,
		"home.lat,home":        `{"home":{"city":"b","lat":2}}`,
		"home,home.lat":        `{"home":{"city":"b","lat":2}}`,
		"parts.city,deep":      `{"parts":[{"city":"c"},{}],"deep":[[1],[]]}`,
		"tags.a.b":             `{"tags":{"a.b":"1"}}`,
		"tags.<":               `{"tags":{"\u003c":"2"}}`,
		"tags.none, raw":       `{"tags":{},"raw":[]}`,
		"id,id,home.city":      `{"id":"x\\","home":{"city":"b"}}`,
		"deep,raw,tags,parts":  whole1[strings.Index(whole1, `,"parts"`):],
		"home.city,home.lat":   `{"home":{"city":"b","lat":2}}`,
		"city,id,home":         `{"city":"a,\"}","id":"x\\","home":{"city":"b","lat":2}}`,
		"lat,parts.lat,home":   `{"lat":1e3,"home":{"city":"b","lat":2},"parts":[{"lat":3},{"lat":4}]}`,
		" home.lat , home.lat": `{"home":{"lat":2}}`,
	} {
		f, err := Parse(shape(), []string{names})
		require.NoError(t, err, names)
		want = "{" + strings.TrimLeft(want, "{,")
		require.Equal(t, want, string(f.Cut(nil, []byte(whole1))), names)
		list := `{"n":1,"list":[` + whole1 + `,` + whole1 + `],"more":{"id":"kept"},"last":false}`
		require.Equal(t, `{"n":1,"list":[`+want+`,`+want+`],"more":{"id":"kept"},"last":false}`, string(f.CutEntries(nil, []byte(list), "list")), names)
	}
}

func TestNothingToCut(t *testing.T) {
	f, err := Parse(shape(), []string{"id"})
	require.NoError(t, err)
	for _, text := range []string{"{}", "[]", "null", "7", `""`, `{"list":[]}`, `{"list":null,"a":[{}]}`} {
		require.Equal(t, text, string(f.CutEntries(nil, append([]byte(nil), text...), "list")), text)
	}
	require.Equal(t, whole1, string((*Fields)(nil).CutEntries(nil, []byte(whole1), "list")))
}

func TestUnknown(t *testing.T) {
	for names, want := range map[string]string{
		"":              "the fields are city, deep, home,",
		"id,":           "the fields are city, deep, home,",
		"colour":        "the fields are city, deep, home,",
		"Home":          "the fields are city, deep, home,",
		"home.colour":   "the fields of home are city, lat",
		"home.":         "the fields of home are city, lat",
		"id.x":          "id has no fields of its own",
		"raw.x":         "raw has no fields of its own",
		"parts.lat.x":   "parts.lat has no fields of its own",
		"tags.":         "the fields of tags are KEY",
		"home..city":    "the fields of home are",
		"home,home.sea": "the fields of home are city, lat",
	} {
		_, err := Parse(shape(), []string{names})
		require.ErrorIs(t, err, fault.Invalid, names)
		require.Equal(t, "fields", fault.FieldOf(err))
		require.ErrorContains(t, err, want, names)
	}
	_, err := Parse(shape(), slices.Repeat([]string{"id"}, MaxNames+1))
	require.ErrorIs(t, err, fault.Invalid)
}

// TestCutIsProjection compares the cut with one over decoded values.
func TestCutIsProjection(t *testing.T) {
	texts := rapid.String()
	rapid.Check(t, func(r *rapid.T) {
		e := entry{
			place: place{texts.Draw(r, "city"), rapid.Float64().Draw(r, "lat")}, ID: texts.Draw(r, "id"),
			Parts: []place{{texts.Draw(r, "part"), 1}, {"", -2.5}}, Tags: rapid.MapOf(texts, texts).Draw(r, "tags"), Raw: []byte(`{"a":[]}`), Deep: [][]int{{1}, nil},
		}
		if rapid.Bool().Draw(r, "home") {
			e.Home = &place{City: texts.Draw(r, "home")}
		}
		text, err := json.Marshal(e)
		require.NoError(t, err)
		names := slices.DeleteFunc(shape().Names(), func(s string) bool { return s == "tags.KEY" })
		chosen := rapid.SliceOfNDistinct(rapid.SampledFrom(names), 1, 6, rapid.ID).Draw(r, "names")
		f, err := Parse(shape(), chosen)
		require.NoError(t, err)
		var all any
		require.NoError(t, json.Unmarshal(text, &all))
		want, err := json.Marshal(project(all, chosen))
		require.NoError(t, err)
		require.JSONEq(t, string(want), string(f.Cut(nil, text)))
	})
}

func project(v any, names []string) any {
	switch v := v.(type) {
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = project(v[i], names)
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for member, value := range v {
			var below []string
			for _, name := range names {
				if rest, ok := strings.CutPrefix(name, member+"."); ok {
					below = append(below, rest)
				}
			}
			switch {
			case slices.Contains(names, member):
				out[member] = value
			case below != nil:
				out[member] = project(value, below)
			}
		}
		return out
	}
	return v
}

// FuzzCut: no text makes the cut fail, and compact JSON stays JSON.
func FuzzCut(f *testing.F) {
	f.Add(whole1)
	f.Add(`{"list":[1,"]",{}]}`)
	f.Fuzz(func(t *testing.T, text string) {
		var b bytes.Buffer
		if json.Compact(&b, []byte(text)) != nil {
			return
		}
		compact := b.Bytes()
		fields, err := Parse(shape(), []string{"id,home.city,parts.lat"})
		require.NoError(t, err)
		require.True(t, json.Valid(fields.Cut(nil, compact)), "%s", compact)
		if len(compact) > 0 && compact[0] == '{' {
			require.True(t, json.Valid(fields.CutEntries(nil, compact, "list")), "%s", compact)
		}
	})
}
