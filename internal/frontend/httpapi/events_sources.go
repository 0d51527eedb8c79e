package httpapi

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/blackhole/blackhole/internal/frontend/httpapi/dialect"
	"github.com/blackhole/blackhole/internal/frontend/httpapi/input"
	"github.com/blackhole/blackhole/pkg/coord"
	"github.com/blackhole/blackhole/pkg/coord/directory"
	"github.com/blackhole/blackhole/pkg/discovery"
	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
	apiv1 "github.com/blackhole/blackhole/proto/blackhole/api/v1"
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
	Cause    string        `json:"cause,omitempty"` // of the end of an instance, as in /v1/removed
}

func memberOf(i *instance.Instance) serviceMember {
	return serviceMember{i.Service, i.Peer, i.Brief()}
}

// services follows all services of a namespace.
func (e *eventsAPI) services(q interest) (source, error) {
	at, err := strconv.ParseUint(cmp.Or(q.after[topicServices], "0"), 10, 64)
	if err != nil {
		return nil, fault.Invalidf("after", input.Quote(q.after[topicServices]), "has a malformed position of services: send the id of the last event")
	}
	ask := instance.Query{Name: instance.Name{Namespace: q.space}, Selector: instance.Selector{AnyStatus: true}}
	return func(ctx context.Context, say func(message) error) error {
		defer e.lines.join()()
		stale := false
		return e.catalog.Watch(ctx, ask, at, func(b instance.Batch) error {
			if b.Stale != stale {
				stale = b.Stale
				data := serviceEvent{Kind: "contact", Contact: &contactBody{b.Stale, b.Reason, b.Age.Seconds()}}
				if err := say(message{topic: topicServices, data: dialect.JSON(data)}); err != nil {
					return err
				}
			}
			at = b.Index
			return say(message{topicServices, e.lines.of(b), strconv.FormatUint(b.Index, 10)})
		})
	}, nil
}

// historyEvent is the data of an event of the history.
type historyEvent struct {
	Kind  string           `json:"kind"`  // past: Notes are those since the time that the viewer asked for; change
	Notes []discovery.Note `json:"notes"` // oldest first
}

// past returns what the viewer missed, and the time after which its history goes on.
func (e *eventsAPI) past(since time.Time) (message, time.Time) {
	notes, _ := e.recent(since)
	if notes == nil {
		notes = []discovery.Note{}
	}
	return historyMessage("past", notes, since)
}

func historyMessage(kind string, notes []discovery.Note, since time.Time) (message, time.Time) {
	if n := len(notes); n > 0 {
		since = notes[n-1].At
	}
	return message{topicHistory, dialect.JSON(historyEvent{kind, notes}), strconv.FormatInt(max(since.UnixNano(), 0), 10)}, since
}

