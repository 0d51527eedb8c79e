package httpapi

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
)

// octets marks the body of a request as bytes.
func octets(r *http.Request) { r.Header.Set("Content-Type", "application/octet-stream") }

func (p coordFixture) putValue(t testing.TB, path, value string) object {
	t.Helper()
	got := p.send(t, "PUT "+path, value, octets)
	require.Equal(t, 200, got.code, "%s", got.text)
	return got.json
}

// revisionOf returns the revision of an answer's header.
func revisionOf(o object) string { return o["header"].(object)["revision"].(string) }

func TestKeys(t *testing.T) {
	p := newCoordFixture(t)
	p.refused(t, refusal{404, "not_found", "key"}, "GET /keys/app%2Fa", "")
	first := revisionOf(p.putValue(t, "/keys/app%2Fa", "one"))
	p.putValue(t, "/keys/app%2Fb", "\xff\x00")
	p.putValue(t, "/keys/other", "")
	second := revisionOf(p.putValue(t, "/keys/app%2Fa", "two"))
	require.NotEqual(t, second, first)

	kv := p.ok(t, 200, "GET /keys/app%2Fa", "")["kvs"].([]any)[0]
	require.Equal(t, object{"key": "YXBwL2E=", "value": "dHdv", "create_revision": first, "mod_revision": second, "version": "2", "lease": "0"}, kv)
	old := p.ok(t, 200, "GET /keys/app%2Fa?revision="+first, "")["kvs"].([]any)[0].(object)
	require.Equal(t, "b25l", old["value"])

	list := p.ok(t, 200, "GET /keys?key=app%2F&prefix=true", "")
	require.Len(t, list["kvs"], 2)
	require.Equal(t, "/wA=", list["kvs"].([]any)[1].(object)["value"])
	page := p.ok(t, 200, "GET /keys?prefix=true&limit=1", "")
	require.Equal(t, "YXBwL2I=", page["next"])
	rest := p.ok(t, 200, "GET /keys?prefix=true&from=app%2Fb", "")
	require.Len(t, rest["kvs"], 2)

	require.Equal(t, 2.0, p.ok(t, 200, "DELETE /keys/app%2F?prefix=true", "")["changed"])
	require.Equal(t, 0.0, p.ok(t, 200, "DELETE /keys/app%2Fa", "")["changed"])
	require.Len(t, p.ok(t, 200, "GET /keys?prefix=true", "")["kvs"], 1)
}

// TestNamedSlash: an object may have the name "/", which the router would take for the end of a path.
func TestNamedSlash(t *testing.T) {
	p := newCoordFixture(t)
	p.putValue(t, "/keys/%2F", "one")
	p.putValue(t, "/keys/%2f?if_revision="+revisionOf(p.putValue(t, "/key?key=%2F", "two")), "three")
	require.Equal(t, "dGhyZWU=", p.ok(t, 200, "GET /keys/%2F", "")["kvs"].([]any)[0].(object)["value"])
	require.Equal(t, 1.0, p.ok(t, 200, "DELETE /keys/%2F", "")["changed"])
	p.refused(t, refusal{404, "not_found", "key"}, "GET /keys/%2F", "")
	lease := p.ok(t, 200, "POST /leases", `{"ttl":30}`)["id"].(string)
	require.Equal(t, true, p.ok(t, 200, "POST /locks/%2F", `{"lease_id":"`+lease+`"}`)["acquired"])
	require.Equal(t, "/", p.ok(t, 200, "GET /locks/%2F", "")["lock"].(object)["name"])
}

// TestKeysCompare: if_revision makes a write conditional.
func TestKeysCompare(t *testing.T) {
	p := newCoordFixture(t)
	created := revisionOf(p.putValue(t, "/keys/k?if_revision=0", "a"))
	p.refused(t, refusal{409, "conflict", "if_revision"}, "PUT /keys/k?if_revision=0", "b", octets)
	changed := revisionOf(p.putValue(t, "/keys/k?if_revision="+created, "b"))
	p.refused(t, refusal{409, "conflict", "if_revision"}, "DELETE /keys/k?if_revision="+created, "")
	p.ok(t, 200, "DELETE /keys/k?if_revision="+changed, "")
}

func TestKeysWithLease(t *testing.T) {
	p := newCoordFixture(t)
	lease := p.lease(t, halfMinute)
	p.putValue(t, "/keys/k?lease_id="+lease, "a")
	require.Equal(t, lease, p.ok(t, 200, "GET /keys/k", "")["kvs"].([]any)[0].(object)["lease"])
	p.ok(t, 200, "DELETE /leases/"+lease, "")
	p.refused(t, refusal{404, "not_found", "key"}, "GET /keys/k", "")
}

