package httpapi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/internal/discovery/discoverytest"
	"github.com/blackhole/blackhole/internal/frontend/grpcapi"
	"github.com/blackhole/blackhole/pkg/fault"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// coordFixture is a served coordination plane with a client without our types.
type coordFixture struct {
	*Server
	*coordtest.Solo
	client *http.Client
	base   string
}

// newCoordFixture serves a coordination plane on a socket.
func newCoordFixture(t testing.TB, edits ...func(*coordConfig)) coordFixture {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := coordFixture{Solo: coordtest.New(coordtest.Config{}), client: &http.Client{Transport: &http.Transport{}}}
	p.base = "http://" + l.Addr().String() + "/v1/coordination"
	p.serve(t, l, edits...)
	return p
}

func (p *coordFixture) serve(t testing.TB, l net.Listener, edits ...func(*coordConfig)) {
	h := discoverytest.New(t)
	c := coordConfig{
		Config: Config{Registrar: h, Finder: h, Node: h.Node, Metrics: http.NotFoundHandler(), Guard: conforming(t)},
		Calls:  grpcapi.Config{Coordination: &grpcapi.Coordination{Service: p.Solo, Admin: p.Solo, Owner: ownerOf}},
	}
	for _, edit := range edits {
		edit(&c)
	}
	c.Coordination = coordinationOf(t, c.Calls)
	p.Server = New(c.Config)
	done := make(chan error, 1)
	go func() { done <- p.Serve(l) }()
	t.Cleanup(func() {
		p.client.CloseIdleConnections()
		p.Close()
		require.NoError(t, <-done)
	})
}

// coordConfig configures a peer with the coordination plane alone.
type coordConfig struct {
	Config
	Calls grpcapi.Config
}

// coordinationOf serves the calls of a plane until the test ends.
func coordinationOf(t testing.TB, c grpcapi.Config) *Coordination {
	s := grpcapi.New(c)
	t.Cleanup(s.Close)
	return &Coordination{Calls: s.Calls(), Reader: c.Coordination.Service}
}

// soloCoordination is a plane of one member.
func soloCoordination(t testing.TB, solo *coordtest.Solo) *Coordination {
	return coordinationOf(t, grpcapi.Config{Coordination: &grpcapi.Coordination{Service: solo, Admin: solo, Owner: ownerOf}})
}

// ownerKey is the context key of the header Owner.
type ownerKey struct{}

// ownerOf takes the owner from the context, and refuses mallory.
func ownerOf(ctx context.Context) (string, error) {
	switch name, _ := ctx.Value(ownerKey{}).(string); name {
	case "mallory":
		return "", fault.New("test.Owner", fault.Forbidden, "is not listed")
	case "":
		return "alice", nil
	default:
		return name, nil
	}
}

// reply is a received answer.
type reply struct {
	code   int
	header http.Header
	json   object // nil unless the body is an object
	text   string
}

// send makes a request, "METHOD target".
func (p coordFixture) send(t testing.TB, line, body string, edits ...func(*http.Request)) reply {
	t.Helper()
	method, target, _ := strings.Cut(line, " ")
	r, err := http.NewRequestWithContext(t.Context(), method, p.base+target, strings.NewReader(body))
	require.NoError(t, err)
	for _, edit := range edits {
		edit(r)
	}
	resp, err := p.client.Do(r)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	got := reply{code: resp.StatusCode, header: resp.Header, text: string(text)}
	if json.Unmarshal(text, &got.json) != nil {
		got.json = nil
	}
	return got
}

// ok makes a request that must succeed.
func (p coordFixture) ok(t testing.TB, code int, line, body string) object {
	t.Helper()
	got := p.send(t, line, body)
	require.Equal(t, code, got.code, "%s: %s", line, got.text)
	return got.json
}

// refused makes a request that must fail with an error of this API.
func (p coordFixture) refused(t testing.TB, want refusal, line, body string, edits ...func(*http.Request)) object {
	t.Helper()
	got := p.send(t, line, body, edits...)
	require.Equal(t, want.status, got.code, "%s %s: %s", line, body, got.text)
	require.Equal(t, want.code, got.json["error"], "%s", got.text)
	require.NotEmpty(t, got.json["message"])
	field, _ := got.json["field"].(string)
	require.Equal(t, want.field, field, "%s %s: %s", line, body, got.text)
	return got.json
}

