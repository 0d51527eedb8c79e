package httpapi

import (
	"encoding/json"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/discoverytest"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/openapi"
	"github.com/blackhole/blackhole/pkg/query"
)

// TestFieldsOfClauses: the documentation and the OpenAPI document have exactly the table of fields.
func TestFieldsOfClauses(t *testing.T) {
	text, err := os.ReadFile("../../../docs/api.md")
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(text), "| field | kind and unit | operations | meaning |\n|---|---|---|---|\n")
	require.True(t, ok)
	table, _, _ = strings.Cut(table, "\n\n")
	var rows, names []string
	for _, f := range query.Fields() {
		kind, ops := string(f.Kind), make([]string, len(f.Ops()))
		for i, op := range f.Ops() {
			ops[i] = string(op)
		}
		if f.Unit != "" {
			kind += ", " + f.Unit
		}
		rows = append(rows, "| `"+f.Name+"` | "+kind+" | "+strings.Join(ops, " ")+" | "+f.Help+" |")
		if !strings.HasSuffix(f.Name, "KEY") {
			names = append(names, f.Name)
		}
	}
	require.Equal(t, rows, strings.Split(table, "\n"))

	var document struct {
		Components struct {
			Schemas struct {
				Clause struct {
					Properties struct {
						Field struct{ AnyOf []struct{ Enum []string } }
					}
				}
			}
		}
	}
	require.NoError(t, json.Unmarshal([]byte(openapi.Document()), &document))
	require.Equal(t, names, document.Components.Schemas.Clause.Properties.Field.AnyOf[1].Enum)
}

// TestFieldsOfAnswers: fields= keeps the named fields of each entry and all of the answer around them.
func TestFieldsOfAnswers(t *testing.T) {
	a := newFixture(t)
	a.Foreign(t, discoverytest.Offer("near"))
	a.ok(t, 201, "POST", own, text(t, "mine"))
	const question = ask + "?type=compute&near=52.5,13.4&sort=distance"
	whole := a.ok(t, 200, "GET", question, "")
	got := a.ok(t, 200, "GET", question+"&fields=record.id,record.location.country&fields=distance_km", "")
	require.Len(t, got["results"], 2)
	for i, r := range got["results"].([]any) {
		from := whole["results"].([]any)[i].(object)
		record := from["record"].(object)
		require.Equal(t, object{"record": object{"id": record["id"], "location": object{"country": "DE"}}, "distance_km": from["distance_km"]}, r)
	}
	for _, name := range []string{"total", "complete"} {
		require.Equal(t, whole[name], got[name])
	}
	require.Equal(t, got["results"], a.ok(t, 200, "POST", ask+"?fields=record.id,record.location.country,distance_km", `{"type":"compute","near":{"latitude":52.5,"longitude":13.4},"sort":"distance"}`)["results"])

	require.Equal(t, object{"records": []any{object{"id": "mine"}}}, a.ok(t, 200, "GET", own+"?fields=id", ""))
	require.Equal(t, object{"id": "mine"}, a.ok(t, 200, "GET", own+"/mine?fields=id", ""))
	key := a.ok(t, 200, "GET", own+"/mine", "")["key"].(string)
	require.Equal(t, object{"key": key}, a.ok(t, 200, "GET", "/v1/discovery/resolve?fields=key&key="+url.QueryEscape(key), ""))
}

func TestUnknownFieldsOfAnswers(t *testing.T) {
	a := newFixture(t)
	for line, names := range map[string]string{
		"GET " + ask + "?type=compute&fields=id":                   "record.location.city",
		"GET " + ask + "?type=compute&fields=":                     "distance_km",
		"GET " + ask + "?type=compute&fields=record.location.town": "record.location are city, country, isp",
		"POST " + ask + "?fields=record.colour":                    "record are",
		"GET " + own + "?fields=record.id":                         "capabilities.compute.gpus.model",
		"GET " + own + "/x?fields=name":                            "metadata.name",
		"GET /v1/discovery/resolve?key=x&fields=name":              "metadata.name",
		"GET /v1/discovery/watch?type=compute&fields=name":         "metadata.name",
	} {
		got := a.refused(t, invalid("fields"), line, `{"type":"compute"}`)
		require.Contains(t, got.json["message"], names, line)
	}
	a.refused(t, invalid("url"), "GET "+ask+"?type=compute&fields=%zz", "")
}

func TestFieldsOfAWatch(t *testing.T) {
	inBubble(t, func(t *testing.T, a *fixture, c *http.Client) {
		a.Foreign(t, discoverytest.Offer("f"))
		ev, ok := watch(t, c, watchPath+"&fields=id,metadata.type").next()
		require.True(t, ok)
		require.Equal(t, object{"record": object{"id": "f", "metadata": object{"type": "compute"}}}, ev.data)
	})
}

func TestFieldsOfInstancesAndKeys(t *testing.T) {
	a := newAgentFixture(t)
	a.ok(t, 201, "POST "+payments, beating())
	for range 2 { // the rendering of a view is shared
		require.Equal(t, []any{object{"id": "payment-1", "port": 8080.0}}, a.ok(t, 200, "GET "+payments+"?fields=port,id", "").json["instances"])
	}
	require.Contains(t, a.ok(t, 200, "GET "+payments, "").json["instances"].([]any)[0], "host")
	a.refused(t, invalid("fields"), "GET "+payments+"?fields=status", "")

	p := newCoordFixture(t)
	p.putValue(t, "/keys/app%2Fa", strings.Repeat("x", 10_000))
	got := p.ok(t, 200, "GET /keys?prefix=app&fields=key,version", "")
	require.Equal(t, []any{object{"key": "app/a", "version": 1.0}}, got["keys"])
	require.Positive(t, got["revision"])
}
