package httpapi

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

// sources returns the sources of the topics. Each continues at its position when it runs again. A
// question that a watch refuses fails here, before the answer begins.
func (e *eventsAPI) sources(ctx context.Context, q interest) (map[topic]source, error) {
	all := map[topic]source{}
	for _, t := range q.topics {
		var err error
		switch t {
		case topicServices:
			all[t], err = e.services(q)
		case topicKeys:
			all[t], err = e.keys(q)
		case topicGroup:
			all[t] = sampled(e.groups)
		case topicPeers:
			all[t] = e.peers
		case topicHealth:
			all[t] = sampled(e.conditions)
		}
		if err != nil {
			return nil, err
		}
	}
	if !slices.Contains(q.topics, topicOffers) {
		return all, nil
	}
	var err error
	all[topicOffers], err = e.offers(ctx, q) // last, because it opens a watch
	return all, err
}

// serviceEvent is the data of an event of services.
type serviceEvent struct {
	Kind      string          `json:"kind"` // reset: Instances are all of them; change; contact
	Instances []serviceMember `json:"instances,omitempty"`
	Changes   []serviceChange `json:"changes,omitempty"`
	Contact   *contactBody    `json:"contact,omitempty"`
}

// serviceMember is an instance with the name of its service.
type serviceMember struct {
	Service string `json:"service"`
	Peer    string `json:"peer,omitempty"`
	*instance.BriefJSON
}

type serviceChange struct {
	Type     string        `json:"type"` // as of /v1/services/{service}/watch
	Instance serviceMember `json:"instance"`
	Revision uint64        `json:"revision"`
}

func memberOf(i *instance.Instance) serviceMember {
	return serviceMember{i.Service, i.Peer, instance.Brief(i)}
}

// services follows all services of a namespace.
func (e *eventsAPI) services(q interest) (source, error) {
	at, err := strconv.ParseUint(cmp.Or(q.after.services, "0"), 10, 64)
	if err != nil {
		return nil, fault.Invalidf("after", input.Quote(q.after.services), "has a malformed position of services: send the id of the last event")
	}
	ask := instance.Query{Name: instance.Name{Namespace: q.space}, Selector: instance.Selector{AnyStatus: true}}
	return func(ctx context.Context, say func(message) error) error {
		defer e.lines.join()()
		stale := false
		return e.catalog.Watch(ctx, ask, at, func(b instance.Batch) error {
			if b.Stale != stale {
				stale = b.Stale
				data := serviceEvent{Kind: "contact", Contact: &contactBody{b.Stale, b.Reason, b.Age.Seconds()}}
				if err := say(message{topic: topicServices, data: line(data)}); err != nil {
					return err
				}
			}
			at = b.Index
			return say(message{topicServices, e.lines.of(b), strconv.FormatUint(b.Index, 10)})
		})
	}, nil
}

// keyEvent is the data of an event of keys: locks, leases and keys change with them.
type keyEvent struct {
	Kind     string         `json:"kind"` // change, or reset: list the keys anew
	Revision coord.Revision `json:"revision"`
	Changes  []changeBody   `json:"changes,omitempty"` // without values
}

// keys follows the keys under a prefix, except those of the directory, which are the services.
func (e *eventsAPI) keys(q interest) (source, error) {
	last, err := strconv.ParseInt(cmp.Or(q.after.keys, "-1"), 10, 64)
	if err != nil || last < -1 {
		return nil, fault.Invalidf("after", input.Quote(q.after.keys), "has a malformed position of keys: send the id of the last event")
	}
	return func(ctx context.Context, say func(message) error) error {
		first := last < 0
		err := e.coordination.Reader.Watch(ctx, coord.Watch{Span: coord.Under(q.prefix), From: coord.Revision(last + 1)}, func(b coord.Batch, _ coord.Header) error {
			data, position := keyLine(b), strconv.FormatInt(int64(b.Next-1), 10)
			if first { // a viewer without position lists the keys
				first, data = false, line(keyEvent{Kind: "reset", Revision: b.Next - 1})
			}
			last = int64(b.Next - 1)
			return say(message{topicKeys, data, position})
		})
		var gone *coord.Compacted
		if errors.As(err, &gone) {
			last = -1
		}
		return err
	}, nil
}

// keyLine returns the data of a batch, or nil if it has no changes for viewers.
func keyLine(b coord.Batch) []byte {
	data := keyEvent{Kind: "change", Revision: b.Next - 1}
	for _, ev := range b.Events {
		if coord.Under(coord.DirectoryPrefix).Contains(ev.Key) {
			continue
		}
		c := changeBody{Type: "delete", KV: fromKeyValue(&coord.KeyValue{Key: ev.Key, ModRevision: ev.Revision})}
		if !ev.Deletes() {
			bare := *ev.KV
			bare.Value = nil
			c.Type, c.KV = "put", fromKeyValue(&bare)
		}
		data.Changes = append(data.Changes, c)
	}
	if data.Changes == nil {
		return nil
	}
	return line(data)
}

