package consulapi_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/internal/frontend/authority"
	"github.com/blackhole/blackhole/internal/frontend/consulapi"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// front is a server over a group in this process, in the time of a bubble.
type front struct {
	t      *testing.T
	solo   *coordtest.Solo
	mux    *http.ServeMux
	server *consulapi.Server
	as     access.Principal // of the requests
	from   string           // where they come from; "": this host
	stop   func()           // ends its periodic work
}

// play runs a test in a bubble.
func play(t *testing.T, test func(t *testing.T, f *front)) {
	synctest.Test(t, func(t *testing.T) { test(t, start(t, nil)) })
}

func start(t *testing.T, solo *coordtest.Solo) *front {
	return startWith(t, solo, func(*consulapi.Config) {})
}

// startWith makes a server with changed settings, over a new group without one.
func startWith(t *testing.T, solo *coordtest.Solo, change func(*consulapi.Config)) *front {
	if solo == nil {
		solo = newSolo()
	}
	gate := authority.New(authority.Config{Service: solo, Peer: coordtest.Peer, Front: consulapi.Front, Open: true})
	c := consulapi.Config{Service: gate, Owner: gate.Owner, Plane: solo, Group: solo.Group, Led: func() bool { return true }, Peer: coordtest.Peer, Prefix: "consul/"}
	change(&c)
	s, err := consulapi.New(c)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var run sync.WaitGroup
	run.Go(func() { s.Run(ctx) })
	stop := func() { cancel(); run.Wait() }
	t.Cleanup(stop)
	f := &front{t: t, solo: solo, mux: http.NewServeMux(), server: s, stop: stop}
	for _, r := range s.Routes() {
		f.mux.Handle(r.Pattern, r.Handler)
	}
	synctest.Wait() // the server knows the sessions of its node
	return f
}

func newSolo() *coordtest.Solo {
	return coordtest.New(coordtest.Config{Now: time.Now, After: func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }})
}

// answer is an answer with its index.
type answer struct {
	code  int
	index int64
	body  string
	led   string // X-Consul-KnownLeader
}

func (f *front) call(method, path, body string) answer {
	f.t.Helper()
	r := httptest.NewRequestWithContext(access.With(f.t.Context(), f.as), method, path, strings.NewReader(body))
	r.RemoteAddr = cmp.Or(f.from, "127.0.0.1:1")
	w := httptest.NewRecorder()
	f.mux.ServeHTTP(w, r)
	index, err := strconv.ParseInt(w.Header().Get("X-Consul-Index"), 10, 64)
	require.NoError(f.t, err, "%s %s: %s", method, path, w.Body)
	require.Positive(f.t, index, "an index is never 0")
	require.Equal(f.t, "0", w.Header().Get("X-Consul-LastContact"))
	return answer{w.Code, index, strings.TrimSpace(w.Body.String()), w.Header().Get("X-Consul-KnownLeader")}
}

func (f *front) get(path string) answer        { f.t.Helper(); return f.call("GET", "/v1/"+path, "") }
func (f *front) put(path, body string) answer  { f.t.Helper(); return f.call("PUT", "/v1/"+path, body) }
func (f *front) delete(path string) answer     { f.t.Helper(); return f.call("DELETE", "/v1/"+path, "") }
func (f *front) yes(method, path, body string) { f.t.Helper(); f.says("true", method, path, body) }
func (f *front) no(method, path, body string)  { f.t.Helper(); f.says("false", method, path, body) }

func (f *front) says(want, method, path, body string) {
	f.t.Helper()
	require.Equal(f.t, want, f.call(method, "/v1/"+path, body).body, "%s %s", method, path)
}

// pair is an entry as clients read it.
type pair struct {
	LockIndex, Flags         uint64
	Key, Session             string
	Value                    []byte
	CreateIndex, ModifyIndex int64
}

func (f *front) pairs(path string) []pair {
	f.t.Helper()
	return read[[]pair](f.t, f.get(path))
}

// key returns one entry, which must exist.
func (f *front) key(key string) pair {
	f.t.Helper()
	a := f.get("kv/" + key)
	p := read[[]pair](f.t, a)[0]
	require.Equal(f.t, p.ModifyIndex, a.index, "the index of a key is its own")
	return p
}

func read[T any](t *testing.T, a answer) (v T) {
	t.Helper()
	require.Equal(t, http.StatusOK, a.code, a.body)
	require.NoError(t, json.Unmarshal([]byte(a.body), &v), a.body)
	return v
}

func (f *front) session(body string) string {
	f.t.Helper()
	return read[struct{ ID string }](f.t, f.put("session/create", body)).ID
}

// other puts a key of the group that is no client's.
func (f *front) other(key string) {
	f.t.Helper()
	_, err := f.solo.Execute(f.t.Context(), coord.CommandOf("@x", &apiv1.TxnRequest{Then: []*apiv1.TxnStep{coord.PutStep(key, nil, 0)}}))
	require.NoError(f.t, err)
}

