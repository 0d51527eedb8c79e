package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/discovery/discoverytest"
	"github.com/blackhole/blackhole/pkg/records"
)

const own = "/v1/discovery/records"

func TestRegister(t *testing.T) {
	a := newFixture(t)
	got := do(a.handler, "POST", own, text(t, "a.b"))
	require.Equal(t, http.StatusCreated, got.Code, "%s", got.Body)
	require.Equal(t, own+"/a.b", got.Header().Get("Location"))
	require.Len(t, got.json, 5)
	require.Equal(t, "a.b", got.json["id"])
	require.Equal(t, object{"on": 1.0, "of": 1.0}, got.json["stored"])
	require.Positive(t, got.json["sequence"])
	_, err := time.Parse(time.RFC3339Nano, got.json["expires_at"].(string))
	require.NoError(t, err)
	require.Contains(t, got.json["key"], "/blackhole/services/compute/gpu/")

	one := a.ok(t, 200, "GET", own+"/a.b", "")
	require.Equal(t, got.json["key"], one["key"])
	require.Equal(t, got.json["sequence"], one["sequence"])
	require.Equal(t, 52.52, one["location"].(object)["latitude"])
	require.NotEmpty(t, one["signature"])
	list := a.ok(t, 200, "GET", own, "")
	require.Equal(t, object{"records": []any{one}}, list)

	a.refused(t, refusal{409, "service_already_exists", "id"}, "POST "+own, text(t, "a.b"))
}

func TestListOfNothingIsAList(t *testing.T) {
	a := newFixture(t)
	require.JSONEq(t, `{"records":[]}`, do(a.handler, "GET", own, "").Body.String())
	require.JSONEq(t, `{"peers":[]}`, do(a.handler, "GET", "/v1/peers", "").Body.String())
	a.ok(t, 200, "GET", "/v1/discovery/query?type=x", "")
	require.Contains(t, do(a.handler, "GET", "/v1/discovery/query?type=x", "").Body.String(), `"results":[]`)
}

// badOffers maps bodies to the field of their error.
func badOffers(t testing.TB) map[string]string {
	good := text(t, "a")
	return map[string]string{
		"":                                 "body",
		"nothing":                          "body",
		"<offer/>":                         "body",
		"null":                             "body",
		"[]":                               "body",
		`"a"`:                              "body",
		good + "x":                         "body",
		good + good:                        "body",
		good[:len(good)-1]:                 "body",
		"\xff\xfe" + good:                  "body",
		strings.Repeat("[", 1<<15):         "body",
		strings.Repeat(" ", 10<<20):        "body",
		`{"id":"a","id":"b"}`:              "id",
		`{"":1}`:                           "body",
		`{"id":1}`:                         "id",
		`{"ID":"a"}`:                       "ID",
		text(t, "a/b"):                     "id",
		text(t, ".."):                      "id",
		text(t, strings.Repeat("a", 65)):   "id",
		text(t, "a", set("colour", "red")): "colour",
		text(t, "a", set("metadata.colour", "red")):                       "metadata.colour",
		text(t, "a", set("provider_id", 7)):                               "provider_id",
		text(t, "a", set("sequence", -7)):                                 "sequence",
		text(t, "a", set("metadata", nil)):                                "metadata.type",
		text(t, "a", set("metadata.type", "Compute")):                     "metadata.type",
		text(t, "a", set("location.latitude", 91)):                        "location.latitude",
		text(t, "a", set("location.latitude", "52")):                      "location.latitude",
		text(t, "a", set("location.longitude", nil)):                      "location.longitude",
		text(t, "a", set("location.country", "Germany")):                  "location.country",
		text(t, "a", set("pricing.base_price", -1)):                       "pricing.base_price",
		text(t, "a", set("capabilities.compute.cpu_cores", 1.5)):          "capabilities.compute.cpu_cores",
		text(t, "a", set("capabilities.compute.cpu_cores", -1)):           "capabilities.compute.cpu_cores",
		text(t, "a", set("capabilities.storage", object{})):               "capabilities.storage",
		text(t, "a", set("health.status", "GREAT")):                       "health.status",
		text(t, "a", set("health.last_check", "yesterday")):               "health.last_check",
		strings.Replace(good, "52.52", "NaN", 1):                          "location.latitude",
		strings.Replace(good, "52.52", "1e999", 1):                        "location.latitude",
		strings.Replace(good, `"latitude"`, `"latitude":1,"latitude"`, 1): "location.latitude",
	}
}

// TestPutBack: a program reads its record, edits it and puts it back.
func TestPutBack(t *testing.T) {
	a := newFixture(t)
	a.ok(t, 201, "POST", own, text(t, "a"))
	record := a.ok(t, 200, "GET", own+"/a", "")
	record["metadata"].(map[string]any)["name"] = "another name"
	body, err := json.Marshal(record)
	require.NoError(t, err)
	a.ok(t, 200, "PUT", own+"/a", string(body))
	again := a.ok(t, 200, "GET", own+"/a", "")
	require.Equal(t, "another name", again["metadata"].(map[string]any)["name"])
	require.Equal(t, record["capabilities"], again["capabilities"])
}

