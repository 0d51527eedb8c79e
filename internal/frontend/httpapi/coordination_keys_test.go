package httpapi

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/coord"
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
func revisionOf(o object) float64 { return o["header"].(object)["revision"].(float64) }

func TestKeys(t *testing.T) {
	p := newCoordFixture(t)
	p.refused(t, refusal{404, "not_found", "key"}, "GET /keys/app%2Fa", "")
	first := revisionOf(p.putValue(t, "/keys/app%2Fa", "one"))
	p.putValue(t, "/keys/app%2Fb", "\xff\x00")
	p.putValue(t, "/keys/other", "")
	second := revisionOf(p.putValue(t, "/keys/app%2Fa", "two"))
	require.Greater(t, second, first)

	kv := p.ok(t, 200, "GET /keys/app%2Fa", "")["kv"].(object)
	require.Equal(t, object{"key": "app/a", "value": "two", "create_revision": first, "mod_revision": second, "version": 2.0}, kv)
	old := p.ok(t, 200, "GET /keys/app%2Fa?revision="+number64(first), "")["kv"].(object)
	require.Equal(t, "one", old["value"])

	list := p.ok(t, 200, "GET /keys?prefix=app%2F", "")
	require.Len(t, list["keys"], 2)
	require.Equal(t, "/wA=", list["keys"].([]any)[1].(object)["value_base64"])
	page := p.ok(t, 200, "GET /keys?limit=1", "")
	require.Equal(t, "app/b", page["next"])
	rest := p.ok(t, 200, "GET /keys?from=app%2Fb", "")
	require.Len(t, rest["keys"], 2)

	require.Equal(t, 2.0, p.ok(t, 200, "DELETE /keys/app%2F?prefix=true", "")["changed"])
	require.Equal(t, 0.0, p.ok(t, 200, "DELETE /keys/app%2Fa", "")["changed"])
	require.Len(t, p.ok(t, 200, "GET /keys", "")["keys"], 1)
}

// TestKeysCompare: if_revision makes a write conditional.
func TestKeysCompare(t *testing.T) {
	p := newCoordFixture(t)
	created := revisionOf(p.putValue(t, "/keys/k?if_revision=0", "a"))
	p.refused(t, refusal{409, "conflict", "if_revision"}, "PUT /keys/k?if_revision=0", "b", octets)
	changed := revisionOf(p.putValue(t, "/keys/k?if_revision="+number64(created), "b"))
	p.refused(t, refusal{409, "conflict", "if_revision"}, "DELETE /keys/k?if_revision="+number64(created), "")
	p.ok(t, 200, "DELETE /keys/k?if_revision="+number64(changed), "")
}

func TestKeysWithLease(t *testing.T) {
	p := newCoordFixture(t)
	lease := p.lease(t, halfMinute)
	p.putValue(t, "/keys/k?lease_id="+lease, "a")
	require.Equal(t, lease, p.ok(t, 200, "GET /keys/k", "")["kv"].(object)["lease_id"])
	p.ok(t, 204, "DELETE /leases/"+lease, "")
	p.refused(t, refusal{404, "not_found", "key"}, "GET /keys/k", "")
}

func TestKeysRefuse(t *testing.T) {
	p := newCoordFixture(t)
	for line, want := range map[string]refusal{
		"GET /keys/k?revision=x":                    {400, "validation_error", "revision"},
		"GET /keys/k?revision=999":                  {400, "validation_error", "revision"},
		"GET /keys?limit=-1":                        {400, "validation_error", "limit"},
		"GET /keys?prefix=b&from=a":                 {400, "validation_error", "from"},
		"GET /keys?what=1":                          {400, "validation_error", "what"},
		"GET /keys?order=size":                      {400, "validation_error", "order"},
		"GET /keys?descending=maybe":                {400, "validation_error", "descending"},
		"GET /keys?order=value&from=absent":         {400, "validation_error", "from"},
		"PUT /keys/k?if_revision=-1":                {400, "validation_error", "if_revision"},
		"PUT /keys/k?lease_id=x":                    {400, "validation_error", "lease_id"},
		"PUT /keys/k?lease_id=7":                    {404, "not_found", "lease_id"},
		"PUT /keys/" + strings.Repeat("k", 2000):    {413, "too_large", "key"},
		"DELETE /keys/k?prefix=maybe":               {400, "validation_error", "prefix"},
		"DELETE /keys/k?prefix=true&if_revision=12": {400, "validation_error", "if_revision"},
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
		page := p.ok(t, 200, "GET /keys?prefix=k&from="+from, "")
		seen += len(page["keys"].([]any))
		from, _ = page["next"].(string)
	}
	require.Equal(t, []int{keys, 3}, []int{seen, pages})
}