func (p coordFixture) lease(t testing.TB, body string) string {
	t.Helper()
	return p.ok(t, 200, "POST /leases", body)["id"].(string)
}

const halfMinute = `{"ttl":30}`

func TestLeases(t *testing.T) {
	p := newCoordFixture(t)
	got := p.send(t, "POST /leases", halfMinute)
	require.Equal(t, 200, got.code)
	id := got.json["id"].(string)
	require.Equal(t, []any{"30", "30000"}, []any{got.json["ttl"], got.json["ttl_ms"]})
	header := got.json["header"].(object)
	require.IsType(t, "", header["cluster_id"])
	require.IsType(t, "", header["member_id"])
	require.Equal(t, "3", header["raft_term"])

	p.Advance(20 * time.Second)
	state := p.ok(t, 200, "GET /leases/"+id, "")["lease"].(object)
	require.Equal(t, []any{id, "30000", "10000", "alice"}, []any{state["id"], state["granted_ttl_ms"], state["remaining_ms"], state["client_id"]})
	kept := p.ok(t, 200, "PUT /leases/"+id+"/keepalive", "")
	require.Equal(t, []any{id, "30"}, []any{kept["id"], kept["ttl"]})
	p.Advance(20 * time.Second)
	p.ok(t, 200, "GET /leases/"+id, "")

	big := p.lease(t, `{"id":"7587848390234","ttl_ms":5500}`)
	require.Equal(t, "7587848390234", big)
	require.Equal(t, "5500", p.ok(t, 200, "GET /leases/"+big, "")["lease"].(object)["granted_ttl_ms"])
	list := p.ok(t, 200, "GET /leases", "")["leases"].([]any)
	require.Len(t, list, 2)
	granted := func(i int) string { return number64(list[i].(object)["granted"]) }
	require.Len(t, p.ok(t, 200, "GET /leases?after="+granted(0)+"&limit=1", "")["leases"], 1)
	require.Empty(t, p.ok(t, 200, "GET /leases?after="+granted(1), "")["leases"])

	p.ok(t, 200, "DELETE /leases/"+id, "")
	p.Advance(10 * time.Second)
	for _, gone := range []string{id, big} {
		missing := refusal{404, "not_found", "lease_id"}
		p.refused(t, missing, "GET /leases/"+gone, "")
		p.refused(t, missing, "PUT /leases/"+gone+"/keepalive", "")
		p.refused(t, missing, "DELETE /leases/"+gone, "")
	}
}

func TestLeasesRefuse(t *testing.T) {
	p := newCoordFixture(t)
	id := p.lease(t, halfMinute)
	for body, field := range map[string]string{
		``: "body", `{`: "body", `[]`: "body", `{"ttl":30}{}`: "body", `{"ttl":30,"colour":1}`: "colour",
		`{}`: "ttl_ms", `{"ttl":0}`: "ttl_ms", `{"ttl":-1}`: "ttl", `{"ttl":1.5}`: "ttl", `{"ttl":1e30}`: "ttl",
		`{"ttl":30,"ttl":30}`: "ttl", `{"ttl":30,"attempt":{"client":true}}`: "attempt.client",
		`{"ttl":30,"id":"x"}`: "id", `{"ttl":30,"id":"-1"}`: "id", `{"ttl":30,"id":"99999999999999999999"}`: "id",
	} {
		p.refused(t, invalid(field), "POST /leases", body)
	}
	p.refused(t, refusal{409, "already_exists", "id"}, "POST /leases", `{"ttl":30,"id":"`+id+`"}`)
	p.refused(t, refusal{403, "forbidden", "lease_id"}, "DELETE /leases/"+id, "", header("Owner", "bob"))
	p.refused(t, refusal{404, "not_found", "lease_id"}, "PUT /leases/"+id+"/keepalive", "", header("Owner", "bob"))
	p.refused(t, refusal{403, "forbidden", ""}, "POST /leases", halfMinute, header("Owner", "mallory"))
	for _, line := range []string{"GET /leases/x", "GET /leases/0", "DELETE /leases/9x", "PUT /leases/1.5/keepalive"} {
		p.refused(t, invalid("id"), line, "")
	}
	p.refused(t, invalid("limit"), "GET /leases?limit=x", "")
	p.refused(t, invalid("after"), "GET /leases?after=-1", "")
	p.refused(t, invalid("colour"), "GET /leases?colour=red", "")
	p.refused(t, invalid("limit"), "GET /leases?limit=1&limit=2", "")
	p.refused(t, refusal{405, "method_not_allowed", "method"}, "PUT /leases/1", "")
	p.refused(t, refusal{404, "not_found", "path"}, "GET /nothing", "")
	require.Len(t, p.ok(t, 200, "GET /leases", "")["leases"], 1, "what is refused changes nothing")
	far := p.ok(t, 200, "POST /leases", `{"ttl":9223372036854775807}`)
	require.Equal(t, strconv.FormatInt(coord.DefaultLimits().MaxTTL, 10), far["ttl_ms"])
}