func TestBadOffersChangeNothing(t *testing.T) {
	a := newFixture(t)
	a.ok(t, 201, "POST", own, text(t, "kept"))
	before := a.ok(t, 200, "GET", own, "")
	for body, field := range badOffers(t) {
		status, code := 400, "validation_error"
		if len(body) > maxBody {
			status, code = 413, "too_large"
		}
		got := do(a.handler, "POST", own, body)
		require.Equal(t, status, got.Code, "%.100s: %s", body, got.Body)
		require.Equal(t, code, got.json["error"], "%.100q: %q", body, got.Body)
		require.Contains(t, got.json["field"], field, "%.100s: %s", body, got.Body)
	}
	require.Equal(t, before, a.ok(t, 200, "GET", own, ""))
}

func TestErrorsShowTheValue(t *testing.T) {
	a := newFixture(t)
	got := a.refused(t, invalid("location.latitude"), "POST "+own, text(t, "a", set("location.latitude", 91)))
	require.Equal(t, 91.0, got.json["value"])
	require.Contains(t, got.json["message"], "Invalid location.latitude: ")
}

func TestLimit(t *testing.T) {
	a := newFixture(t)
	for i := range discoverytest.MaxServices {
		a.ok(t, 201, "POST", own, text(t, fmt.Sprint("s", i)))
	}
	got := do(a.handler, "POST", own, text(t, "more"))
	require.Equal(t, 429, got.Code)
	require.Equal(t, "rate_limit_exceeded", got.json["error"])
}

func TestUpdate(t *testing.T) {
	a := newFixture(t)
	a.refused(t, missing("id"), "PUT "+own+"/a", text(t, "a"))
	first := a.ok(t, 201, "POST", own, text(t, "a"))
	before := a.ok(t, 200, "GET", own+"/a", "")

	a.refused(t, invalid("id"), "PUT "+own+"/a", text(t, "b"))
	a.refused(t, invalid("id"), "PUT "+own+"/a", text(t, "a", set("id", nil)))
	a.refused(t, invalid("id"), "PUT "+own+"/a%2Fb", text(t, "a"))
	a.refused(t, invalid("id"), "PUT "+own+"/a%2Fb", text(t, "a", func(o object) { delete(o, "id") }))
	a.refused(t, invalid("id"), "PUT "+own+"/%ff", text(t, "a", func(o object) { delete(o, "id") }))
	a.refused(t, invalid("metadata.type"), "PUT "+own+"/a", "{}")
	a.refused(t, invalid("body"), "PUT "+own+"/a", "{} {}")
	a.refused(t, invalid("colour"), "PUT "+own+"/a", `{"colour":1}`)
	a.refused(t, invalid("location.latitude"), "PUT "+own+"/a", text(t, "a", set("location.latitude", 91)))
	require.Equal(t, before, a.ok(t, 200, "GET", own+"/a", ""))

	for i, body := range []string{
		text(t, "a", set("pricing.base_price", 0)),
		text(t, "a", set("pricing.base_price", 1), func(o object) { delete(o, "id") }),
	} {
		receipt := a.ok(t, 200, "PUT", own+"/a", body)
		require.Greater(t, receipt["sequence"], first["sequence"])
		after := a.ok(t, 200, "GET", own+"/a", "")
		require.Equal(t, float64(i), after["pricing"].(object)["base_price"])
		require.Equal(t, before["created_at"], after["created_at"])
	}
}

func TestWithdraw(t *testing.T) {
	a := newFixture(t)
	a.ok(t, 201, "POST", own, text(t, "a"))
	for _, id := range []string{"b", "a%2Fb", "a%2F", "%2e%2e", "A", strings.Repeat("a", 2000)} {
		a.refused(t, missing("id"), "DELETE "+own+"/"+id, "")
		a.refused(t, missing("id"), "GET "+own+"/"+id, "")
	}
	receipt := a.ok(t, 200, "DELETE", own+"/a", "")
	require.Equal(t, "a", receipt["id"])
	a.refused(t, missing("id"), "DELETE "+own+"/a", "")
	a.refused(t, missing("id"), "GET "+own+"/a", "")
}

func TestBatch(t *testing.T) {
	a := newFixture(t)
	body := fmt.Sprintf(`{"records":[%s,%s,1,null,%s,%s]}`,
		text(t, "a"), text(t, "b", set("location.latitude", -91)), text(t, "a"), text(t, "c"))
	results := a.ok(t, 200, "POST", own+":batch", body)["results"].([]any)
	require.Len(t, results, 6)
	for i, want := range []any{"a", "location.latitude", "body", "body", "id", "c"} {
		result := results[i].(object)
		if fail, ok := result["error"].(object); ok {
			require.Equal(t, want, fail["field"])
			require.NotEmpty(t, fail["error"])
			require.NotEmpty(t, fail["message"])
			require.NotContains(t, result, "id")
			continue
		}
		require.Equal(t, want, result["id"])
		require.NotEmpty(t, result["key"])
		require.Equal(t, object{"on": 1.0, "of": 1.0}, result["stored"])
	}
	require.Equal(t, "service_already_exists", results[4].(object)["error"].(object)["error"])
	require.Len(t, a.OwnAll(), 2)
}

