package httpapi

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/discovery/discoverytest"
	"github.com/blackhole/blackhole/internal/platform/p2p/probe"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/records"
)

const ask = "/v1/discovery/query"

func TestQuery(t *testing.T) {
	a := newFixture(t)
	near := a.Foreign(t, discoverytest.Offer("near"))
	a.Foreign(t, discoverytest.Offer("dear", discoverytest.Priced(9)))
	a.Foreign(t, discoverytest.Offer("far", discoverytest.At(-33.9, 18.4)))
	a.Peers.Find(near.Name().Provider, probe.Outcome{State: records.Reachable})
	limit := 10 // each question is new, so that no answer is from the cache
	require.Eventually(t, func() bool {
		limit++
		return slices.ContainsFunc(a.ok(t, 200, "GET", fmt.Sprint(ask, "?type=compute&limit=", limit), "")["results"].([]any), func(r any) bool {
			return r.(object)["peer"] != nil
		})
	}, time.Minute, 10*time.Millisecond)

	body := `{"type":"compute","near":{"latitude":52.5,"longitude":13.4,"radius_km":100},"sort":"price","limit":1,"explain":true}`
	got := a.ok(t, 200, "POST", ask, body)
	require.Equal(t, "network", got["source"])
	require.Equal(t, true, got["complete"])
	require.Equal(t, 2.0, got["total"])
	require.Equal(t, 0.0, got["age_ms"])
	require.Contains(t, got, "took_ms")
	results := got["results"].([]any)
	require.Len(t, results, 1)
	first := results[0].(object)
	require.Equal(t, "near", first["record"].(object)["id"])
	require.InDelta(t, 2.25, first["distance_km"], 0.1)
	require.Positive(t, first["score"])
	require.NotEmpty(t, first["explain"])
	require.Equal(t, "reachable", first["peer"].(object)["state"])

	// The same question in parameters is the same question.
	for _, form := range []string{
		"near=52.5,13.4&radius_km=100", "near=52.5%2C13.4&radius_km=100", "near=52.5,13.4&near.radius_km=100",
		"near.latitude=52.5&near.longitude=13.4&near.radius_km=100", "near[latitude]=52.5&near[longitude]=13.4&near[radius_km]=100",
	} {
		again := a.ok(t, 200, "GET", ask+"?type=compute&sort=price&limit=1&explain=true&"+form, "")
		require.Equal(t, "cache", again["source"], form)
		require.Equal(t, results, again["results"])
	}

	// An empty answer names the prices that it compared.
	require.Equal(t, []any{"prices compared in USDC per-hour only: currency and price_unit name others"}, a.ok(t, 200, "GET", ask+"?type=compute&max_price=0.001", "")["notes"])
	require.NotContains(t, a.ok(t, 200, "GET", ask+"?type=compute&max_price=10", ""), "notes")

	// A city stands for its degrees, and the name of a country for its code.
	for form, body := range map[string]string{
		"near=berlin&radius_km=100&countries=Germany": "", "near=Berlin,+de&radius_km=100&countries=DE,France": "",
		"": `{"type":"compute","near":{"city":"Berlin","radius_km":100},"countries":["germany"]}`,
	} {
		method := map[bool]string{true: "POST", false: "GET"}[form == ""]
		got := a.ok(t, 200, method, strings.TrimSuffix(ask+"?type=compute&"+form, "?type=compute&"), body)
		require.Equal(t, 2.0, got["total"], form)
	}
	a.ok(t, 200, "GET", ask+"?type=compute&near=", "")
	for request, field := range map[string]string{"near=Berlim": "near", "countries=Germny": "countries[0]"} {
		require.Regexp(t, "did you mean (Berlin|DE)", a.refused(t, invalid(field), "GET "+ask+"?type=compute&"+request, "").json["message"])
	}
	require.Equal(t, 3.0, a.ok(t, 200, "POST", ask, `{"type":"compute","near":"Berlin"}`)["total"])
	a.refused(t, invalid("near.city"), "POST "+ask, `{"type":"compute","near":{"city":"Berlim"}}`)
	a.refused(t, invalid("near.city"), "POST "+ask, `{"type":"compute","near":"Berlim"}`)
	a.refused(t, invalid("near.city"), "POST "+ask, `{"type":"compute","near":{"city":"Berlin","latitude":1}}`)
	a.refused(t, invalid("countries[1]"), "POST "+ask, `{"type":"compute","countries":["DE","Germny"]}`)
}