func TestKeysRefuse(t *testing.T) {
	p := newCoordFixture(t)
	for line, want := range map[string]refusal{
		"GET /keys/k?revision=x":                        {400, "validation_error", "revision"},
		"GET /keys/k?revision=999":                      {400, "validation_error", "revision"},
		"GET /keys?limit=-1":                            {400, "validation_error", "limit"},
		"GET /keys?what=1":                              {400, "validation_error", "what"},
		"GET /keys?order=size":                          {400, "validation_error", "order"},
		"GET /keys?descending=maybe":                    {400, "validation_error", "descending"},
		"GET /keys?prefix=true&order=VALUE&from=absent": {400, "validation_error", "from"},
		"PUT /keys/k?if_revision=-1":                    {400, "validation_error", "if_revision"},
		"PUT /keys/k?lease_id=x":                        {400, "validation_error", "lease_id"},
		"PUT /keys/k?lease_id=7":                        {404, "not_found", "lease_id"},
		"PUT /keys/" + strings.Repeat("k", 2000):        {413, "too_large", "key"},
		"DELETE /keys/k?prefix=maybe":                   {400, "validation_error", "prefix"},
		"DELETE /keys/k?prefix=true&if_revision=12":     {400, "validation_error", "if_revision"},
	} {
		p.refused(t, want, line, "", octets)
	}
	p.refused(t, refusal{413, "too_large", "body"}, "PUT /keys/k", strings.Repeat("v", coord.MaxValue+1), octets)
}

// TestLargeValues: pages of the largest values end early, and none is lost.
func TestLargeValues(t *testing.T) {
	p := newCoordFixture(t)
	const keys = 20
	for i := range keys {
		p.putValue(t, fmt.Sprintf("/keys/k%02d", i), strings.Repeat("v", coord.MaxValue-1))
	}
	seen, pages := 0, 0
	for from := "k"; from != ""; pages++ {
		page := p.ok(t, 200, "GET /keys?key=k&prefix=true&from="+from, "")
		seen += len(page["kvs"].([]any))
		next, err := base64.StdEncoding.DecodeString(page["next"].(string))
		require.NoError(t, err)
		from = string(next)
	}
	require.Equal(t, keys, seen)
	require.Greater(t, pages, 3)
}

// TestKeysInOrder: pages in another order, names without values, and a count.
func TestKeysInOrder(t *testing.T) {
	p := newCoordFixture(t)
	for _, key := range []string{"k1", "k2", "k%FF", "other"} {
		p.putValue(t, "/keys/"+key, "v")
	}
	p.putValue(t, "/keys/k1", "last")
	page := p.ok(t, 200, "GET /keys?key=k&prefix=true&order=MOD_REVISION&limit=1", "")
	require.Equal(t, []any{"azI=", "a/8="}, []any{page["kvs"].([]any)[0].(object)["key"], page["next"]})
	rest := p.ok(t, 200, "GET /keys?key=k&prefix=true&order=MOD_REVISION&from=k%FF&keys_only=true&revision="+number64(page["revision"]), "")
	require.Len(t, rest["kvs"], 2)
	require.Equal(t, []any{"azE=", ""}, []any{rest["kvs"].([]any)[1].(object)["key"], rest["kvs"].([]any)[1].(object)["value"]})
	require.Equal(t, "azE=", p.ok(t, 200, "GET /keys?prefix=true&order=VERSION&descending=true&limit=1", "")["kvs"].([]any)[0].(object)["key"])
	count := p.ok(t, 200, "GET /keys?key=k&prefix=true&count_only=true", "")
	require.Equal(t, []any{"3", []any{}}, []any{count["count"], count["kvs"]})
	require.Equal(t, "0", p.ok(t, 200, "GET /keys?key=none&prefix=true&count_only=true", "")["count"])
}