func TestKeys(t *testing.T) {
	play(t, func(t *testing.T, f *front) {
		f.other("consul")
		f.other("consul0")
		require.Equal(t, http.StatusNotFound, f.get("kv/a").code)
		f.yes("PUT", "kv/a", "1")
		f.yes("PUT", "kv/a%2Fb?flags=18446744073709551615", "2")
		f.yes("PUT", "kv/a/c/d", "")
		f.yes("PUT", "kv/ab", "4")
		p := f.key("a/b")
		require.Equal(t, pair{Key: "a/b", Flags: 1<<64 - 1, Value: []byte("2"), CreateIndex: p.CreateIndex, ModifyIndex: p.CreateIndex}, p)
		require.Contains(t, f.get("kv/a/c/d").body, `"Value":null`)
		require.Equal(t, "1", f.get("kv/a?raw").body)
		require.Len(t, f.pairs("kv/?recurse"), 4)
		require.Len(t, f.pairs("kv/a/?recurse"), 2)
		require.Equal(t, `["a","a/b","a/c/d","ab"]`, f.get("kv/?keys").body)
		require.Equal(t, `["a/b","a/c/"]`, f.get("kv/a/?keys&separator=/").body)
		require.Equal(t, `["a","a/","ab"]`, f.get("kv/?keys&separator=/").body)
		f.yes("PUT", "kv/a/b", "3")
		require.Zero(t, f.key("a/b").Flags, "a put without flags has the flags 0")
		require.Equal(t, p.CreateIndex, f.key("a/b").CreateIndex)
		f.yes("DELETE", "kv/a/b", "")
		require.Equal(t, http.StatusNotFound, f.get("kv/a/b").code)
		f.yes("DELETE", "kv/a?recurse", "")
		require.Equal(t, http.StatusNotFound, f.get("kv/?recurse").code)
		kvs, err := coord.Range(t.Context(), f.solo, &apiv1.RangeRequest{Key: []byte("consul"), Prefix: true})
		require.NoError(t, err)
		require.Len(t, kvs.GetKvs(), 2, "what belongs to others stays, and no mark of a key")
	})
}

func TestRefusedRequests(t *testing.T) {
	play(t, func(t *testing.T, f *front) {
		f.yes("PUT", "kv/a", "1")
		for _, c := range []struct {
			method, path, body string
			code               int
			text               string
		}{
			{"GET", "kv/", "", 400, "Missing key name"},
			{"PUT", "kv/", "", 400, "Missing key name"},
			{"PUT", "kv/a%00b", "", 400, "zero byte"},
			{"PUT", "kv/a?cas=0&acquire=x", "", 400, "Conflicting flags: cas & acquire"},
			{"DELETE", "kv/a?cas=1&recurse", "", 400, "Conflicting flags: cas & recurse"},
			{"PUT", "kv/a?flags=-1", "", 400, "flags"},
			{"PUT", "kv/a?cas=x", "", 400, "cas"},
			{"PUT", "kv/a?acquire=x", "", 500, "invalid session"},
			{"PUT", "kv/a?acquire=40000000-0000-0002-8000-000000003a98", "", 500, "invalid session"},
			{"PUT", "kv/a", strings.Repeat("x", 512<<10+1), 413, "too large"},
			{"GET", "kv/a?filter=Key", "", 400, "filter is not supported"},
			{"GET", "kv/a?index=x", "", 400, "index"},
			{"GET", "kv/a?wait=x", "", 400, "wait"},
			{"GET", "kv/a?dc=other", "", 500, "No path to datacenter"},
			{"GET", "kv/a?ns=other", "", 400, "ns must be default"},
			{"GET", "query?passing", "", 404, "does not have this path"},
			{"POST", "kv/a", "", 405, "method POST not allowed"},
			{"GET", "session/create", "", 405, "method GET not allowed"},
			{"PUT", "session/create", `{"TTL":"1s"}`, 400, "TTL"},
			{"PUT", "session/create", `{"TTL":"24h1s"}`, 400, "TTL"},
			{"PUT", "session/create", `{"Behavior":"x"}`, 400, "Behavior"},
			{"PUT", "session/create", `{"LockDelay":"-1s"}`, 400, "duration"},
			{"PUT", "session/create", `{"LockDelay":"soon"}`, 400, "duration"},
			{"PUT", "session/create", `{"Checks":["web"]}`, 400, "Checks"},
			{"PUT", "session/create", `{"ServiceChecks":[{"ID":"a"}]}`, 400, "ServiceChecks"},
			{"PUT", "session/create", `{"Node":"other"}`, 400, "Node"},
			{"PUT", "session/create", `{"Name":1}`, 400, "Name must not be"},
			{"PUT", "session/create", `{"Name":"` + strings.Repeat("x", 129) + `"}`, 400, "Name"},
			{"PUT", "session/renew/x", "", 404, "Session id 'x' not found"},
			{"PUT", "txn", `[{"Service":{}}]`, 400, "no operation of KV"},
			{"PUT", "txn", `[{"KV":{"Verb":"x","Key":"a"}}]`, 409, "unknown KV verb"},
			{"PUT", "txn", "[" + strings.Repeat(`{"KV":{"Verb":"get","Key":"a"}},`, 128) + `{"KV":{"Verb":"get","Key":"a"}}]`, 413, "too many operations"},
		} {
			a := f.call(c.method, "/v1/"+c.path, c.body)
			require.Equal(t, c.code, a.code, "%s %s: %s", c.method, c.path, a.body)
			require.Contains(t, a.body, c.text)
		}
	})
}

