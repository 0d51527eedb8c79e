package consulapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/coordination/coordtest"
	"github.com/blackhole/blackhole/pkg/instance"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
	coordv1 "github.com/blackhole/blackhole/proto/blackhole/coord/v1"
)

// sound is a record that passes as a whole.
const sound = `{"ID":"a/b","Checks":[{"ID":"t","Type":"ttl","TTL":60000000000,"Status":"passing"},
	{"ID":"h","Type":"http","Status":"critical","Run":{"Type":"HTTP","Endpoint":"/","Interval":1000000000}}],
	"Maintenance":"why","Warning":2,"Override":true,"Addresses":{"wan":{"Address":"192.0.2.1","Port":1}},"Order":[1,0]}`

func noted(text string) *instance.Instance {
	return &instance.Instance{
		Key:  instance.Key{Namespace: instance.DefaultNamespace, Service: "web", ID: instanceID("a/b", "p")},
		Spec: instance.Spec{Host: "192.0.2.1", Port: 1, Weight: 1, Tags: []string{"a", "b"}, Note: text}, Status: instance.StatusUp, Peer: "p",
	}
}

// everywhere puts a value in the place of each value of a JSON text, one at a time.
func everywhere(t *testing.T, text, value string) (all []string) {
	var v any
	require.NoError(t, json.Unmarshal([]byte(text), &v))
	var walk func(v any, put func(any) any)
	walk = func(v any, put func(any) any) {
		made, err := json.Marshal(put(json.RawMessage(value)))
		require.NoError(t, err)
		all = append(all, string(made))
		switch v := v.(type) {
		case map[string]any:
			for name, inner := range v {
				walk(inner, func(n any) any {
					c := map[string]any{}
					for k, old := range v {
						c[k] = old
					}
					c[name] = n
					return put(c)
				})
			}
		case []any:
			for at, inner := range v {
				walk(inner, func(n any) any {
					c := slices.Clone(v)
					c[at] = n
					return put(c)
				})
			}
		}
	}
	walk(v, func(n any) any { return n })
	return all
}

func strange() []string {
	return []string{
		`null`, `[]`, `[null]`, `{}`, `{"":null}`, `0`, `-1`, `9223372036854775807`, `-9223372036854775808`, `1e400`, `true`, `""`, `"\u0000"`, `[[]]`, `[{}]`,
		`"` + strings.Repeat("x", 4000) + `"`,
	}
}

// shows renders all that clients read of an instance.
func shows(t require.TestingT, i *instance.Instance) {
	rec := recordOf(i)
	if rec == nil {
		return
	}
	_, err := json.Marshal([]any{agentServiceBy(i, rec), checksBy(i, rec), catalogServiceOf(new(request), i), serviceEntryOf(new(request), i)})
	require.NoError(t, err)
	for _, c := range rec.Checks {
		require.NoError(t, c.validate())
		require.NotEmpty(t, c.ID)
	}
	require.LessOrEqual(t, len(tagsOf(i, rec)), maxPlaces)
	if rec.broken != "" {
		require.Equal(t, critical, checksBy(i, rec)[slices.IndexFunc(checksBy(i, rec), func(c healthCheck) bool { return c.Status == critical })].Status)
		require.NotEqual(t, instance.StatusUp, rec.override(), "nobody takes it for healthy")
	}
	_, _ = rec.note()
}

// TestStrangeRecords reads records with each strange value at each place: what does not pass is left out, and told.
func TestStrangeRecords(t *testing.T) {
	i := noted(noteMark + sound)
	require.Empty(t, recordOf(i).broken)
	require.Len(t, recordOf(i).Checks, 2)
	require.Equal(t, []string{"b", "a"}, tagsOf(i, recordOf(i)))
	require.Equal(t, "a/b", idOf(i, recordOf(i)))
	for _, value := range strange() {
		for _, text := range everywhere(t, sound, value) {
			shows(t, noted(noteMark+text))
		}
	}
	for _, text := range []string{
		`[]`, `{"Checks":[null]}`, `{"Checks":[{"ID":"x","Type":"ttl","TTL":-1,"Status":"passing"}]}`, `{"Checks":[{"ID":"x","Type":"http","Status":"passing"}]}`,
		`{"Checks":[{"ID":"x","Type":"tcp","Status":"passing","Run":{"Type":"script","Endpoint":"x"}}]}`, `{"Checks":[{"ID":"x","Type":"script","Status":"passing","Run":{"Type":"script","Endpoint":"x"}}]}`,
		`{"Checks":[{"Type":"ttl","TTL":1,"Status":"passing"}]}`, `{"Checks":[{"ID":"x","Type":"ttl","TTL":1,"Status":""}]}`, `{"ID":"of another"}`, `{"Order":[-1]}`, `{"Warning":-1}`,
		`{"Addresses":{"wan":{"Port":-1}}}`, `{"Checks":[{"ID":"x","Type":"ttl","TTL":1,"Status":"passing"},{"ID":"x","Type":"ttl","TTL":1,"Status":"passing"}]}`, `{`, ``,
	} {
		require.NotEmpty(t, recordOf(noted(noteMark+text)).broken, text)
	}
	require.Nil(t, recordOf(noted("")))
	require.Nil(t, recordOf(noted(`{"Checks":[null]}`)), "the note of another front")
}

