package httpapi

import (
	"context"
	"strings"

	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// topicOpen is the name of the first event.
const topicOpen topic = "open"

// Follow sends the events of GET /v1/events to another front end, from the same watches and within the same bound of
// viewers. It ends with ctx, with the server, or with an error of send.
func (s *Server) Follow(ctx context.Context, r *api.FollowRequest, send func(*api.FollowResponse) error) error {
	q, err := s.events.interest(r)
	if err != nil {
		return fault.Wrap("httpapi.Follow", err)
	}
	return s.events.follow(ctx, q, func(running context.Context, queue <-chan message) error {
		err := send(&api.FollowResponse{Topic: string(topicOpen), Data: line(s.events.opening(ctx, q.topics))})
		for at := q.after; err == nil; {
			select {
			case <-running.Done():
				return s.shared.orClosing(fault.As("httpapi.Follow", fault.Canceled, running.Err()))
			case m := <-queue:
				err = send(at.response(m))
			}
		}
		return err
	})
}

// response moves the positions to a message and returns its form for other front ends.
func (p *positions) response(m message) *api.FollowResponse {
	out := &api.FollowResponse{Topic: string(m.topic), Data: m.data}
	if m.position != "" {
		p.set(m.topic, m.position)
		out.Id = p.String()
	}
	return out
}

// positions are the positions of a viewer in the topics with a history. Its text is the id of an event.
type positions struct{ offers, services, keys string }

func (p *positions) of(t topic) *string {
	switch t {
	case topicOffers:
		return &p.offers
	case topicServices:
		return &p.services
	case topicKeys:
		return &p.keys
	}
	return nil
}

func (p *positions) set(t topic, position string) { *p.of(t) = position }

// String implements fmt.Stringer.
func (p positions) String() string {
	var parts []string
	for _, t := range []topic{topicOffers, topicServices, topicKeys} {
		if at := *p.of(t); at != "" {
			parts = append(parts, string(t)+":"+at)
		}
	}
	return strings.Join(parts, ",")
}

func parsePositions(text string) (p positions, err error) {
	if text == "" {
		return p, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		name, at, _ := strings.Cut(part, ":")
		field := p.of(topic(name))
		if field == nil || at == "" || *field != "" {
			return p, fault.Invalidf("", nil, "is no position")
		}
		*field = at
	}
	return p, nil
}