// take acquires a free lock and returns its token as text.
func (p coordFixture) take(t testing.TB, name, lease string) string {
	t.Helper()
	got := p.ok(t, 200, "POST /locks/"+name, `{"lease_id":"`+lease+`"}`)
	require.Equal(t, true, got["acquired"])
	return number64(got["fencing_token"])
}

func number64(v any) string {
	if text, ok := v.(string); ok {
		return text
	}
	text, _ := json.Marshal(v)
	return string(text)
}

func TestLocks(t *testing.T) {
	p := newCoordFixture(t)
	one, two := p.lease(t, halfMinute), p.lease(t, halfMinute)
	got := p.ok(t, 200, "POST /locks/db", `{"lease_id":"`+one+`","metadata":"bWlncmF0aW9u"}`)
	require.Equal(t, []any{coord.LockKey("db", 1), "2", true, 1.0}, []any{got["key"], got["fencing_token"], got["acquired"], got["count"]})
	require.Equal(t, "2", got["header"].(object)["revision"])
	missed := p.ok(t, 200, "POST /locks/db", `{"lease_id":"`+two+`"}`)
	require.Equal(t, false, missed["acquired"])

	state := p.ok(t, 200, "GET /locks/db", "")["lock"].(object)
	require.Equal(t, "db", state["name"])
	require.Empty(t, state["waiting"])
	claim := state["holding"].([]any)[0].(object)
	require.Equal(t, []any{"alice", "2"}, []any{claim["holder_id"], claim["fencing_token"]})
	require.Equal(t, []any{one, "bWlncmF0aW9u", "0", 1.0}, []any{claim["lease_id"], claim["metadata"], claim["age_ms"], claim["count"]})

	unlock := "DELETE /locks/db?lease_id=" + one + "&fencing_token="
	for _, line := range []string{unlock + "99", "DELETE /locks/other?lease_id=" + one + "&fencing_token=2", "DELETE /locks/db?lease_id=" + two + "&fencing_token=2"} {
		p.refused(t, refusal{409, "conflict", "fencing_token"}, line, "")
	}
	p.refused(t, refusal{403, "forbidden", "lease_id"}, unlock+"2", "", header("Owner", "bob"))
	p.refused(t, invalid("fencing_token"), "DELETE /locks/db?lease_id="+one, "") // not 0
	p.refused(t, invalid("lease_id"), "DELETE /locks/db?fencing_token=2", "")
	p.refused(t, invalid("lease_id"), "POST /locks/db", "{}")
	p.ok(t, 200, unlock+"2", "")
	p.refused(t, refusal{409, "conflict", "fencing_token"}, unlock+"2", "")
	p.refused(t, refusal{404, "not_found", "name"}, "GET /locks/db", "")
	require.Empty(t, p.ok(t, 200, "GET /locks", "")["locks"])
}