// TestTxn: both branches, with the result of each step.
func TestTxn(t *testing.T) {
	p := newCoordFixture(t)
	lease := p.lease(t, halfMinute)
	txn := `{"compare": [{"key": "dC8x", "target": "VERSION"}, {"key": "dC8=", "range_end": "dDA=", "target": "LEASE"}],
		"then": [{"put": {"key": "dC8x", "value": "b25l"}}, {"put": {"key": "dC//", "value": "/w==", "lease": "` + lease + `"}}],
		"else": [{"range": {"key": "dC8=", "range_end": "dDA=", "order": "MOD_REVISION", "descending": true, "limit": 1}}, {"delete": {"key": "dC8=", "range_end": "dDA=", "prev_kv": true}}]}`
	step := func(count string, kvs ...any) object {
		return object{"count": count, "kvs": append([]any{}, kvs...), "results": []any{}, "more": false}
	}
	first := p.ok(t, 200, "POST /txn", txn)
	require.Equal(t, []any{true, 2.0}, []any{first["succeeded"], first["changed"]})
	require.Equal(t, []any{step("1"), step("1")}, first["results"])

	second := p.ok(t, 200, "POST /txn", txn)
	require.Equal(t, []any{false, 1.0, "version is 1, not 0", 2.0}, []any{second["succeeded"], second["failed"], second["reason"], second["changed"]})
	at := revisionOf(first)
	one := object{"key": "dC8x", "value": "b25l", "create_revision": at, "mod_revision": at, "version": "1", "lease": "0"}
	two := object{"key": "dC//", "value": "/w==", "create_revision": at, "mod_revision": at, "version": "1", "lease": lease, "lease_owner": "alice"} // as between peers: no gate stands before this plane
	limited := step("2", one)
	limited["more"] = true
	require.Equal(t, []any{limited, step("2", one, two)}, second["results"])
	require.Empty(t, p.ok(t, 200, "GET /keys?prefix=true", "")["kvs"])

	held := p.ok(t, 200, "POST /locks/db", `{"lease_id": "`+lease+`"}`)
	fenced := p.ok(t, 200, "POST /txn", `{"compare": [{"target": "HOLDS", "lock": "db", "fencing_token": `+number64(held["fencing_token"])+`}], "then": [{"put": {"key": "aw=="}}]}`)
	require.Equal(t, true, fenced["succeeded"])

	nested := p.ok(t, 200, "POST /txn", `{"then": [{"txn": {"compare": [{"key": "bg==", "target": "VERSION", "number": 1}], "else": [{"put": {"key": "bg=="}}, {"txn": {}}]}}]}`)
	within := object{"count": "0", "kvs": []any{}, "succeeded": true, "results": []any{}, "more": false}
	require.Equal(t, []any{object{"count": "0", "kvs": []any{}, "succeeded": false, "results": []any{step("1"), within}, "more": false}}, nested["results"])
}

func TestTxnRefuses(t *testing.T) {
	p := newCoordFixture(t)
	for body, want := range map[string]refusal{
		`{}`: {400, "validation_error", "then"},
		`{"compare": [{"key": "YQ==", "target": "size"}]}`: {400, "validation_error", "compare[0].target"},
		`{"compare": [{"key": "YQ==", "operator": ">="}]}`: {400, "validation_error", "compare[0].operator"},
		`{"compare": [{}]}`: {400, "validation_error", "compare[0].key"},
		`{"then": [{}]}`:    {400, "validation_error", "then[0].step"},
		`{"then": [{"put": {"key": "YQ=="}}, {"put": {"key": "YQ=="}}]}`:          {400, "validation_error", "then[1].put"},
		`{"then": [{"txn": {"else": [{"put": {}}]}}]}`:                            {400, "validation_error", "then[0].txn.else[0].key"},
		`{"then": [{"txn": {"then": [{"range": {"n": 1}}]}}]}`:                    {400, "validation_error", "then[0].txn.then[0].range.n"},
		`{"then": [{"put": {"key": "YQ==", "lease": "7"}}]}`:                      {404, "not_found", "then[0].lease"},
		`{"else": [{"range": {"key": "YQ==", "order": "size"}}]}`:                 {400, "validation_error", "else[0].range.order"},
		`{"else": [{"range": {"key": "YQ==", "descending": 1}}]}`:                 {400, "validation_error", "else[0].range.descending"},
		`{"then": [{"put": {"key": "a"}}]}`:                                       {400, "validation_error", "then[0].put.key"},
		`{"then": [{"put": {}, "delete": {}}]}`:                                   {400, "validation_error", "then[0]"},
		`{"then": [null]}`:                                                        {400, "validation_error", "then[0]"},
		`{"then": [{"range": {"key": "YQ==", "revision": 99}}]}`:                  {400, "validation_error", "then[0].revision"},
		`{"then": [{"delete": {"key": "YQ==", "range_end": "Yg==", "n": true}}]}`: {400, "validation_error", "then[0].delete.n"},
	} {
		p.refused(t, want, "POST /txn", body)
	}
	p.refused(t, refusal{413, "too_large", "body"}, "POST /txn", `{"then": [{"put": {"key": "a", "value": "`+strings.Repeat("v", maxTxnBody)+`"}}]}`)
}