func FuzzRecord(f *testing.F) {
	f.Add(sound)
	for _, value := range strange() {
		f.Add(value)
		f.Add(`{"Checks":` + value + `,"Order":` + value + `}`)
	}
	f.Fuzz(func(t *testing.T, text string) { shows(t, noted(noteMark+text)) })
}

// FuzzMarks reads keys beside a value as another front may write them.
func FuzzMarks(f *testing.F) {
	for _, text := range []string{"", "1 2 3", "18446744073709551616 1", "-1 -1", "7 0 " + newSession(true, time.Second).String(), "\x00", "1 1 ü"} {
		f.Add([]byte(text), []byte(text))
	}
	f.Fuzz(func(t *testing.T, held, meta []byte) {
		s := &Server{Config: Config{Prefix: "p/"}}
		var kvs []*apiv1.KeyVal
		for _, suffix := range []string{"", mark + "held", mark + "meta", mark + "other", mark + "slow"} {
			value := held
			if suffix == metaMark {
				value = meta
			}
			kvs = append(kvs, &apiv1.KeyVal{Key: []byte("p/k" + suffix), Value: value, ModRevision: 3, CreateRevision: 2})
		}
		list := s.entries(kvs)
		require.Len(t, list, 1)
		require.Equal(t, "k", list[0].key)
		if list[0].session != (sessionID{}) {
			require.Equal(t, string(held), list[0].session.String())
		}
		_, err := json.Marshal(list[0].pair())
		require.NoError(t, err)
	})
}

// FuzzLeases reads names of leases, which callers of other fronts may choose.
func FuzzLeases(f *testing.F) {
	id := newSession(true, 15*time.Second)
	f.Add((&session{Name: "n", Node: "p"}).record(id), int64(id.lease()))
	for _, text := range []string{"", "x", strings.Repeat("0", 400), "8000000000000000", "ffffffffffffffff"} {
		f.Add(recordMark+text+" - p n", int64(id.lease()))
		f.Add(recordMark+text+" soon p n", int64(3))
	}
	f.Fuzz(func(t *testing.T, name string, lease int64) {
		s := sessionOf(&apiv1.LeaseState{Id: lease, Application: name})
		if s == nil {
			return
		}
		require.Equal(t, coord.LeaseID(lease), parseSession(s.ID).lease())
		if s.TTL != "" {
			_, err := time.ParseDuration(s.TTL)
			require.NoError(t, err)
		}
	})
}

// TestForeignLeases: a peer renews no lease that other fronts gave the name of a session, and one name leaves room to
// others.
func TestForeignLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		solo := coordtest.New(coordtest.Config{Now: time.Now, After: func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }})
		grant := func(owner, name string, id coord.LeaseID) {
			_, err := solo.Execute(t.Context(), coord.CommandOf(owner, &apiv1.LeaseGrantRequest{Id: int64(id), TtlMs: 60_000, Application: name}))
			require.NoError(t, err)
		}
		long, named, anonymous := newSession(false, 0), newSession(false, 0), newSession(false, 0)
		node := &session{Node: coordtest.Peer}
		grant("~"+coordtest.Peer, recordMark+strings.Repeat("0", 34)+" - "+coordtest.Peer+" x", long.lease())
		grant("~"+coordtest.Peer, node.record(anonymous), anonymous.lease())
		grant("@app", node.record(named), named.lease())
		k := lasting{plane: solo, peer: coordtest.Peer}
		for range 20 {
			_ = k.renew(t.Context())
			time.Sleep(15 * time.Second)
		}
		require.Equal(t, map[coord.LeaseID]string{named.lease(): "@app"}, k.owners)
	})
	full := lasting{owners: map[coord.LeaseID]string{}}
	id, taken := coord.LeaseID(0), 0
	for full.add(id, "@greedy") == nil {
		id, taken = id+1, taken+1
	}
	require.Less(t, taken, maxLasting)
	require.NoError(t, full.add(id, "@other"))
}