func TestLockNamesAreTakenToTheLetter(t *testing.T) {
	p := newCoordFixture(t)
	lease := p.lease(t, halfMinute)
	names := []string{"a/b/c", "/locks/db", "a//b", "a/", "a/../b", ".", "..", "ä 100%?#&+", "a%2Fb"}
	for _, name := range names {
		segment := strings.ReplaceAll(url.PathEscape(name), ".", "%2E") // a segment of dots would be removed
		p.take(t, segment, lease)
		require.Equal(t, name, p.ok(t, 200, "GET /locks/"+segment, "")["lock"].(object)["name"])
	}
	token := p.ok(t, 200, "GET /locks/%2Flocks%2Fdb", "")["lock"].(object)["holding"].([]any)[0].(object)["fencing_token"]
	p.ok(t, 200, "DELETE /locks/%2Flocks%2Fdb?lease_id="+lease+"&fencing_token="+number64(token), "")
	p.refused(t, refusal{404, "not_found", "name"}, "GET /locks/%2Flocks%2Fdb", "")
	p.take(t, "a%2Fb", lease)
	require.Len(t, p.ok(t, 200, "GET /locks", "")["locks"], len(names))
	require.Len(t, p.ok(t, 200, "GET /locks?prefix=a/&limit=2", "")["locks"], 2)
	list := p.ok(t, 200, "GET /locks?prefix=a/&after="+url.QueryEscape("a/b"), "")["locks"].([]any)
	require.Equal(t, "a/b/c", list[0].(object)["name"])
}

func TestLocksRefuse(t *testing.T) {
	p := newCoordFixture(t)
	lease := p.lease(t, halfMinute)
	with := `{"lease_id":"` + lease + `",`
	for body, field := range map[string]string{
		``: "body", `x`: "body", `{"lease_id":true}`: "lease_id",
		with + `"timeout_ms":-2}`: "timeout_ms", with + `"timeout_ms":"x"}`: "timeout_ms", with + `"try":true}`: "try",
		with + `"mode":"SHARE_MODE_SHARED","permits":2}`: "permits", with + `"permits":-1}`: "permits", with + `"mode":"shared"}`: "mode", with + `"metadata":7}`: "metadata",
		with + `"colour":1}`: "colour",
	} {
		p.refused(t, invalid(field), "POST /locks/db", body)
	}
	for _, path := range []string{"/locks/", "/locks/a/b", "/locks//a", "/locks/a/../b", "/locks/./a"} {
		p.refused(t, noRoute(), "POST "+path, with+`"timeout_ms":0}`)
	}
	p.refused(t, refusal{413, "too_large", "name"}, "POST /locks/"+strings.Repeat("x", 2000), with+`"timeout_ms":0}`)
	p.refused(t, refusal{413, "too_large", "body"}, "POST /locks/db", with+`"metadata":"`+strings.Repeat("x", maxBody)+`"}`)
	p.refused(t, refusal{404, "not_found", "lease_id"}, "POST /locks/db", `{"lease_id":"99"}`)
	p.refused(t, refusal{403, "forbidden", "lease_id"}, "POST /locks/db", with+`"timeout_ms":0}`, header("Owner", "bob"))
	p.refused(t, refusal{403, "forbidden", ""}, "GET /locks/db", "", header("Owner", "mallory"))
	p.take(t, "db", lease)
	p.refused(t, refusal{409, "conflict", "mode"}, "POST /locks/db", with+`"mode":"SHARE_MODE_SHARED"}`)
	for query, field := range map[string]string{
		"?lease_id=x&fencing_token=2": "lease_id",
		"?lease_id=1&fencing_token=y": "fencing_token", "?lease_id=1&fencing_token=1&x=1": "x",
	} {
		p.refused(t, invalid(field), "DELETE /locks/db"+query, "")
	}
	got := p.send(t, "PUT /locks/db", "")
	require.Equal(t, []any{405, "DELETE, GET, HEAD, POST"}, []any{got.code, got.header.Get("Allow")})
	require.Equal(t, 200, p.send(t, "HEAD /locks/db", "").code)
}

