package httpapi

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/requirements"
	"github.com/blackhole/blackhole/internal/contract/instances"
	"github.com/blackhole/blackhole/internal/coordination/coordtest/ops"
	"github.com/blackhole/blackhole/pkg/instance"
)

const storage = `{"service":"storage","min":3,"selector":{"health":"up,starting","zone":"eu","version":"2.x","tags":["a","b:c"],"environment":"staging","dependency":"db"}}`

// judge writes the status of a requirement, in place of the leader.
func (p coordFixture) judge(t testing.TB, name string, available int) {
	t.Helper()
	page, _, err := ops.Of(p).Range(t.Context(), ops.Query{Span: coord.Exactly(requirements.Key(name))}, ops.Linearizable)
	require.NoError(t, err)
	r, err := requirements.Of(page.Keys[0].Key, page.Keys[0].Value)
	require.NoError(t, err)
	v := requirements.Status{State: requirements.Insufficient, Needed: r.Min, Available: available, Revision: page.Revision, Of: page.Keys[0].ModRevision}
	if available >= r.Min {
		v.State = requirements.Satisfied
	}
	p.put(t, requirements.StatusKey(name), string(v.Encode()))
}

func TestRequirements(t *testing.T) {
	p := newCoordFixture(t)
	got := p.ok(t, 200, "PUT /requirements/store", storage)
	want := object{
		"name": "store", "service": "storage", "namespace": "default", "min": 3.0, "selector": object{
			"health": "UP,STARTING", "zone": "eu", "version": "2.x", "tags": []any{"a", "b:c"}, "environment": "staging", "dependency": "db",
		},
	}
	require.Equal(t, "2", got["header"].(object)["revision"])
	delete(got, "header")
	require.Equal(t, want, got)
	page, _, err := ops.Of(p).Range(t.Context(), ops.Query{Span: coord.Under(requirements.Prefix)}, ops.Linearizable)
	require.NoError(t, err)
	r, err := requirements.Of(page.Keys[0].Key, page.Keys[0].Value)
	require.NoError(t, err)
	q, err := instances.ParseQuestion(r.Question)
	require.NoError(t, err)
	require.Equal(t, instance.Query{Name: instance.Name{Namespace: "default", Service: "storage"}, Selector: instance.Selector{
		Statuses: []instance.Status{instance.StatusUp, instance.StatusStarting}, Zone: "eu", Version: "2.x", Tags: []string{"a", "b:c"},
		Environment: "staging", Dependency: "db",
	}}, q)
	p.ok(t, 200, "PUT /requirements/store", storage)

	p.judge(t, "store", 1)
	stands := p.ok(t, 200, "GET /requirements/store", "")
	require.Equal(t, "3", stands["header"].(object)["revision"], "nothing changed by the same once more")
	delete(stands, "header")
	want["state"], want["needed"], want["available"], want["revision"] = "insufficient_nodes", 3.0, 1.0, 2.0
	require.Equal(t, want, stands)
	p.ok(t, 200, "PUT /requirements/a", `{"service":"s","namespace":"blue","min":1,"selector":{"health":"any"}}`)
	all := p.ok(t, 200, "GET /requirements", "")["requirements"].([]any)
	require.Len(t, all, 2)
	require.Equal(t, object{
		"name": "a", "service": "s", "namespace": "blue", "min": 1.0, "selector": object{"health": "any"},
		"state": "pending", "needed": 1.0, "available": 0.0, "revision": 4.0,
	}, all[0])
	require.Equal(t, want, all[1])

	p.ok(t, 200, "DELETE /requirements/store", "")
	missing := refusal{404, "not_found", "name"}
	p.refused(t, missing, "DELETE /requirements/store", "")
	p.refused(t, missing, "GET /requirements/store", "")
	p.refused(t, missing, "GET /requirements/store?wait=1h", "")
}