// history follows the notes after a time.
func (e *eventsAPI) history(at time.Time) source {
	return func(ctx context.Context, say func(message) error) error {
		for {
			notes, changed := e.recent(at)
			if len(notes) > 0 {
				var m message
				m, at = historyMessage("change", notes, at)
				if err := say(m); err != nil {
					return err
				}
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// keyEvent is the data of an event of keys: locks, leases and keys change with them.
type keyEvent struct {
	Kind     string       `json:"kind"` // change, or reset: list the keys anew
	Revision int64        `json:"revision"`
	Changes  []changeBody `json:"changes,omitempty"` // without values
}

// changeBody is one change of a key.
type changeBody struct {
	Type string  `json:"type"` // put or delete
	KV   keyBody `json:"kv"`
}

// keyBody is a version of a key, without its value; of a deleted one only the key and the revision of its end.
type keyBody struct {
	Key            string `json:"key"`
	KeyBase64      []byte `json:"key_base64,omitempty"` // instead of key for bytes that are not text
	CreateRevision int64  `json:"create_revision,omitempty"`
	ModRevision    int64  `json:"mod_revision"`
	Version        int64  `json:"version,omitempty"`
}

// keys follows the keys under a prefix, except those of the directory, which are the services.
func (e *eventsAPI) keys(q interest) (source, error) {
	last, err := strconv.ParseInt(cmp.Or(q.after[topicKeys], "-1"), 10, 64)
	if err != nil || last < -1 {
		return nil, fault.Invalidf("after", input.Quote(q.after[topicKeys]), "has a malformed position of keys: send the id of the last event")
	}
	if !utf8.ValidString(q.prefix) {
		return nil, fault.Invalidf("prefix", nil, "must be UTF-8")
	}
	return func(ctx context.Context, say func(message) error) error {
		first := last < 0
		watch := &apiv1.WatchKeysRequest{Key: q.prefix, Prefix: true, StartRevision: last + 1}
		err := e.coordination.Reader.Watch(ctx, watch, func(r *apiv1.WatchKeysResponse) error {
			last = r.GetNextRevision() - 1
			data := keyLine(r)
			if first { // a viewer without position lists the keys
				first, data = false, dialect.JSON(keyEvent{Kind: "reset", Revision: last})
			}
			return say(message{topicKeys, data, strconv.FormatInt(last, 10)})
		})
		var gone *coord.Compacted
		if errors.As(err, &gone) {
			last = -1
		}
		return err
	}, nil
}

// keyLine returns the data of an answer, or nil if it has no changes for viewers.
func keyLine(r *apiv1.WatchKeysResponse) []byte {
	data := keyEvent{Kind: "change", Revision: r.GetNextRevision() - 1}
	for _, ev := range r.GetEvents() {
		kv := ev.GetKv()
		if strings.HasPrefix(string(kv.GetKey()), directory.Prefix) {
			continue
		}
		c := changeBody{Type: "delete", KV: keyBody{CreateRevision: kv.GetCreateRevision(), ModRevision: kv.GetModRevision(), Version: kv.GetVersion()}}
		if ev.GetType() == apiv1.KeyEvent_PUT {
			c.Type = "put"
		}
		if c.KV.Key = string(kv.GetKey()); !utf8.ValidString(c.KV.Key) {
			c.KV.Key, c.KV.KeyBase64 = "", kv.GetKey()
		}
		data.Changes = append(data.Changes, c)
	}
	if data.Changes == nil {
		return nil
	}
	return dialect.JSON(data)
}

// maxShared bounds the instances in the lines that viewers share, except in the newest line.
const maxShared = 4096

// sharedLines encodes a batch of services once for all viewers who get it at about the same time. It knows a batch by its
// instances, which nobody changes, so viewers at different positions never get the line of each other.
type sharedLines struct {
	removed func(instance.Name) []instance.Removal // knows why an instance ended; may be nil

	mu      sync.Mutex
	readers int
	kept    []*sharedLine // oldest first; empty without readers
	total   int           // instances in kept
}

type sharedLine struct {
	reset  bool
	events []instance.Event
	data   func() []byte // encodes once
}

// join counts a reader until it calls leave. The last one forgets the lines.
func (s *sharedLines) join() (leave func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readers++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.readers--; s.readers == 0 {
			s.kept, s.total = nil, 0
		}
	}
}

// of returns the data of a batch, or nil for a batch without events.
func (s *sharedLines) of(b instance.Batch) []byte {
	if len(b.Events) == 0 {
		return s.serviceLine(b)
	}
	return s.find(b).data()
}

func (s *sharedLines) find(b instance.Batch) *sharedLine {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range slices.Backward(s.kept) {
		if l.reset == b.Reset && slices.Equal(l.events, b.Events) {
			return l
		}
	}
	l := &sharedLine{b.Reset, b.Events, sync.OnceValue(func() []byte { return s.serviceLine(b) })}
	s.kept = append(s.kept, l)
	s.total += len(l.events)
	for len(s.kept) > 1 && s.total > maxShared {
		s.total -= len(s.kept[0].events)
		s.kept = slices.Delete(s.kept, 0, 1)
	}
	return l
}

// serviceLine returns the data of a batch, or nil for a batch without events.
func (s *sharedLines) serviceLine(b instance.Batch) []byte {
	switch {
	case b.Reset:
		list := make([]serviceMember, len(b.Events))
		for n, ev := range b.Events {
			list[n] = memberOf(ev.Instance)
		}
		return dialect.JSON(serviceEvent{Kind: "reset", Instances: list})
	case len(b.Events) > 0:
		list := make([]serviceChange, len(b.Events))
		causes := s.causes(b)
		for n, ev := range b.Events {
			list[n] = serviceChange{dialect.ChangeName(ev.Type), memberOf(ev.Instance), ev.Revision, causes[ev.Instance.Key]}
		}
		return dialect.JSON(serviceEvent{Kind: "change", Changes: list})
	}
	return nil
}

// causes returns why instances of a batch ended.
func (s *sharedLines) causes(b instance.Batch) map[instance.Key]string {
	at := slices.IndexFunc(b.Events, func(e instance.Event) bool { return e.Type == instance.Removed })
	if at < 0 || s.removed == nil {
		return nil
	}
	causes := make(map[instance.Key]string)
	for _, r := range s.removed(instance.Name{Namespace: b.Events[at].Instance.Namespace}) {
		causes[r.Key] = r.Cause
	}
	for _, e := range b.Events {
		if e.Type != instance.Removed {
			delete(causes, e.Instance.Key)
		}
	}
	return causes
}