func TestLockModesAndMetadata(t *testing.T) {
	p := newCoordFixture(t)
	var leases [3]string
	for i := range leases {
		leases[i] = p.lease(t, halfMinute)
	}
	for i, want := range []bool{true, true, false} {
		got := p.ok(t, 200, "POST /locks/pool", `{"lease_id":"`+leases[i]+`","mode":"SHARE_MODE_PERMIT","permits":2}`)
		require.Equal(t, want, got["acquired"])
		got = p.ok(t, 200, "POST /locks/read", `{"lease_id":"`+leases[i]+`","mode":"SHARE_MODE_SHARED","metadata":"/w=="}`)
		require.Equal(t, true, got["acquired"])
	}
	readers := p.ok(t, 200, "GET /locks/read", "")["lock"].(object)["holding"].([]any)
	require.Len(t, readers, 3)
	require.Equal(t, []any{"SHARE_MODE_SHARED", "/w=="}, []any{readers[2].(object)["mode"], readers[2].(object)["metadata"]})
}

// waiting waits until n claims wait for the lock db.
func (p coordFixture) waiting(t testing.TB, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		locks, _, err := ops.Of(p).Locks(t.Context(), ops.LockQuery{Name: "db"})
		return err == nil && len(locks[0].Waiting) == n
	}, time.Minute, time.Millisecond)
}

// later makes a request whose answer is taken later.
func (p coordFixture) later(t testing.TB, line, body string) <-chan reply {
	answer := make(chan reply, 1)
	go func() { answer <- p.send(t, line, body) }()
	return answer
}

func TestLockWaits(t *testing.T) {
	p := newCoordFixture(t)
	one, two, three := p.lease(t, halfMinute), p.lease(t, halfMinute), p.lease(t, halfMinute)
	token := p.take(t, "db", one)
	first := p.later(t, "POST /locks/db", `{"lease_id":"`+two+`","timeout_ms":-1}`)
	p.waiting(t, 1)
	second := p.later(t, "POST /locks/db", `{"lease_id":"`+three+`","timeout_ms":2000}`)
	p.waiting(t, 2)
	p.Advance(time.Second)
	queue := p.ok(t, 200, "GET /locks/db", "")["lock"].(object)["waiting"].([]any)
	require.Equal(t, []any{two, "1000"}, []any{queue[0].(object)["lease_id"], queue[0].(object)["age_ms"]})
	waits := number64(queue[0].(object)["fencing_token"])
	p.refused(t, refusal{409, "conflict", "fencing_token"}, "DELETE /locks/db?lease_id="+two+"&fencing_token="+waits, "")
	p.Advance(time.Second)
	late := <-second
	require.Equal(t, []any{200, false}, []any{late.code, late.json["acquired"]})
	p.ok(t, 200, "DELETE /locks/db?lease_id="+one+"&fencing_token="+token, "")
	got := <-first
	require.Equal(t, []any{200, true, waits}, []any{got.code, got.json["acquired"], number64(got.json["fencing_token"])})
}

func TestLockWaitsAreBounded(t *testing.T) {
	p := newCoordFixture(t, func(c *coordConfig) { c.Calls.Places.MaxWaits = 1 })
	p.take(t, "db", p.lease(t, halfMinute))
	two := p.lease(t, halfMinute)
	waits := p.later(t, "POST /locks/db", `{"lease_id":"`+two+`","timeout_ms":-1}`)
	p.waiting(t, 1)
	p.refused(t, refusal{429, "pool_exhausted", "pool.waits"}, "POST /locks/other", `{"lease_id":"`+two+`","timeout_ms":-1}`)
	p.take(t, "other", two)
	p.Close()
	got := <-waits
	require.Equal(t, []any{503, "service_unavailable"}, []any{got.code, got.json["error"]})
	p.waiting(t, 0)
}

// TestWhoHangsUpLosesHisPlace: the server notices.
func TestWhoHangsUpLosesHisPlace(t *testing.T) {
	p := newCoordFixture(t)
	p.take(t, "db", p.lease(t, halfMinute))
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "POST", p.base+"/locks/db", strings.NewReader(`{"lease_id":"`+p.lease(t, halfMinute)+`","timeout_ms":-1}`))
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() {
		_, err := p.client.Do(r)
		done <- err
	}()
	p.waiting(t, 1)
	cancel()
	require.Error(t, <-done)
	p.waiting(t, 0)
}