func TestRequirementRefuses(t *testing.T) {
	p := newCoordFixture(t)
	for body, field := range map[string]string{
		`{"service":"s"}`: "min", `{"service":"s","min":-1}`: "min", `{"service":"s","min":100001}`: "min", `{"min":1}`: "service",
		`{"service":"S!","min":1}`: "service", `{"service":"s","namespace":"a/b","min":1}`: "namespace", `{"service":"s","min":"1"}`: "min",
		`{"service":"s","min":1,"colour":"red"}`: "colour", `{"service":"s","min":1,"selector":{"colour":"red"}}`: "selector.colour",
		`{"service":"s","min":1,"selector":{"version":"?"}}`: "selector.version", `{"service":"s","min":1,"selector":{"health":"fine"}}`: "selector.health",
		`{"service":"s","min":1,"selector":{"tags":[""]}}`: "selector.tags[0]", `{"service":"s","min":1,"selector":{"prefer_zone":"eu"}}`: "selector.prefer_zone",
		`[]`: "body",
	} {
		p.refused(t, invalid(field), "PUT /requirements/r", body)
	}
	p.refused(t, invalid("name"), "PUT /requirements/a%20b", `{"service":"s","min":1}`)
	for query, field := range map[string]string{"?wait=1": "wait", "?wait=-1s": "wait", "?wait=61m": "wait", "?till=1s": "till"} {
		p.refused(t, invalid(field), "GET /requirements/r"+query, "")
	}
	p.refused(t, invalid("all"), "GET /requirements?all=1", "")
	require.Empty(t, p.ok(t, 200, "GET /requirements", "")["requirements"])
	p.refused(t, refusal{403, "forbidden", ""}, "PUT /requirements/r", `{"service":"s","min":1}`, header("Owner", "mallory"))
	p.Halt("the majority")
	for _, line := range []string{"GET /requirements", "GET /requirements/r", "DELETE /requirements/r"} {
		p.refused(t, refusal{503, "no_quorum", ""}, line, "")
	}
}

// TestRequirementWaits: a request waits until the requirement is satisfied, at most the given
// time.
func TestRequirementWaits(t *testing.T) {
	inTime(t, func(t *testing.T, p coordFixture) {
		p.ok(t, 200, "PUT /requirements/store", `{"service":"storage","min":2}`)
		began := time.Now()
		require.Equal(t, "pending", p.ok(t, 200, "GET /requirements/store", "")["state"])
		require.Equal(t, judgedWithin, time.Since(began), "nobody judges")
		p.judge(t, "store", 0)
		began = time.Now()
		require.Equal(t, "insufficient_nodes", p.ok(t, 200, "GET /requirements/store", "")["state"])
		require.Zero(t, time.Since(began))
		got := p.ok(t, 200, "GET /requirements/store?wait=30m", "")
		require.Equal(t, "insufficient_nodes", got["state"])
		require.Equal(t, 30*time.Minute, time.Since(began))

		waits := p.later(t, "GET /requirements/store?wait=1h", "")
		time.Sleep(time.Minute)
		p.judge(t, "store", 1)
		time.Sleep(time.Minute)
		p.Halt("the majority")
		time.Sleep(time.Minute)
		p.Resume()
		p.put(t, requirements.StatusKey("store"), "?")
		p.put(t, requirements.StatusKey("store"), `{"state":"satisfied","needed":1,"available":1,"of":0}`) // on what it was before
		time.Sleep(time.Minute)
		require.Empty(t, waits)
		began = time.Now()
		p.judge(t, "store", 2)
		answer := <-waits
		require.Equal(t, []any{200, "satisfied", 2.0}, []any{answer.code, answer.json["state"], answer.json["available"]})
		require.Zero(t, time.Since(began))
		require.Equal(t, "satisfied", p.ok(t, 200, "GET /requirements/store?wait=1h", "")["state"])
		require.Zero(t, time.Since(began))

		p.ok(t, 200, "PUT /requirements/store", `{"service":"storage","min":3}`)
		waits = p.later(t, "GET /requirements/store?wait=1m", "")
		time.Sleep(time.Second)
		p.ok(t, 200, "DELETE /requirements/store", "")
		all := coord.Exactly(requirements.StatusKey("store"))
		_, _, err := ops.Of(p).Do(t.Context(), ops.Command{Op: &ops.Txn{Then: []ops.Step{{Delete: &all}}}})
		require.NoError(t, err)
		require.Equal(t, 404, (<-waits).code)
		require.Equal(t, time.Second, time.Since(began))
	})
}

// TestRequirementWaitsBounded: so many may wait, and the end of the server ends it.
func TestRequirementWaitsBounded(t *testing.T) {
	p := newCoordFixture(t, func(c *coordConfig) { c.MaxWaits = 1 })
	p.ok(t, 200, "PUT /requirements/store", `{"service":"storage","min":2}`)
	waits := p.later(t, "GET /requirements/store?wait=1h", "")
	require.Eventually(t, func() bool { return p.shared.waits.Used() == 1 }, time.Minute, time.Millisecond)
	require.Equal(t, 429, p.send(t, "GET /requirements/store?wait=1ms", "").code)
	p.Close()
	require.Equal(t, 503, (<-waits).code)
}
