package httpapi

import (
	"context"
	"encoding/json"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// followed is a stream of Follow in progress.
type followed struct {
	t      *testing.T
	events chan *api.FollowResponse
	end    context.CancelFunc
	done   chan error
}

func (a livePeer) follow(r *api.FollowRequest) followed {
	ctx, cancel := context.WithCancel(a.t.Context())
	f := followed{a.t, make(chan *api.FollowResponse), cancel, make(chan error, 1)}
	go func() {
		f.done <- a.serve.Follow(ctx, r, func(e *api.FollowResponse) error {
			select {
			case f.events <- e:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	first := <-f.events
	require.Equal(a.t, "open", first.GetTopic())
	return f
}

// until returns the next event with data of a topic and a kind, and its data.
func (f followed) until(topic, kind string) (*api.FollowResponse, object) {
	f.t.Helper()
	for {
		e := <-f.events
		var data object
		if len(e.GetData()) > 0 {
			require.NoError(f.t, json.Unmarshal(e.GetData(), &data))
		}
		if e.GetTopic() == topic && data["kind"] == kind {
			return e, data
		}
	}
}

// TestFollow: other front ends get the events of the HTTP stream, and an id of either continues the other.
func TestFollow(t *testing.T) {
	inLiveBubble(t, func(t *testing.T, a livePeer) {
		f := a.follow(&api.FollowRequest{Topics: []string{"keys"}, Prefix: "db-"})
		f.until("keys", "reset")
		a.post("PUT /v1/coordination/keys/db-a", "1")
		e, data := f.until("keys", "change")
		require.Equal(t, "db-a", data["changes"].([]any)[0].(object)["kv"].(object)["key"])
		f.end()
		require.ErrorIs(t, <-f.done, fault.Canceled)

		a.post("PUT /v1/coordination/keys/db-b", "2")
		f = a.follow(&api.FollowRequest{Topics: []string{"keys"}, Prefix: "db-", After: e.GetId()})
		_, data = f.until("keys", "change")
		require.Equal(t, "db-b", data["changes"].([]any)[0].(object)["kv"].(object)["key"], "it continues, without a reset")
		web := a.view("?topics=keys&prefix=db-&after="+e.GetId()).until("keys", "change")
		require.Equal(t, data, web.data)

		synctest.Wait()
		a.close()
		require.ErrorIs(t, <-f.done, fault.Unavailable, "the peer stops")
	})
}

func TestFollowRefusesWrongQuestions(t *testing.T) {
	inLiveBubble(t, func(t *testing.T, a livePeer) {
		for field, r := range map[string]*api.FollowRequest{
			"topics":    {Topics: []string{"weather"}},
			"after":     {After: "keys"},
			"namespace": {Namespace: "a b"},
		} {
			err := a.serve.Follow(t.Context(), r, nil)
			require.ErrorIs(t, err, fault.Invalid, field)
			require.Equal(t, field, fault.FieldOf(err))
		}
	})
}

// past is a memory of a test.
type past struct {
	mu      sync.Mutex
	notes   []discovery.Note
	changed chan struct{}
}

func (p *past) note(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notes = append(p.notes, discovery.Note{At: time.Now(), Kind: "leader", Subject: "id", Text: text})
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *past) since(after time.Time) (list []discovery.Note, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.notes {
		if n.At.After(after) {
			list = append(list, n)
		}
	}
	return list, p.changed
}

// TestHistory: a stream begins with what mattered since a time, goes on with news, and continues at its position.
func TestHistory(t *testing.T) {
	memory := &past{}
	texts := func(data object) (list []string) {
		for _, n := range data["notes"].([]any) {
			list = append(list, n.(object)["text"].(string))
		}
		return list
	}
	inLiveBubble(t, func(t *testing.T, a livePeer) {
		memory.note("long ago")
		<-time.After(time.Hour)
		noon := time.Now().UTC().Format(time.RFC3339)
		<-time.After(time.Minute)
		memory.note("peer-2 leads: peer-1 is silent")
		<-time.After(time.Minute)

		v := a.view("?since=1h")
		first, ok := v.next()
		require.True(t, ok)
		require.Equal(t, "history", first.topic, "before all other topics")
		require.Equal(t, "past", first.data["kind"])
		require.Equal(t, []string{"peer-2 leads: peer-1 is silent"}, texts(first.data))
		require.NotEmpty(t, first.id)
		v.until("keys", "reset")
		synctest.Wait()
		memory.note("the quorum is lost")
		news := v.until("history", "change")
		require.Equal(t, []string{"the quorum is lost"}, texts(news.data))
		v.close()
		synctest.Wait()

		for question, want := range map[string][]string{
			"?topics=history&since=" + noon:                        {"peer-2 leads: peer-1 is silent", "the quorum is lost"},
			"?topics=history&since=9h":                             {"long ago", "peer-2 leads: peer-1 is silent", "the quorum is lost"},
			"?topics=history&since=9h&after=" + first.id:           {"the quorum is lost"},
			"?topics=history":                                      nil,
			"?topics=history,keys&since=3h&after=" + first.id + "": {"the quorum is lost"},
		} {
			require.Equal(t, want, texts(a.view(question).until("history", "past").data), question)
		}
		f := a.follow(&api.FollowRequest{Topics: []string{"history"}, Since: "1h"})
		_, data := f.until("history", "past")
		require.Len(t, texts(data), 2)
		f.end()
		<-f.done

		for since, topics := range map[string][]string{"1h": {"keys"}, "yesterday": nil, "-1h": nil} {
			err := a.serve.Follow(t.Context(), &api.FollowRequest{Topics: topics, Since: since}, nil)
			require.ErrorIs(t, err, fault.Invalid, since)
			require.Equal(t, "since", fault.FieldOf(err))
		}
	}, func(c *Config) { memory.changed, c.History = make(chan struct{}), memory.since })
}