func TestNoQuorum(t *testing.T) {
	p := newCoordFixture(t)
	lease := p.lease(t, halfMinute)
	token := p.take(t, "db", lease)
	waits := p.later(t, "POST /locks/db", `{"lease_id":"`+p.lease(t, halfMinute)+`","timeout_ms":-1}`)
	p.waiting(t, 1)
	const missing = "2 of 3 voters cannot be reached"
	p.Halt(missing)
	got := <-waits
	require.Equal(t, []any{503, "no_quorum", missing}, []any{got.code, got.json["error"], got.json["missing"]})
	for line, body := range map[string]string{
		"POST /leases": halfMinute, "GET /leases": "", "GET /leases/" + lease: "", "DELETE /leases/" + lease: "",
		"PUT /leases/" + lease + "/keepalive": "", "POST /locks/db": `{"lease_id":"` + lease + `","timeout_ms":60000}`,
		"GET /locks/db": "", "GET /locks": "", "DELETE /locks/db?lease_id=" + lease + "&fencing_token=" + token: "",
		"GET /watch?prefix=true": "",
	} {
		body := p.refused(t, refusal{503, "no_quorum", ""}, line, body)
		require.Equal(t, missing, body["missing"], line)
	}
	require.Equal(t, missing, p.ok(t, 503, "GET /group", "")["missing"])
	p.Resume()
	p.ok(t, 200, "GET /group", "")
}

func TestGroup(t *testing.T) {
	p := newCoordFixture(t)
	p.take(t, "db", p.lease(t, halfMinute))
	g := p.ok(t, 200, "GET /group", "")
	require.Equal(t, []any{coordtest.GroupID, "member", "3", coordtest.Peer, "2", "1"}, []any{
		g["group_id"], g["phase"], g["term"], g["leader"], g["revision"], g["locks"],
	})
	voter := g["voters"].([]any)[0].(object)
	require.Equal(t, []any{coordtest.Peer, "7", true}, []any{voter["peer_id"], voter["member_id"], voter["active"]})
	require.Equal(t, []any{}, g["learners"])
}

// hanging is a plane that answers only when its context ends.
type hanging struct{ *coordtest.Solo }

func (hanging) Execute(ctx context.Context, _ *coordv1.Command) (*coordv1.Result, error) {
	<-ctx.Done()
	return nil, fault.Wrap("test.Execute", ctx.Err())
}

// openStream opens a watch on a socket.
func (p coordFixture) openStream(t *testing.T, query string, edits ...func(*http.Request)) *events {
	return watch(t, p.client, p.base+"/watch"+query, edits...)
}

func (p coordFixture) put(t testing.TB, key, value string) {
	t.Helper()
	_, _, err := ops.Of(p).Do(t.Context(), ops.Command{Owner: "alice", Op: &ops.Txn{Then: []ops.Step{{Put: &ops.Put{Key: key, Value: []byte(value)}}}}})
	require.NoError(t, err)
}

// expectKeys reads an event of a kind with an id about keys.
func (e *events) expectKeys(kind, id string, keys ...string) object {
	e.t.Helper()
	ev, ok := e.next()
	require.True(e.t, ok, "the stream ended: %v", e.lines.Err())
	require.Equal(e.t, []any{kind, id}, []any{ev.event, ev.id})
	var got []string
	list, _ := ev.data["events"].([]any)
	for _, change := range list {
		key, err := base64.StdEncoding.DecodeString(change.(object)["kv"].(object)["key"].(string))
		require.NoError(e.t, err)
		got = append(got, string(key))
	}
	require.Equal(e.t, keys, got)
	return ev.data
}