func TestCompareAndSet(t *testing.T) {
	play(t, func(t *testing.T, f *front) {
		f.yes("PUT", "kv/a?cas=0", "1")
		f.no("PUT", "kv/a?cas=0", "2")
		at := f.key("a").ModifyIndex
		f.no("PUT", fmt.Sprint("kv/a?cas=", at+1), "2")
		f.no("PUT", "kv/b?cas=7", "2")
		f.yes("PUT", fmt.Sprint("kv/a?cas=", at), "2")
		f.no("DELETE", fmt.Sprint("kv/a?cas=", at), "")
		f.no("DELETE", "kv/a?cas=0", "")
		f.yes("DELETE", fmt.Sprint("kv/a?cas=", f.key("a").ModifyIndex), "")
		f.yes("DELETE", "kv/a?cas=7", "")
	})
}

// TestContention: of all clients that read the same index, one changes the key.
func TestContention(t *testing.T) {
	play(t, func(t *testing.T, f *front) {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for done := 0; done < 10; {
					at, n := int64(0), 0
					if a := f.get("kv/n"); a.code == http.StatusOK {
						p := read[[]pair](t, a)[0]
						at = p.ModifyIndex
						n, _ = strconv.Atoi(string(p.Value))
					}
					if f.put(fmt.Sprint("kv/n?cas=", at), strconv.Itoa(n+1)).body == "true" {
						done++
					}
				}
			})
		}
		wg.Wait()
		require.Equal(t, "80", string(f.key("n").Value))
	})
}

func TestLock(t *testing.T) {
	play(t, func(t *testing.T, f *front) {
		a, b := f.session(`{"TTL":"10s","LockDelay":"0s"}`), f.session(`{"ttl":"20s","lockdelay":"15s","name":"the second one"}`)
		f.no("PUT", "kv/k?release="+a, "")
		f.yes("PUT", "kv/k?acquire="+a+"&flags=5", "a")
		require.Equal(t, pair{Key: "k", Value: []byte("a"), Flags: 5, LockIndex: 1, Session: a, CreateIndex: f.key("k").CreateIndex, ModifyIndex: f.key("k").ModifyIndex}, f.key("k"))
		f.yes("PUT", "kv/k?acquire="+a, "again")
		require.EqualValues(t, 1, f.key("k").LockIndex)
		f.no("PUT", "kv/k?acquire="+b, "b")
		f.no("PUT", "kv/k?release="+b, "b")
		f.yes("PUT", "kv/k", "anybody writes")
		require.Equal(t, a, f.key("k").Session, "a put does not take the lock away")
		held := f.key("k").ModifyIndex
		f.yes("PUT", "kv/k?release="+a, "free")
		require.Empty(t, f.key("k").Session)
		require.Greater(t, f.key("k").ModifyIndex, held)
		f.yes("PUT", "kv/k?acquire="+b, "b")
		require.EqualValues(t, 1, f.key("k").LockIndex)
		f.yes("DELETE", "kv/k", "")
		f.yes("PUT", "kv/k?cas=0", "new")
		require.Zero(t, f.key("k").LockIndex)
		require.Empty(t, f.key("k").Session)
		f.yes("PUT", "kv/k?acquire="+a, "no delay: the session did not end")
		f.yes("PUT", "session/destroy/"+b, "")
		c := f.session(`{"LockDelay":"0.001s"}`)
		require.Contains(t, f.get("session/info/"+c).body, `"LockDelay":0,`)
	})
}