// lately makes viewers share their looks at a state: the peer looks once for all of them.
type lately[T any] struct {
	see  func(context.Context) T
	turn chan struct{} // of the one who looks; guards the fields below
	at   time.Time
	last T
}

func newLately[T any](see func(context.Context) T) *lately[T] {
	return &lately[T]{see: see, turn: make(chan struct{}, 1)}
}

// look returns a state that is at most half of sampleEvery old. It fails if ctx ends before.
func (l *lately[T]) look(ctx context.Context) (T, error) {
	select {
	case l.turn <- struct{}{}:
	case <-ctx.Done():
		return l.none(ctx)
	}
	defer func() { <-l.turn }()
	if !l.at.IsZero() && time.Since(l.at) < sampleEvery/2 {
		return l.last, nil
	}
	seen := l.see(ctx)
	if ctx.Err() != nil { // a viewer that leaves must not tell the others that the group is gone
		return l.none(ctx)
	}
	l.at, l.last = time.Now(), seen
	return seen, nil
}

func (l *lately[T]) none(ctx context.Context) (none T, err error) { return none, ctx.Err() }

// state is a message, and the part of it that makes it news.
type state struct {
	message
	same []byte
}

// sampled looks at a state at intervals and sends each new one. It serves states without a watch.
func sampled(l *lately[state]) source {
	return func(ctx context.Context, say func(message) error) error {
		var last []byte
		return each(ctx, func() error {
			s, err := l.look(ctx)
			if err != nil || bytes.Equal(last, s.same) {
				return err
			}
			last = s.same
			return say(s.message)
		})
	}
}

// each calls do at once and at every sample until it fails or ctx ends.
func each(ctx context.Context, do func() error) error {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		if err := do(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// groupEvent is the data of an event of the group.
type groupEvent struct {
	Kind  string           `json:"kind"`
	Group coord.GroupState `json:"group"`
}

// group compares without what changes in every healthy moment.
func (e *eventsAPI) group(ctx context.Context) state {
	ctx, cancel := context.WithTimeout(ctx, sampleEvery)
	defer cancel()
	g, err := e.coordination.Admin.Group(ctx)
	if err != nil {
		g.Missing = fault.Message(err)
	}
	m := message{topic: topicGroup, data: line(groupEvent{"state", g})}
	g.Revision, g.Leases, g.Locks, g.Keys = 0, 0, 0, 0
	g.Voters, g.Learners = settled(g.Voters), settled(g.Learners)
	return state{m, line(g)}
}

func settled(list []coord.Member) []coord.Member {
	out := make([]coord.Member, len(list))
	for i, m := range list {
		m.Applied, m.Lag, m.Silent = 0, 0, 0
		out[i] = m
	}
	return out
}

// healthEvent is the data of an event of health.
type healthEvent struct {
	Kind   string     `json:"kind"`
	Health healthBody `json:"health"`
}

func (e *eventsAPI) condition(context.Context) state {
	_, body := e.health()
	m := message{topic: topicHealth, data: line(healthEvent{"state", body})}
	body.registryHealth, body.Group = nil, nil // counts and times; the topic of its own
	return state{m, line(body)}
}

// peerEvent is the data of an event of peers.
type peerEvent struct {
	Kind  string               `json:"kind"` // state, joined or left
	Peers []discovery.PeerInfo `json:"peers"`
}

// peers sends the connected peers, then those who come and go.
func (e *eventsAPI) peers(ctx context.Context, say func(message) error) error {
	var known map[string]discovery.PeerInfo
	return each(ctx, func() error {
		list, err := e.connected.look(ctx)
		if err != nil {
			return err
		}
		now := map[string]discovery.PeerInfo{}
		joined, left := []discovery.PeerInfo{}, []discovery.PeerInfo{}
		for _, p := range list {
			now[p.ID] = p
			if _, old := known[p.ID]; !old {
				joined = append(joined, p)
			}
		}
		for id, p := range known {
			if _, still := now[id]; !still {
				left = append(left, p)
			}
		}
		kind := "joined"
		if known == nil {
			kind = "state"
		}
		known = now
		if len(joined) > 0 || kind == "state" {
			if err := say(message{topic: topicPeers, data: line(peerEvent{kind, joined})}); err != nil {
				return err
			}
		}
		if len(left) == 0 {
			return nil
		}
		return say(message{topic: topicPeers, data: line(peerEvent{"left", left})})
	})
}
