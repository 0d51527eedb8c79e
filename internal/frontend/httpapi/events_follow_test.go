package httpapi

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

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