// TestLostSession: the end of a session releases its keys, raises their index, and a change that depends on the index before fails.
func TestLostSession(t *testing.T) {
	play(t, func(t *testing.T, f *front) {
		a, b := f.session(`{"TTL":"10s","LockDelay":"15s"}`), f.session(`{"TTL":"1h"}`)
		f.yes("PUT", "kv/k?acquire="+a, "a")
		held := f.key("k")
		time.Sleep(9 * time.Second)
		require.Equal(t, http.StatusOK, f.put("session/renew/"+a, "").code)
		time.Sleep(9 * time.Second)
		require.Equal(t, a, f.key("k").Session, "a renewed session has its whole time again")
		time.Sleep(2 * time.Second)
		lost := f.key("k")
		require.Empty(t, lost.Session)
		require.Equal(t, "a", string(lost.Value))
		require.Equal(t, http.StatusNotFound, f.put("session/renew/"+a, "").code)
		f.no("PUT", fmt.Sprint("kv/k?cas=", held.ModifyIndex), "stale")
		f.no("PUT", "kv/k?acquire="+b, "too early")
		time.Sleep(12 * time.Second) // the failed renewal began the delay anew
		f.no("PUT", "kv/k?acquire="+b, "too early")
		f.yes("PUT", fmt.Sprint("kv/k?cas=", lost.ModifyIndex), "fresh")
		require.Greater(t, f.key("k").ModifyIndex, lost.ModifyIndex)
		time.Sleep(15 * time.Second)
		f.yes("PUT", "kv/k?acquire="+b, "b")
		require.EqualValues(t, 1, f.key("k").LockIndex)
	})
}

// TestDestroy: the lock delay of a destroyed session begins at once, and what a session released itself has none.
func TestDestroy(t *testing.T) {
	play(t, func(t *testing.T, f *front) {
		a, b := f.session(`{"TTL":"1h","LockDelay":"15s"}`), f.session(`{"TTL":"1h"}`)
		f.yes("PUT", "kv/free?acquire="+a, "")
		f.yes("PUT", "kv/free?release="+a, "")
		f.yes("PUT", "kv/k?acquire="+a, "")
		f.yes("PUT", "kv/gone?acquire="+a, "")
		f.yes("PUT", "session/destroy/"+a, "")
		f.yes("PUT", "session/destroy/"+a, "")
		f.yes("PUT", "kv/free?acquire="+b, "")
		f.no("PUT", "kv/k?acquire="+b, "")
		f.yes("DELETE", "kv/gone", "")
		f.no("PUT", "kv/gone?acquire="+b, "a deletion does not end the delay")
		time.Sleep(14 * time.Second)
		f.no("PUT", "kv/k?acquire="+b, "")
		time.Sleep(2 * time.Second)
		f.yes("PUT", "kv/k?acquire="+b, "")
		f.yes("PUT", "kv/gone?acquire="+b, "")
		require.Len(t, read[[]struct{ ID string }](t, f.get("session/list")), 1)
	})
}

func TestBehaviorDelete(t *testing.T) {
	play(t, func(t *testing.T, f *front) {
		a := f.session(`{"TTL":"10s","Behavior":"delete","LockDelay":"0s"}`)
		for _, key := range []string{"gone", "kept", "written"} {
			f.yes("PUT", "kv/"+key+"?acquire="+a, "")
		}
		f.yes("PUT", "kv/kept?release="+a, "stays")
		f.yes("PUT", "kv/written", "goes too")
		time.Sleep(11 * time.Second)
		require.Equal(t, `["kept"]`, f.get("kv/?keys").body)
		kvs, err := coord.Range(t.Context(), f.solo, &apiv1.RangeRequest{Key: []byte("consul/"), Prefix: true})
		require.NoError(t, err)
		require.Len(t, kvs.GetKvs(), 2, "of the deleted keys nothing is left")
	})
}

func TestSessions(t *testing.T) {
	play(t, func(t *testing.T, f *front) {
		a := f.session(`{"Name":"one of two","TTL":"30s","Behavior":"delete","LockDelay":1000000000,"NodeChecks":["serfHealth"]}`)
		one := read[[]map[string]any](t, f.get("session/info/"+a))[0]
		require.Equal(t, map[string]any{
			"ID": a, "Name": "one of two", "Node": coordtest.Peer, "LockDelay": 1e9, "Behavior": "delete", "TTL": "30s",
			"NodeChecks": []any{"serfHealth"}, "ServiceChecks": []any{}, "CreateIndex": one["CreateIndex"], "ModifyIndex": one["CreateIndex"],
		}, one)
		b := f.session("")
		require.Equal(t, "[]", f.get("session/info/x").body)
		require.Len(t, read[[]any](t, f.get("session/list")), 2)
		require.Len(t, read[[]any](t, f.get("session/node/"+coordtest.Peer)), 2)
		require.Equal(t, "[]", f.get("session/node/other").body)
		time.Sleep(10 * time.Minute)
		require.Contains(t, f.get("session/list").body, b, "a session without a TTL lives as long as its node")
		require.NotContains(t, f.get("session/list").body, a)
	})
}