// TestKeysInOrder: pages in another order, names without values, and a count.
func TestKeysInOrder(t *testing.T) {
	p := newCoordFixture(t)
	for _, key := range []string{"k1", "k2", "k%FF", "other"} {
		p.putValue(t, "/keys/"+key, "v")
	}
	p.putValue(t, "/keys/k1", "last")
	page := p.ok(t, 200, "GET /keys?prefix=k&order=mod_revision&limit=1", "")
	require.Equal(t, []any{"k2", "a/8="}, []any{page["keys"].([]any)[0].(object)["key"], page["next_base64"]})
	rest := p.ok(t, 200, "GET /keys?prefix=k&order=mod_revision&from=k%FF&keys_only=true&revision="+number64(page["revision"].(float64)), "")
	require.Len(t, rest["keys"], 2)
	require.Equal(t, "k1", rest["keys"].([]any)[1].(object)["key"])
	require.NotContains(t, rest["keys"].([]any)[1], "value")
	require.Equal(t, "k1", p.ok(t, 200, "GET /keys?order=version&descending=true&limit=1", "")["keys"].([]any)[0].(object)["key"])
	require.Equal(t, []any{3.0, []any{}}, []any{p.ok(t, 200, "GET /keys?prefix=k&count_only=true", "")["count"], p.ok(t, 200, "GET /keys?count_only=true", "")["keys"]})
	require.Equal(t, 0.0, p.ok(t, 200, "GET /keys?prefix=none&count_only=true", "")["count"])
}

// TestTxn: both branches, with the result of each step.
func TestTxn(t *testing.T) {
	p := newCoordFixture(t)
	lease := p.lease(t, halfMinute)
	txn := `{"compare": [{"key": "t/1", "target": "version"}, {"key": "t/", "prefix": true, "target": "lease"}],
		"then": [{"put": {"key": "t/1", "value": "one"}}, {"put": {"key_base64": "dC//", "value_base64": "/w==", "lease_id": "` + lease + `"}}],
		"else": [{"range": {"key": "t/", "prefix": true, "order": "mod_revision", "descending": true, "limit": 1}}, {"delete": {"key": "t/", "range_end": "t0", "prev_kv": true}}]}`
	first := p.ok(t, 200, "POST /txn", txn)
	require.Equal(t, []any{true, 2.0}, []any{first["succeeded"], first["changed"]})
	require.Equal(t, []any{object{"count": 1.0}, object{"count": 1.0}}, first["results"])

	second := p.ok(t, 200, "POST /txn", txn)
	require.Equal(t, []any{false, 1.0, "version is 1, not 0", 2.0}, []any{second["succeeded"], second["failed"], second["reason"], second["changed"]})
	at := revisionOf(first)
	one := object{"key": "t/1", "value": "one", "create_revision": at, "mod_revision": at, "version": 1.0}
	two := object{"key": "", "key_base64": "dC//", "value_base64": "/w==", "create_revision": at, "mod_revision": at, "version": 1.0, "lease_id": lease}
	require.Equal(t, []any{object{"count": 2.0, "kvs": []any{one}}, object{"count": 2.0, "kvs": []any{one, two}}}, second["results"])
	require.Empty(t, p.ok(t, 200, "GET /keys", "")["keys"])

	held := p.ok(t, 200, "POST /locks/db", `{"lease_id": "`+lease+`"}`)
	token := number64(held["fencing_token"].(float64))
	fenced := p.ok(t, 200, "POST /txn", `{"compare": [{"target": "fencing_token", "lock": "db", "fencing_token": `+token+`}], "then": [{"put": {"key": "k"}}]}`)
	require.Equal(t, true, fenced["succeeded"])
}

func TestTxnRefuses(t *testing.T) {
	p := newCoordFixture(t)
	for body, want := range map[string]refusal{
		`{}`: {400, "validation_error", "then"},
		`{"compare": [{"key": "a", "target": "size"}]}`:                     {400, "validation_error", "compare[0].target"},
		`{"compare": [{"key": "a", "operator": ">="}]}`:                     {400, "validation_error", "compare[0].operator"},
		`{"compare": [{}]}`:                                                 {400, "validation_error", "compare[0].key"},
		`{"then": [{}]}`:                                                    {400, "validation_error", "then[0]"},
		`{"then": [{"put": {"key": "a"}}, {"put": {"key": "a"}}]}`:          {400, "validation_error", "then"},
		`{"then": [{"put": {"key": "a", "lease_id": "7"}}]}`:                {404, "not_found", "then[0].lease"},
		`{"else": [{"range": {"key": "a", "order": "size"}}]}`:              {400, "validation_error", "else[0].order"},
		`{"else": [{"range": {"key": "a", "prefix": 1}}]}`:                  {400, "validation_error", "else[0].range.prefix"},
		`{"then": [{"range": {"key": "a", "revision": 99}}]}`:               {400, "validation_error", "then[0].revision"},
		`{"then": [{"delete": {"key": "a", "range_end": "b", "n": true}}]}`: {400, "validation_error", "then[0].delete.n"},
	} {
		p.refused(t, want, "POST /txn", body)
	}
	p.refused(t, refusal{413, "too_large", "body"}, "POST /txn", `{"then": [{"put": {"key": "a", "value": "`+strings.Repeat("v", maxTxnBody)+`"}}]}`)
}