func TestKeyWatch(t *testing.T) {
	p := newCoordFixture(t)
	p.put(t, "svc/a", "1")
	w := p.openStream(t, "?key=svc/&prefix=true&prev_kv=true")
	require.Equal(t, "text/event-stream", w.header.Get("Content-Type"))
	require.Equal(t, "no-store", w.header.Get("Cache-Control"))
	created := w.expectKeys("created", "2")
	require.Equal(t, "3", created["next_revision"])
	require.IsType(t, "", created["header"].(object)["cluster_id"])
	p.put(t, "other", "")
	p.put(t, "svc/a", "2")
	change := w.expectKeys("events", "4", "svc/a")["events"].([]any)[0].(object)
	require.Equal(t, "PUT", change["type"])
	require.Equal(t, object{"key": "c3ZjL2E=", "value": "Mg==", "create_revision": "2", "mod_revision": "4", "version": "2", "lease": "0"}, change["kv"])
	require.Equal(t, "MQ==", change["prev_kv"].(object)["value"])
	all := coord.Under("svc/")
	_, _, err := ops.Of(p).Do(t.Context(), ops.Command{Owner: "alice", Op: &ops.Txn{Then: []ops.Step{{Delete: &all}}}})
	require.NoError(t, err)
	gone := w.expectKeys("events", "5", "svc/a")["events"].([]any)[0].(object)
	require.Equal(t, []any{"DELETE", "c3ZjL2E=", "5"}, []any{gone["type"], gone["kv"].(object)["key"], gone["kv"].(object)["mod_revision"]})
	p.put(t, "svc/\xff", "\xfe")
	raw := w.expectKeys("events", "6", "svc/\xff")["events"].([]any)[0].(object)["kv"].(object)
	require.Equal(t, "/g==", raw["value"])
	defer p.pass(coordtest.Progress)()
	w.expectKeys("progress", "6")
}

// pass lets time pass, again and again until stop is called: a watch begins to measure it when
// its last event is written, which a client does not see.
func (p coordFixture) pass(d time.Duration) (stop func()) {
	ended, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		ticks := time.NewTicker(time.Millisecond)
		defer ticks.Stop()
		for {
			select {
			case <-ticks.C:
				p.Advance(d)
			case <-ended:
				return
			}
		}
	}()
	return func() { close(ended); <-done }
}

func TestKeyWatchResumes(t *testing.T) {
	p := newCoordFixture(t)
	for _, key := range []string{"a", "b", "a"} {
		p.put(t, key, "")
	}
	w := p.openStream(t, "?key=a&start_revision=2")
	w.expectKeys("created", "1")
	w.expectKeys("events", "4", "a", "a")
	w.close()
	p.put(t, "a", "")
	w = p.openStream(t, "?key=a&start_revision=1", header("Last-Event-ID", "4"))
	w.expectKeys("created", "4")
	w.expectKeys("events", "5", "a")

	_, _, err := ops.Of(p).Do(t.Context(), ops.Command{Op: &ops.Compact{Revision: 3}})
	require.NoError(t, err)
	for _, lost := range []*events{
		p.openStream(t, "?key=a&start_revision=1"), p.openStream(t, "?key=a", header("Last-Event-ID", "1")),
	} {
		data := lost.expectKeys("compacted", "5")
		require.Equal(t, []any{"3", "5"}, []any{data["compact_revision"], data["header"].(object)["revision"]})
		_, more := lost.next()
		require.False(t, more)
	}
	p.openStream(t, "?key=a", header("Last-Event-ID", "5")).expectKeys("created", "5")
}

func TestKeyWatchRefuses(t *testing.T) {
	p := newCoordFixture(t, func(c *coordConfig) { c.Calls.Places.MaxWatches = 1 })
	for query, field := range map[string]string{
		"": "key", "?prefix=false": "key", "?key=a&prefix=yes": "prefix", "?key=a&start_revision=-1": "start_revision",
		"?key=a&start_revision=x": "start_revision", "?key=a&prev_kv=1": "prev_kv", "?key=a&colour=red": "colour", "?key=a&key=b": "key",
	} {
		p.refused(t, invalid(field), "GET /watch"+query, "")
	}
	p.refused(t, invalid("Last-Event-ID"), "GET /watch?key=a", "", header("Last-Event-ID", "x"))
	require.Equal(t, 200, p.send(t, "HEAD /watch?key=a", "").code)
	w := p.openStream(t, "?key=a")
	w.expectKeys("created", "1")
	p.refused(t, refusal{429, "pool_exhausted", "pool.watches"}, "GET /watch?key=a", "")
	p.Close()
	_, more := w.next()
	require.False(t, more)
	require.NoError(t, w.lines.Err(), "the stream ends properly")
}