// TestLastingSessions: sessions without a TTL end after their node, and go on if it starts again in time.
func TestLastingSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		id := f.session(`{"LockDelay":"0s"}`)
		f.stop()
		time.Sleep(50 * time.Second)
		f = start(t, f.solo)
		time.Sleep(10 * time.Minute)
		require.Contains(t, f.get("session/list").body, id)
		f.yes("PUT", "session/destroy/"+id, "")
		require.Equal(t, "[]", f.get("session/list").body)
		f.session("")
		f.stop()
		time.Sleep(3 * time.Minute)
		require.Equal(t, "[]", f.get("session/list").body)
	})
}

// waiting is a blocking query.
type waiting struct {
	done chan answer
}

func (f *front) wait(path string) waiting {
	w := waiting{make(chan answer, 1)}
	go func() { w.done <- f.get(path) }()
	synctest.Wait()
	return w
}

func (w waiting) waits(t *testing.T) {
	t.Helper()
	synctest.Wait()
	require.Empty(t, w.done, "the query must wait")
}

func (w waiting) ends(t *testing.T) answer {
	t.Helper()
	synctest.Wait()
	require.Len(t, w.done, 1, "the query must have ended")
	return <-w.done
}

// TestIndex: the index of a key, or of a prefix with keys, is that of its last change, and changes elsewhere leave it.
func TestIndex(t *testing.T) {
	play(t, func(t *testing.T, f *front) {
		absent := f.get("kv/a").index
		f.yes("PUT", "kv/a", "1")
		require.Greater(t, f.get("kv/a").index, absent)
		f.yes("PUT", "kv/p/x", "1")
		f.yes("PUT", "kv/p/y", "1")
		at := f.get("kv/p/?recurse").index
		require.Equal(t, f.key("p/y").ModifyIndex, at)
		require.Equal(t, at, f.get("kv/p/?keys").index)
		f.yes("PUT", "kv/q", "1")
		f.other("elsewhere")
		require.Equal(t, at, f.get("kv/p/?recurse").index)
		require.Greater(t, f.get("kv/none/?recurse").index, at, "nothing there: the index of the group")
	})
}

func TestBlockingQuery(t *testing.T) {
	play(t, func(t *testing.T, f *front) {
		f.yes("PUT", "kv/p/a", "1")
		at := f.key("p/a").ModifyIndex
		one, tree, keys := f.wait(fmt.Sprint("kv/p/a?index=", at)), f.wait(fmt.Sprint("kv/p/?recurse&index=", at)), f.wait(fmt.Sprint("kv/p/?keys&index=", at))
		absent := f.wait(fmt.Sprint("kv/none?wait=30s&index=", f.get("kv/none").index))
		f.yes("PUT", "kv/q", "elsewhere")
		for _, w := range []waiting{one, tree, keys, absent} {
			w.waits(t)
		}
		f.yes("PUT", "kv/p/a", "2")
		now := f.key("p/a").ModifyIndex
		for _, w := range []waiting{one, tree, keys} {
			require.Equal(t, now, w.ends(t).index)
		}
		require.Equal(t, now, f.get(fmt.Sprint("kv/p/a?index=", at)).index, "a client that is behind does not wait")
		f.yes("DELETE", "kv/p/a", "")
		gone := f.get(fmt.Sprint("kv/p/?recurse&index=", now))
		require.Equal(t, http.StatusNotFound, gone.code, "a deletion before the query counts")
		require.Greater(t, gone.index, now)

		time.Sleep(29 * time.Second)
		absent.waits(t)
		asked := f.get("kv/none").index
		time.Sleep(2 * time.Second)
		require.Less(t, absent.ends(t).index, asked, "without a change the index stays the client's")
		require.Equal(t, f.get("kv/none").index, f.get("kv/none?index=1000000").index, "an index from the future is reset")
	})
}

// TestBlockingDeletion: a deletion and the end of a session raise the index of a prefix, of which no key changes.
func TestBlockingDeletion(t *testing.T) {
	play(t, func(t *testing.T, f *front) {
		a := f.session(`{"TTL":"10s","LockDelay":"15s"}`)
		f.yes("PUT", "kv/p/lock?acquire="+a, "")
		f.yes("PUT", "kv/p/x", "")
		f.yes("PUT", "kv/p/y", "")
		at := f.get("kv/p/?recurse").index
		w := f.wait(fmt.Sprint("kv/p/?recurse&index=", at))
		f.yes("DELETE", "kv/p/x", "")
		next := w.ends(t)
		require.Greater(t, next.index, at)
		require.NotContains(t, next.body, "p/x")
		w, one := f.wait(fmt.Sprint("kv/p/?recurse&index=", next.index)), f.wait(fmt.Sprint("kv/p/lock?index=", f.key("p/lock").ModifyIndex))
		time.Sleep(9 * time.Second)
		w.waits(t)
		one.waits(t)
		time.Sleep(2 * time.Second)
		free := w.ends(t)
		require.NotContains(t, free.body, a)
		require.NotContains(t, one.ends(t).body, a)
		w = f.wait(fmt.Sprint("kv/p/?recurse&index=", free.index))
		time.Sleep(time.Minute)
		w.waits(t)
		f.yes("PUT", "kv/p/z", "")
		w.ends(t)
	})
}