// TestBatchWarns: a result of a batch has the warnings of its receipt, as the document says.
func TestBatchWarns(t *testing.T) {
	a := newFixture(t, func(c *Config) { c.Registrar = warned{c.Registrar} })
	results := a.ok(t, 200, "POST", own+":batch", fmt.Sprintf(`{"records":[%s]}`, text(t, "a")))["results"].([]any)
	require.Equal(t, []any{"other peers may ignore it"}, results[0].(object)["warnings"])
}

// warned is a registrar whose receipts have a warning.
type warned struct{ discovery.Registrar }

func (w warned) RegisterBatch(ctx context.Context, offers []records.Offer) ([]discovery.Outcome, error) {
	all, err := w.Registrar.RegisterBatch(ctx, offers)
	for i := range all {
		all[i].Receipt.Warnings = []string{"other peers may ignore it"}
	}
	return all, err
}

func TestBadBatchesChangeNothing(t *testing.T) {
	a := newFixture(t)
	good := text(t, "a")
	many := strings.Repeat(",{}", discovery.MaxBatch)
	for body, field := range map[string]string{
		"": "body", "batch": "body", "[]": "body", "null": "body", "{": "body", "{}": "records",
		`{"":1}`: "body", `{"records":[]}`: "records", `{"records":{}}`: "records", `{"records":null}`: "records", `{"records":1}`: "records",
		`{"records":[` + good + `]`:                            "body",
		`{"records":[` + good + `]} {}`:                        "body",
		`{"records":[` + good + `,]}`:                          "body",
		`{"records":[` + good + ` ` + good + `]}`:              "body",
		`{"records":[` + good + `],"force":true}`:              "force",
		`{"records":[` + good + `],"records":[]}`:              "records",
		`{"records":[` + good + `],"records":[` + good + `]}`:  "records",
		`{"records":[` + good + `],"RECORDS":[]}`:              "RECORDS",
		`{"records":[` + good + many + `]}`:                    "records",
		`{"` + strings.Repeat("x", 1<<20) + `":[]}`:            strings.Repeat("x", 61) + "…",
		`{"records":[` + good + `],"records` + "\xff" + `":1}`: "records\ufffd",
	} {
		a.refused(t, invalid(field), "POST "+own+":batch", body)
	}
	a.refused(t, refusal{413, "too_large", "body"}, "POST "+own+":batch", `{"records":[`+good+strings.Repeat(" ", maxBatch))
	require.Empty(t, a.OwnAll())
}

func TestResolve(t *testing.T) {
	a := newFixture(t)
	foreign := a.Foreign(t, discoverytest.Offer("f"))
	path := "/v1/discovery/resolve?key="
	got := a.ok(t, 200, "GET", path+foreign.Key().String(), "")
	require.Equal(t, "f", got["id"])
	require.Equal(t, foreign.ContentID().String(), got["content_id"])
	for _, query := range []string{"", "nonsense", "%00", strings.Repeat("a", 1000), "a&key=b"} {
		a.refused(t, invalid("key"), "GET "+path+query, "")
	}
	a.refused(t, invalid("url"), "GET "+path+"%zz", "")
	other := strings.Replace(foreign.Key().String(), "/f", "/g", 1)
	require.Equal(t, 404, do(a.handler, "GET", path+other[:len(other)-1]+"g", "").Code)
}

// FuzzBatch: each body gives an error or one result per record.
func FuzzBatch(f *testing.F) {
	for _, body := range []string{`{"records":[{}]}`, `{"records":[{"id":"a"},1,"",null]}`, `{"records":[1,]}`, `{"records":[],"x":1}`, ` {`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		entries, err := readBatch(strings.NewReader(string(body)))
		if err != nil {
			require.Nil(t, entries)
			code, form := bodyOf(within("body", err))
			require.Equal(t, 400, code)
			require.NotEmpty(t, form.Field)
			return
		}
		var plain struct{ Records []json.RawMessage }
		require.NoError(t, json.Unmarshal(body, &plain), "what is accepted is JSON")
		require.Len(t, entries, len(plain.Records))
	})
}

// FuzzWithID: the text keeps its meaning, and its faults.
func FuzzWithID(f *testing.F) {
	for _, body := range []string{`{}`, ` {"a":1}`, `{"id":"b"}`, `{"id":null}`, `null`, `[]`, `{"a":1,"a":2}`, `{"a":"{"}x`} {
		f.Add([]byte(body), "a/b\"")
	}
	f.Fuzz(func(t *testing.T, body []byte, id string) {
		put := withID(slices.Clone(body), id)
		var before, after map[string]json.RawMessage
		failed := json.Unmarshal(body, &before) != nil
		require.Equal(t, failed, json.Unmarshal(put, &after) != nil)
		if failed || before == nil || before["id"] != nil {
			require.Equal(t, body, put)
			return
		}
		quoted, err := json.Marshal(id)
		require.NoError(t, err)
		require.Equal(t, json.RawMessage(quoted), after["id"])
		delete(after, "id")
		require.Equal(t, before, after)
	})
}
