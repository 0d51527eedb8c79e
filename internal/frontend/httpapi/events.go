package httpapi

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/blackhole/blackhole/internal/contract/discovery"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/dialect"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/pkg/fault"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Bounds of /v1/events.
const (
	maxViewers = 256
	viewerBeat = 15 * time.Second // between comments that keep the connection of a quiet viewer open
)

// eventsAPI serves the history of a peer: what mattered here within the last hour, and what is added to it.
type eventsAPI struct {
	*shared
	planes []string
	recent func(after time.Time) ([]discovery.Note, <-chan struct{})
}

func (e *eventsAPI) routes() []route {
	return []route{{pattern: "GET /v1/events", role: access.RoleReadOnly, asks: true, waits: true, serve: handler(e.serve)}}
}

// serve streams the history.
func (e *eventsAPI) serve(w http.ResponseWriter, r *http.Request) error {
	values, err := input.Known(r.URL, "after", "since")
	if err != nil {
		return err
	}
	field, after := "after", values.Get("after")
	if id := r.Header.Get("Last-Event-ID"); id != "" { // a browser reconnects to the URL of its first request
		field, after = "Last-Event-ID", id
	}
	since, err := sinceOf(after, values.Get("since"))
	if err != nil && fault.FieldOf(err) == "after" {
		return fault.Invalidf(field, fault.ValueOf(err), "%s", fault.Message(err))
	} else if err != nil {
		return err
	}
	out, beat := newEventStream(w, r), time.NewTicker(viewerBeat)
	defer beat.Stop()
	return out.end(e.follow(r.Context(), since, beat.C, func(m *api.FollowResponse) error {
		if m == nil {
			return out.write([]byte(": alive\n\n"))
		}
		return out.writeLarge(len(m.GetData()), func() (text []byte, _ error) {
			if !out.begun {
				text = fmt.Appendf(nil, "event: open\ndata: %s\n\n", dialect.JSON(e.opening(r.Context())))
			}
			return fmt.Appendf(text, "event: history\nid: %s\ndata: %s\n\n", m.GetId(), m.GetData()), nil
		})
	}))
}

// sinceOf returns the time at which a viewer's history begins: its position, or what it asks for, or now.
func sinceOf(after, text string) (time.Time, error) {
	if after != "" {
		nanos, err := strconv.ParseInt(after, 10, 64)
		if err != nil || nanos < 0 {
			return time.Time{}, fault.Invalidf("after", input.Quote(after), "is malformed: send the id of the last event")
		}
		return time.Unix(0, nanos), nil
	}
	if text == "" {
		return time.Now(), nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return time.Now().Add(-d), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fault.Invalidf("since", input.Quote(text), "must be a duration such as 1h, or a time as of RFC 3339")
	}
	return at, nil
}

// follow sends the notes after a time, as one event even if there are none, and then new ones. At each beat it sends
// nil.
func (e *eventsAPI) follow(
	ctx context.Context, since time.Time, beat <-chan time.Time, send func(*api.FollowResponse) error,
) error {
	release, err := e.viewers.Take(ctx, "httpapi.events")
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := e.untilClosing(ctx)
	defer cancel()
	for kind := "past"; ; kind = "change" {
		notes, changed := e.recent(since)
		if n := len(notes); n > 0 {
			since = notes[n-1].At
		} else {
			notes = []discovery.Note{}
		}
		if kind == "past" || len(notes) > 0 {
			id := strconv.FormatInt(max(since.UnixNano(), 0), 10)
			if err := send(&api.FollowResponse{Id: id, Data: dialect.JSON(historyEvent{kind, notes})}); err != nil {
				return err
			}
		}
		for waiting := true; waiting; {
			select {
			case <-changed:
				waiting = false
			case <-beat:
				if err := send(nil); err != nil {
					return err
				}
			case <-ctx.Done():
				return e.orClosing(fault.As("httpapi.events", fault.Canceled, ctx.Err()))
			}
		}
	}
}

// historyEvent is the data of an event of the history.
type historyEvent struct {
	Kind  string           `json:"kind"`  // past: Notes are those since the time that the viewer asked for; change
	Notes []discovery.Note `json:"notes"` // oldest first
}

// opening is the data of the first event: what the viewer sees and may do.
type opening struct {
	Planes   []string `json:"planes"` // that this peer serves: discovery, agent, coordination
	Role     string   `json:"role"`
	Name     string   `json:"name,omitempty"`     // of an authenticated viewer
	Services []string `json:"services,omitempty"` // patterns that the role service may change
	Open     bool     `json:"open,omitempty"`     // the peer asks nobody who they are: everybody is admin
	Fronts   Fronts   `json:"fronts"`
}

func (e *eventsAPI) opening(ctx context.Context) opening {
	if e.open {
		return opening{Planes: e.planes, Role: access.RoleAdmin.String(), Open: true, Fronts: e.fronts}
	}
	p := access.From(ctx)
	return opening{Planes: e.planes, Role: p.Role.String(), Name: p.Name, Services: p.Services, Fronts: e.fronts}
}

// Follow sends the history of GET /v1/events to another front end, within the same bound of viewers. It ends with ctx,
// with the server, or with an error of send.
func (s *Server) Follow(ctx context.Context, r *api.FollowRequest, send func(*api.FollowResponse) error) error {
	since, err := sinceOf(r.GetAfter(), r.GetSince())
	if err != nil {
		return fault.Wrap("httpapi.Follow", err)
	}
	return s.events.follow(ctx, since, nil, send)
}