// TestCompactedIndex: an index before the history of the group gets the present state at once, and then waits.
func TestCompactedIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := coord.DefaultLimits()
		limits.HistoryEvents = 4
		f := start(t, coordtest.New(coordtest.Config{Now: time.Now, After: func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }, Limits: limits}))
		f.yes("PUT", "kv/p/a", "1")
		at := f.get("kv/p/?recurse").index
		for n := range 10 {
			f.yes("PUT", "kv/q", fmt.Sprint(n))
		}
		one := f.wait(fmt.Sprint("kv/p/a?index=", at))
		now := f.get(fmt.Sprint("kv/p/?recurse&index=", at))
		require.Greater(t, now.index, at)
		w := f.wait(fmt.Sprint("kv/p/?recurse&index=", now.index))
		w.waits(t)
		one.waits(t)
		f.yes("PUT", "kv/p/a", "2")
		w.ends(t)
		one.ends(t)
	})
}

func TestTxn(t *testing.T) {
	play(t, func(t *testing.T, f *front) {
		id := f.session(`{"TTL":"1h"}`)
		type result struct {
			Results []struct{ KV pair }
			Errors  []struct {
				OpIndex int
				What    string
			}
		}
		a := f.put("txn", `[{"KV":{"Verb":"set","Key":"a","Value":"MQ==","Flags":3}},{"KV":{"Verb":"cas","Key":"b","Index":0,"Value":"Mg=="}},
			{"KV":{"Verb":"lock","Key":"c","Session":"`+id+`"}},{"KV":{"Verb":"get-tree","Key":""}},{"KV":{"Verb":"get-or-empty","Key":"none"}}]`)
		got := read[result](t, a)
		require.Len(t, got.Results, 7)
		require.Empty(t, got.Errors)
		require.Equal(t, pair{Key: "a", Flags: 3, CreateIndex: a.index, ModifyIndex: a.index}, got.Results[0].KV)
		require.Equal(t, "1", string(got.Results[3].KV.Value), "an operation sees those before it")
		require.Equal(t, a.index, f.key("a").ModifyIndex)
		require.Equal(t, id, f.key("c").Session)

		for _, c := range []struct {
			ops  string
			at   int
			what string
		}{
			{`{"KV":{"Verb":"cas","Key":"b","Index":0}}`, 0, "modify index"},
			{`{"KV":{"Verb":"set","Key":"d"}},{"KV":{"Verb":"check-index","Key":"b","Index":1}}`, 1, "modify index"},
			{`{"KV":{"Verb":"check-session","Key":"a","Session":"` + id + `"}}`, 0, "session"},
			{`{"KV":{"Verb":"check-not-exists","Key":"a"}}`, 0, "exists"},
			{`{"KV":{"Verb":"get","Key":"none"}}`, 0, "doesn't exist"},
			{`{"KV":{"Verb":"unlock","Key":"a","Session":"` + id + `"}}`, 0, "lock"},
			{`{"KV":{"Verb":"delete-cas","Key":"a","Index":1}}`, 0, "modify index"},
		} {
			a := f.put("txn", "["+c.ops+"]")
			require.Equal(t, http.StatusConflict, a.code, c.ops)
			var got result
			require.NoError(t, json.Unmarshal([]byte(a.body), &got))
			require.Equal(t, c.at, got.Errors[0].OpIndex)
			require.Contains(t, got.Errors[0].What, c.what)
		}
		require.Equal(t, http.StatusNotFound, f.get("kv/d").code, "all or nothing")

		got = read[result](t, f.put("txn", fmt.Sprintf(`[{"KV":{"Verb":"check-index","Key":"a","Index":%d}},{"KV":{"Verb":"check-session","Key":"c","Session":%q}},
			{"KV":{"Verb":"check-not-exists","Key":"d"}},{"KV":{"Verb":"unlock","Key":"c","Session":%[2]q}},{"KV":{"Verb":"delete-cas","Key":"a","Index":%[1]d}},
			{"KV":{"Verb":"delete","Key":"b"}},{"KV":{"Verb":"get","Key":"c"}}]`, f.key("a").ModifyIndex, id)))
		require.Len(t, got.Results, 4)
		require.Equal(t, `["c"]`, f.get("kv/?keys").body)
		read[result](t, f.put("txn", `[{"KV":{"Verb":"delete-tree","Key":""}},{"KV":{"Verb":"check-not-exists","Key":"c"}}]`))
		require.Equal(t, http.StatusNotFound, f.get("kv/?keys").code)
	})
}

