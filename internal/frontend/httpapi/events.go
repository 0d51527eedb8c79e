package httpapi

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/dialect"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/internal/platform/access"
	"github.com/blackhole/blackhole/internal/platform/pause"
	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	"github.com/blackhole/blackhole/pkg/query"
	api "github.com/blackhole/blackhole/proto/blackhole/api/v1"
)

// Bounds of /v1/events.
const (
	maxViewers  = 256
	viewerQueue = 16       // messages between the sources of a viewer and its connection; some are as large as a state
	maxWrite    = 64 << 10 // bytes of messages that one write joins

	viewerBeat = 15 * time.Second // between comments that keep the connection of a quiet viewer open
	retryAfter = 2 * time.Second  // after the end of a source
)

// topic is one kind of events, and the name of its events.
type topic string

const (
	topicOffers   topic = "offers"
	topicServices topic = "services"
	topicKeys     topic = "keys"
	topicHistory  topic = "history"
)

// eventsAPI serves all watches of a peer in one stream: a browser has only six connections to a host. What has no watch,
// such as the group, the peers and the health, is asked for at its own path.
type eventsAPI struct {
	*shared
	finder       discovery.Finder
	catalog      instance.Catalog                                          // nil without an agent plane
	coordination *coordinationAPI                                          // nil without a coordination plane
	lines        sharedLines                                               // of the services
	recent       func(after time.Time) ([]discovery.Note, <-chan struct{}) // nil without a memory
}

func newEventsAPI(d *discoveryAPI, c *coordinationAPI, a *agentAPI) *eventsAPI {
	e := &eventsAPI{shared: d.shared, finder: d.finder, coordination: c}
	if a != nil {
		e.catalog, e.lines.removed = a.Catalog, a.Removed
	}
	return e
}

func (e *eventsAPI) routes() []route {
	return []route{{pattern: "GET /v1/events", role: access.RoleReadOnly, asks: true, waits: true, serve: handler(e.serve)}}
}

// topics returns the topics that this peer serves.
func (e *eventsAPI) topics() []topic {
	served := []topic{topicOffers}
	if e.catalog != nil {
		served = append(served, topicServices)
	}
	if e.coordination != nil {
		served = append(served, topicKeys)
	}
	if e.recent != nil {
		served = append(served, topicHistory)
	}
	return served
}

// interest is what a viewer asks for.
type interest struct {
	topics []topic
	offers query.Query
	space  string // namespace of the services
	prefix string // of the keys
	after  positions
	since  time.Time // of the history
}

// read reads the parameters of a viewer.
func (e *eventsAPI) read(r *http.Request) (interest, error) {
	values, err := input.Known(r.URL, "topics", "types", "namespace", "prefix", "after", "since")
	if err != nil {
		return interest{}, err
	}
	field, text := "after", values.Get("after")
	if id := r.Header.Get("Last-Event-ID"); id != "" { // a browser reconnects to the URL of its first request
		field, text = "Last-Event-ID", id
	}
	q, err := e.interest(&api.FollowRequest{
		Topics: listOf(values.Get("topics")), Types: listOf(values.Get("types")),
		Namespace: dialect.Namespace(values), Prefix: values.Get("prefix"), After: text,
		Since: values.Get("since"),
	})
	if err != nil && fault.FieldOf(err) == "after" {
		return q, fault.Invalidf(field, fault.ValueOf(err), "is malformed: send the id of the last event")
	}
	return q, err
}

