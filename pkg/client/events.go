package client

import (
	"context"
	"encoding/json"
	"errors"
	"iter"

	"github.com/blackhole/blackhole/pkg/coord/attempt"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// EventQuery selects events of a peer. The zero value selects all topics of the default namespace.
type EventQuery struct {
	Topics    []string // history, offers, services, keys; empty means all that the peer serves
	Types     []string // of offers; empty means storage, compute, cdn and bandwidth
	Namespace string   // of services
	Prefix    string   // of keys
	After     string   // id of the last event seen
	Since     string   // first the history since then: a duration such as 1h, or a time as of RFC 3339; empty: no past
}

// PeerEvent is one event of a peer.
type PeerEvent struct {
	Topic string          `json:"topic"`          // open is the first event of each connection
	ID    string          `json:"id,omitempty"`   // for EventQuery.After; empty if this event does not move the position
	Data  json.RawMessage `json:"data,omitempty"` // as in GET /v1/events; empty if only the position moves
}

// Events follows everything that the peer reports, until the loop or ctx ends. It connects again after a loss and
// continues at the last id.
//
// The last pair has an error: that of ctx, or one that a repetition would not change. Errors: Invalid for an unknown
// topic or a malformed id, Unsupported for a peer without events.
func (c *Client) Events(ctx context.Context, q EventQuery) iter.Seq2[PeerEvent, error] {
	return func(yield func(PeerEvent, error) bool) {
		err := c.repeat(ctx, func(run *attempt.Run) error {
			return c.followEvents(ctx, q, func(e PeerEvent) bool {
				run.Progress()
				if e.ID != "" {
					q.After = e.ID
				}
				return yield(e, nil)
			})
		})
		if !errors.Is(err, errEnough) {
			yield(PeerEvent{}, fault.Wrap("client.Events", ended(ctx, err)))
		}
	}
}

// followEvents passes events of one connection on until it breaks, or give returns false: then it returns errEnough.
func (c *Client) followEvents(ctx context.Context, q EventQuery, give func(PeerEvent) bool) error {
	const op = "client.Events"
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.events.Follow(ctx, &api.FollowRequest{
		Topics: q.Topics, Types: q.Types, Namespace: q.Namespace, Prefix: q.Prefix, After: q.After, Since: q.Since,
	})
	if err != nil {
		return fromStatus(op, err)
	}
	for {
		e, err := stream.Recv()
		if err != nil {
			return fault.Wrap(op, fromStatus(op, err))
		}
		if !give(PeerEvent{Topic: e.GetTopic(), ID: e.GetId(), Data: e.GetData()}) {
			return errEnough
		}
	}
}