// TestRoles: a caller changes the keys and uses the sessions that are its own.
func TestRoles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := startWith(t, nil, func(c *consulapi.Config) {
			gate := authority.New(authority.Config{Service: c.Plane, Peer: coordtest.Peer, Front: consulapi.Front})
			c.Service, c.Owner = gate, gate.Owner
		})
		f.as = access.Principal{Name: "a", Role: access.RoleService, Services: []string{"consul/app"}}
		f.yes("PUT", "kv/app/x?flags=1", "1")
		id := f.session(`{"TTL":"1h"}`)
		f.yes("PUT", "kv/app/lock?acquire="+id, "")
		for _, path := range []string{"kv/other", "kv/application"} {
			require.Equal(t, http.StatusForbidden, f.put(path, "").code)
		}
		require.Equal(t, http.StatusForbidden, f.delete("kv/?recurse").code)
		f.as = access.Principal{Name: "b", Role: access.RoleService, Services: []string{"consul/*"}}
		require.Equal(t, "[]", f.get("session/list").body)
		require.Equal(t, http.StatusInternalServerError, f.put("kv/app/y?acquire="+id, "").code, "the session is another caller's")
		require.Contains(t, f.get("kv/app/lock").body, id, "everybody reads who holds a key")
		f.yes("DELETE", "kv/?recurse", "")
	})
}

// TestBounds: a caller that takes all places of a pool leaves some, and is refused.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := access.NewPool("answer_bytes", 256<<10, nil)
		f := startWith(t, nil, func(c *consulapi.Config) {
			c.Answers, c.Bodies = answers, access.NewPool("request_bytes", 256<<10, nil)
		})
		f.yes("PUT", "kv/big", strings.Repeat("x", 60<<10))
		require.Equal(t, http.StatusOK, f.get("kv/big").code)
		for _, client := range []string{"a", "b", "c", "d", "e"} {
			release, err := answers.TakeBytes(access.With(t.Context(), access.Principal{Name: client}), "test", 40<<10, 0)
			require.NoError(t, err)
			defer release()
		}
		require.Equal(t, http.StatusTooManyRequests, f.get("kv/big").code)
		const read = `{"KV":{"Verb":"get","Key":"big"}}`
		done := f.put("txn", `[{"KV":{"Verb":"set","Key":"a"}},`+read+`]`)
		require.Equal(t, http.StatusInternalServerError, done.code)
		require.Contains(t, done.body, "was carried out", "nobody takes the change for undone")

		index := f.key("a").ModifyIndex
		var all []waiting
		for range 768 {
			all = append(all, f.wait(fmt.Sprint("kv/a?index=", index)))
		}
		require.Equal(t, http.StatusTooManyRequests, f.get(fmt.Sprint("kv/a?index=", index)).code)
		f.yes("PUT", "kv/a", "x")
		for _, w := range all {
			require.Equal(t, http.StatusOK, w.ends(t).code)
		}

		body, more := io.Pipe()
		for range 3 {
			r := httptest.NewRequestWithContext(t.Context(), "PUT", "/v1/kv/large", body)
			go f.mux.ServeHTTP(httptest.NewRecorder(), r)
		}
		synctest.Wait()
		require.Equal(t, http.StatusTooManyRequests, f.put("kv/large", strings.Repeat("x", 65<<10)).code)
		require.NoError(t, more.Close())
		synctest.Wait()
		f.yes("PUT", "kv/large", strings.Repeat("x", 65<<10))
	})
}

func TestStatus(t *testing.T) {
	play(t, func(t *testing.T, f *front) {
		require.Equal(t, `"solo"`, f.get("status/leader").body)
		require.Equal(t, `["solo"]`, f.get("status/peers").body)
	})
	synctest.Test(t, func(t *testing.T) {
		voters := []coord.Member{{Peer: "a", Address: "/ip4/192.0.2.1/tcp/4801/p2p/a"}, {Peer: "b", Address: "/ip6/2001:db8::1/udp/4801/quic-v1"}}
		state := coord.GroupState{Leader: "b", Voters: voters}
		f := startWith(t, nil, func(c *consulapi.Config) {
			c.Group = func(context.Context) (coord.GroupState, error) { return state, nil }
			c.Led = func() bool { return state.Leader != "" }
		})
		require.Equal(t, `"[2001:db8::1]:4801"`, f.get("status/leader").body)
		require.Equal(t, `["192.0.2.1:4801","[2001:db8::1]:4801"]`, f.get("status/peers").body)
		require.Equal(t, "true", f.get("status/leader").led)
		state.Leader = ""
		require.Equal(t, `""`, f.get("status/leader").body)
		require.Equal(t, "false", f.get("kv/none").led, "no answer claims a leader that this peer does not know")
	})
}