// listOf splits a list at its commas.
func listOf(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// interest checks what a viewer asks for.
func (e *eventsAPI) interest(r *api.FollowRequest) (q interest, err error) {
	q = interest{topics: e.topics(), space: cmp.Or(r.GetNamespace(), instance.DefaultNamespace), prefix: r.GetPrefix()}
	if err := (instance.Name{Namespace: q.space, Service: "any"}).Validate(); err != nil {
		return q, err
	}
	if q.offers.Types = r.GetTypes(); len(q.offers.Types) == 0 {
		q.offers.Types = []string{"storage", "compute", "cdn", "bandwidth"}
	}
	if len(r.GetTopics()) > 0 {
		if q.topics, err = e.chosen(r.GetTopics()); err != nil {
			return q, err
		}
	}
	if q.after, err = parsePositions(r.GetAfter()); err != nil {
		return q, fault.Invalidf("after", input.Quote(r.GetAfter()), "is malformed: send the id of the last event")
	}
	q.since, err = e.since(q, r.GetSince())
	return q, err
}

// since returns the time at which a viewer's history begins: its position, or what it asks for, or now.
func (e *eventsAPI) since(q interest, text string) (time.Time, error) {
	if text != "" && !slices.Contains(q.topics, topicHistory) {
		return time.Time{}, fault.Invalidf("since", input.Quote(text), "needs the topic %s", topicHistory)
	}
	if at := q.after[topicHistory]; at != "" {
		nanos, err := strconv.ParseInt(at, 10, 64)
		if err != nil || nanos < 0 {
			return time.Time{}, fault.Invalidf("after", input.Quote(at), "has a malformed position of history: send the id of the last event")
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

// chosen returns the topics with these names, each once.
func (e *eventsAPI) chosen(names []string) (list []topic, err error) {
	served := e.topics()
	for _, name := range names {
		t := topic(name)
		if !slices.Contains(served, t) {
			return nil, fault.Invalidf("topics", input.Quote(name), "is unknown here: this peer serves %v", served)
		}
		if !slices.Contains(list, t) {
			list = append(list, t)
		}
	}
	return list, nil
}

// serve streams the events of the topics. Each topic begins with its state, or with the changes after
// the viewer's position. A viewer too slow for a topic gets the event reset of that topic's watch.
func (e *eventsAPI) serve(w http.ResponseWriter, r *http.Request) error {
	q, err := e.read(r)
	if err != nil {
		return err
	}
	return e.follow(r.Context(), q, func(ctx context.Context, queue <-chan message) error {
		v := &viewer{eventStream: newEventStream(w, r), queue: queue, at: q.after}
		v.pump(ctx, e.opening(r.Context(), q.topics))
		return nil
	})
}

// follow runs the sources of the topics while pump takes their messages.
func (e *eventsAPI) follow(ctx context.Context, q interest, pump func(context.Context, <-chan message) error) error {
	release, err := e.viewers.Take(ctx, "httpapi.events")
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := e.untilClosing(ctx)
	defer cancel()
	sources, err := e.sources(ctx, q)
	if err != nil {
		return e.orClosing(err)
	}
	f := mixer{queue: make(chan message, viewerQueue)}
	if slices.Contains(q.topics, topicHistory) {
		var past message
		past, q.since = e.past(q.since)
		f.queue <- past // has room; before all others
		sources[topicHistory] = e.history(q.since)
	}
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel() // before the wait
	for t, source := range sources {
		running.Go(func() { f.keep(ctx, t, source) })
	}
	return pump(ctx, f.queue)
}

// message is one event of a topic.
type message struct {
	topic    topic
	data     []byte // one line; nil for a mere position
	position string // resumes the topic after this message; empty if there is none
}

// mixer joins the sources of one viewer. A full queue holds the sources back, so a slow viewer costs the queue
// and the histories that all watches share.
type mixer struct{ queue chan message }

// say sends a message unless ctx ends.
func (f mixer) say(ctx context.Context, m message) error {
	select {
	case f.queue <- m:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// source sends the messages of a topic until it fails or ctx ends.
type source func(ctx context.Context, say func(message) error) error

// keep runs a source until ctx ends. The viewer learns of each outage once.
func (f mixer) keep(ctx context.Context, t topic, run source) {
	down := false
	for ctx.Err() == nil {
		err := run(ctx, func(m message) error {
			down = false
			return f.say(ctx, m)
		})
		if !down && ctx.Err() == nil {
			down = true
			_ = f.say(ctx, message{topic: t, data: dialect.JSON(outage{"interrupted", fault.Message(err)})})
		}
		pause.For(ctx, retryAfter)
	}
}

// outage tells viewers that a topic has no news for a while.
type outage struct {
	Kind    string `json:"kind"`
	Message string `json:"message"`
}

// opening is the data of the first event: what the viewer sees and may do.
type opening struct {
	Topics   []topic  `json:"topics"`
	Role     string   `json:"role"`
	Name     string   `json:"name,omitempty"`     // of an authenticated viewer
	Services []string `json:"services,omitempty"` // patterns that the role service may change
	Open     bool     `json:"open,omitempty"`     // the peer asks nobody who they are: everybody is admin
	Fronts   Fronts   `json:"fronts"`
}

func (e *eventsAPI) opening(ctx context.Context, topics []topic) opening {
	if e.open {
		return opening{Topics: topics, Role: access.RoleAdmin.String(), Open: true, Fronts: e.fronts}
	}
	p := access.From(ctx)
	return opening{Topics: topics, Role: p.Role.String(), Name: p.Name, Services: p.Services, Fronts: e.fronts}
}

// viewer is the connection of one viewer of server-sent events.
type viewer struct {
	*eventStream
	queue <-chan message
	at    positions // after the last message written
	buf   []byte
}

// pump writes messages until the connection or ctx ends.
func (v *viewer) pump(ctx context.Context, first opening) {
	err := v.begin()
	if err == nil {
		err = v.write(fmt.Appendf(nil, "event: open\ndata: %s\n\n", dialect.JSON(first)))
	}
	beat := time.NewTicker(viewerBeat)
	defer beat.Stop()
	for err == nil {
		select {
		case <-ctx.Done():
			return
		case m := <-v.queue:
			for next := &m; next != nil && err == nil; {
				err = v.writeLarge(len(next.data), func() (text []byte, _ error) {
					text, next = v.join(*next)
					return text, nil
				})
			}
		case <-beat.C:
			err = v.write([]byte(": alive\n\n"))
		}
	}
}

// join returns the text of a message and of small ones that wait behind it. A large one among them comes next.
func (v *viewer) join(m message) (text []byte, next *message) {
	text = v.append(kept(v.buf), m)
	for len(text) < maxWrite && next == nil {
		select {
		case m := <-v.queue:
			if next = &m; len(m.data) < maxWrite {
				text, next = v.append(text, m), nil
			}
			continue
		default:
		}
		break
	}
	v.buf = kept(text)
	return text, next
}

func (v *viewer) append(dst []byte, m message) []byte {
	if m.data == nil {
		dst = append(dst, ": progress\n"...)
	} else {
		dst = fmt.Appendf(dst, "event: %s\n", m.topic)
	}
	if m.position != "" {
		v.at[m.topic] = m.position
		dst = fmt.Appendf(dst, "id: %s\n", v.at)
	}
	if m.data != nil {
		dst = fmt.Appendf(dst, "data: %s\n", m.data)
	}
	return append(dst, '\n')
}

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
		err := send(&api.FollowResponse{Topic: string(topicOpen), Data: dialect.JSON(s.events.opening(ctx, q.topics))})
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
func (p positions) response(m message) *api.FollowResponse {
	out := &api.FollowResponse{Topic: string(m.topic), Data: m.data}
	if m.position != "" {
		p[m.topic] = m.position
		out.Id = p.String()
	}
	return out
}

// positions are the positions of a viewer in the topics with a history. Its text is the id of an event.
type positions map[topic]string

// String implements fmt.Stringer.
func (p positions) String() string {
	var parts []string
	for _, t := range historied() {
		if at := p[t]; at != "" {
			parts = append(parts, string(t)+":"+at)
		}
	}
	return strings.Join(parts, ",")
}

func historied() []topic { return []topic{topicOffers, topicServices, topicKeys, topicHistory} }

func parsePositions(text string) (positions, error) {
	p := positions{}
	if text == "" {
		return p, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		name, at, _ := strings.Cut(part, ":")
		if t := topic(name); !slices.Contains(historied(), t) || at == "" || p[t] != "" {
			return p, fault.Invalidf("", nil, "is no position")
		}
		p[topic(name)] = at
	}
	return p, nil
}