// refusing fails the calls of one owner.
type refusing struct {
	coord.Service
	owner string
}

// Execute implements coord.Service.
func (r refusing) Execute(ctx context.Context, c *coordv1.Command) (*coordv1.Result, error) {
	if c.GetOwner() == r.owner {
		return nil, errors.New("no room")
	}
	return r.Service.Execute(ctx, c)
}

// TestOneOwnersError delays no other owner's sessions.
func TestOneOwnersError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		solo := coordtest.New(coordtest.Config{Now: time.Now, After: func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }})
		k := lasting{plane: refusing{solo, "@bad"}, peer: coordtest.Peer, owners: map[coord.LeaseID]string{}}
		var good []coord.LeaseID
		for _, owner := range []string{"@a", "@b", "@bad", "@c", "@d"} {
			id := newSession(false, 0).lease()
			_, err := solo.Execute(t.Context(), coord.CommandOf(owner, &apiv1.LeaseGrantRequest{Id: int64(id), TtlMs: 60_000}))
			require.NoError(t, err)
			require.NoError(t, k.add(id, owner))
			if owner != "@bad" {
				good = append(good, id)
			}
		}
		for range 20 {
			require.ErrorContains(t, k.renew(t.Context()), "no room")
			time.Sleep(15 * time.Second)
		}
		for _, id := range good {
			require.Contains(t, k.owners, id)
			_, err := solo.Read(t.Context(), coord.QuestionOf("", &apiv1.LeaseTimeToLiveRequest{Id: int64(id)}))
			require.NoError(t, err, "it lives")
		}
	})
}

// TestPanics: a panic of periodic work loses its round, is logged once, and is told until the work is right again.
func TestPanics(t *testing.T) {
	var log bytes.Buffer
	var told []string
	s := &Server{Config: Config{Logger: slog.New(slog.NewTextHandler(&log, nil)), Failed: func(err error) {
		text := ""
		if err != nil {
			text = err.Error()
		}
		told = append(told, text)
	}}, faults: map[string]error{}}
	bad := func(context.Context) error {
		together(slices.Values([]int{1, 2, 3}), func(n int) {
			if n == 2 {
				panic("of a check")
			}
		})
		return nil
	}
	for range 3 {
		s.round(t.Context(), "checks", bad)
		s.round(t.Context(), "services", func(context.Context) error { return nil })
	}
	require.Equal(t, 1, strings.Count(log.String(), "level=ERROR"))
	s.round(t.Context(), "checks", func(context.Context) error { return errors.New("no leader") })
	require.Equal(t, "", told[len(told)-1])
	require.Equal(t, "fault: a panic in the work for checks, see the log: of a check", told[0])
}

// TestInstanceIDs: each id of a service makes an id that an instance can have, one at each peer, and is read from it
// again.
func TestInstanceIDs(t *testing.T) {
	peers := []string{"12D3KooWGRUvvGrdJDLkUUcBLJMnvbT1aUTZFqbTYpvCwTAZ8aH9", "12D3KooWBpgDB2WzyWmLtfSLLTLHDYrVWXjJMcUqYrKXpEuqCVBx"}
	made := map[string]string{}
	for _, id := range []string{
		"web", "web-1", ".", "..", "a/b", "a.b", "a b", "ü", "_nomad-task-9e2f-web", "host:redis:6379", strings.Repeat("x", 119), strings.Repeat("x", 120),
		strings.Repeat("x", 500), strings.Repeat("/", 500), "web" + endOf(peers[0]), "web" + endOf(peers[1]),
	} {
		for _, peer := range peers {
			key := instance.Key{Namespace: instance.DefaultNamespace, Service: "web", ID: instanceID(id, peer)}
			require.NoError(t, key.Validate(), id)
			require.Empty(t, made[key.ID], "%s at %s", id, peer)
			made[key.ID] = id
			d := serviceDefinition{ID: id, Name: "web"}
			reg, rec, err := d.registration(nil, false, peer, "192.0.2.1")
			require.NoError(t, err)
			require.Equal(t, key, reg.Key)
			i := &instance.Instance{Key: reg.Key, Peer: peer}
			i.Spec.Note, err = rec.note()
			require.NoError(t, err)
			require.Empty(t, recordOf(i).broken)
			require.Equal(t, id, idOf(i, recordOf(i)))
			i.Spec.Note = noteMark + "[]"
			require.Contains(t, []string{id, plainID(key.ID, peer)}, idOf(i, recordOf(i)), "ordinary ids outlive the record")
		}
	}
}