func TestPrefix(t *testing.T) {
	for _, prefix := range []string{"", coord.MembersPrefix, coord.MembersPrefix + "x/"} {
		_, err := consulapi.New(consulapi.Config{Prefix: prefix})
		require.ErrorContains(t, err, "consul.prefix", prefix)
	}
}

// TestTxnErrors: a transaction that cannot be says of each operation why, and one that changes nothing has the index
// of what it read.
func TestTxnErrors(t *testing.T) {
	play(t, func(t *testing.T, f *front) {
		f.yes("PUT", "kv/a", "1")
		type answers struct {
			Index  int64
			Errors []struct {
				OpIndex int
				What    string
			}
		}
		for _, session := range []string{"x", "40000000-0000-0002-8000-000000003a98"} {
			a := f.put("txn", `[{"KV":{"Verb":"lock","Key":"b","Session":"`+session+`"}},{"KV":{"Verb":"get","Key":"a"}}]`)
			require.Equal(t, http.StatusConflict, a.code, a.body)
			var got answers
			require.NoError(t, json.Unmarshal([]byte(a.body), &got))
			require.Len(t, got.Errors, 1)
			require.Contains(t, got.Errors[0].What, "invalid session")
		}
		a := f.put("txn", `[{"KV":{"Verb":"get","Key":"none"}},{"KV":{"Verb":"get","Key":"a"}},{"KV":{"Verb":"check-not-exists","Key":"a"}}]`)
		require.Equal(t, http.StatusConflict, a.code)
		var got answers
		require.NoError(t, json.Unmarshal([]byte(a.body), &got))
		require.Equal(t, []int{0, 2}, []int{got.Errors[0].OpIndex, got.Errors[1].OpIndex})
		a = f.put("txn", `[{"KV":{"Verb":"get","Key":"a"}}]`)
		require.Equal(t, a.index, read[answers](t, a).Index)
		require.Zero(t, read[answers](t, f.put("txn", `[{"KV":{"Verb":"set","Key":"a"}}]`)).Index)
	})
}

// TestHarmlessParameters: those that the library of Consul sends with every request change nothing, and a query that
// cannot wait does not let its client ask all the time.
func TestHarmlessParameters(t *testing.T) {
	play(t, func(t *testing.T, f *front) {
		const all = "wait=5000ms&index=7&hash=x&near=_agent&ns=default&partition=default&dc=dc1&pretty&stale&cached&unknown=1"
		f.yes("PUT", "kv/a?"+all, "1")
		id := read[struct{ ID string }](t, f.put("session/create?"+all, `{"TTL":"24h","CreateIndex":3,"Unknown":1}`)).ID
		require.Contains(t, f.get("session/info/"+id).body, `"TTL":"24h"`)
		f.yes("PUT", "kv/a?acquire="+id+"&"+all, "1")
		before := time.Now()
		require.Len(t, read[[]any](t, f.get("session/list?"+all)), 1)
		require.Equal(t, time.Second, time.Since(before))
		require.Equal(t, http.StatusOK, f.put("txn?"+all, `[{"KV":{"Verb":"get","Key":"a"}}]`).code)
		f.yes("PUT", "session/destroy/"+id+"?"+all, "")
		f.yes("DELETE", "kv/a?"+all, "")
		for _, path := range []string{"kv/a?near=other", "kv/a?peer=x", "session/list?filter=x"} {
			require.Equal(t, http.StatusBadRequest, f.get(path).code, path)
		}
	})
}

// failing ends watches with an error.
type failing struct {
	coord.Service
	err error
}

// Watch implements coord.Service.
func (f failing) Watch(ctx context.Context, r *apiv1.WatchKeysRequest, send func(*apiv1.WatchKeysResponse) error) error {
	if f.err == nil {
		return f.Service.Watch(ctx, r, send)
	}
	time.Sleep(time.Second)
	return f.err
}

// TestTransientEnds: a blocking query that the group cannot answer for now ends as Consul's does, so that its clients
// try again: 500 when no leader is there, 429 without room. None ends as if nothing had changed.
func TestTransientEnds(t *testing.T) {
	for kind, want := range map[fault.Kind]string{
		fault.Unavailable: "500 No cluster leader", fault.Timeout: "500 ", fault.PoolExhausted: "429 ", fault.Canceled: "500 ",
	} {
		synctest.Test(t, func(t *testing.T) {
			var service failing
			f := startWith(t, nil, func(c *consulapi.Config) {
				service.Service, service.err = c.Service, fault.New("test", kind, "for now")
				c.Service = service
			})
			f.yes("PUT", "kv/a", "1")
			a := f.get(fmt.Sprint("kv/a?index=", f.key("a").ModifyIndex))
			require.Contains(t, fmt.Sprint(a.code, " ", a.body), want)
		})
	}
}