func TestQueryWithoutTheNetwork(t *testing.T) {
	a := newFixture(t)
	a.Network.Fail(fault.New("keeper.Query", fault.Unavailable, "no keeper answers"))
	a.refused(t, refusal{503, "service_unavailable", ""}, "GET "+ask+"?type=compute", "")
	a.Network.Fail(fault.New("keeper.Query", fault.Timeout, "too late"))
	a.refused(t, refusal{504, "timeout", ""}, "GET "+ask+"?type=compute", "")
	a.ok(t, 201, "POST", own, text(t, "a"))
	got := a.ok(t, 200, "GET", ask+"?type=compute", "")
	require.Equal(t, "local", got["source"])
	require.Equal(t, false, got["complete"])
	require.NotEmpty(t, got["incomplete_reason"])
}

func TestBadQueries(t *testing.T) {
	a := newFixture(t)
	a.Foreign(t, discoverytest.Offer("f"))
	for body, field := range map[string]string{
		"": "body", "nothing": "body", "[]": "body", "{}": "type", "{": "body", `{"type":"compute"}{}`: "body", `{"":1}`: "body",
		`{"type":"compute","colour":1}`: "colour", `{"Type":"compute"}`: "Type", `{"type":1}`: "type",
		`{"type":"compute","type":"cdn"}`: "type", `{"type":"Compute"}`: "type",
		`{"type":"compute","near":{"latitude":91,"longitude":0}}`:                 "near.latitude",
		`{"type":"compute","near":{"latitude":0,"longitude":-180.1}}`:             "near.longitude",
		`{"type":"compute","near":{"latitude":0}}`:                                "near.longitude",
		`{"type":"compute","near":{"latitude":NaN,"longitude":0}}`:                "near.latitude",
		`{"type":"compute","near":{"latitude":0,"longitude":0,"radius_km":0}}`:    "near.radius_km",
		`{"type":"compute","near":{"latitude":0,"longitude":0,"radius_km":-5}}`:   "near.radius_km",
		`{"type":"compute","near":{"latitude":0,"longitude":0,"radius_km":1e99}}`: "near.radius_km",
		`{"type":"compute","near":{"latitude":1e999,"longitude":0}}`:              "near.latitude",
		`{"type":"compute","sort":"beauty"}`:                                      "sort",
		`{"type":"compute","limit":-1}`:                                           "limit",
		`{"type":"compute","limit":1001}`:                                         "limit",
		`{"type":"compute","limit":1.5}`:                                          "limit",
		`{"type":"compute","max_price":"1"}`:                                      "max_price",
		`{"type":"compute","min_uptime":101}`:                                     "min_uptime",
		`{"type":"compute","provider_id":"me"}`:                                   "provider_id",
		`{"type":"compute","health":"splendid"}`:                                  "health",
		`{"type":"compute","attributes":["a"]}`:                                   "attributes",
	} {
		a.refused(t, invalid(field), "POST "+ask, body)
	}
	a.refused(t, refusal{413, "too_large", "body"}, "POST "+ask, `{"type":"`+strings.Repeat("x", 10<<20)+`"}`)
	for parameters, field := range map[string]string{
		"": "type", "type=compute&type=cdn": "type", "type=compute&colour=red": "colour", "type=compute&near=91,0": "near.latitude",
		"type=compute&near=NaN,0": "near.latitude", "type=compute&near=1": "near", "type=compute&near=1,2&radius_km=0": "near.radius_km",
		"type=compute&radius_km=5": "near", "type=compute&latitude=1&longitude=2": "latitude",
		"type=compute&near.latitude=1": "near.longitude", "type=compute&near.longitude=1": "near.latitude",
		"type=compute&near=1,2&near.latitude=1": "near.latitude", "type=compute&near=1,2&radius_km=1&near.radius_km=1": "near.radius_km",
		"type=compute&near[height]=1": "near[height]", "type=compute&near.latitude=x&near.longitude=1": "near.latitude",
		"type=compute&sort=beauty": "sort", "type=compute&limit=ten": "limit", "type=compute&limit=%zz": "url",
		"type=compute;sort=price": "url", "type=compute&=1": "url", "%gh=1": "url", "type=compute&attr.a=1&attr.a=2": "attributes.a",
		url.Values{"type": {"compute"}, "regions": {strings.Repeat("a,", 65)}}.Encode(): "regions",
	} {
		a.refused(t, invalid(field), "GET "+ask+"?"+parameters, "")
	}
}
