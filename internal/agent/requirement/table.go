package requirement

import (
	"strings"

	"github.com/blackhole/blackhole/internal/contract/coord"
	"github.com/blackhole/blackhole/internal/contract/coord/directory"
	"github.com/blackhole/blackhole/internal/contract/coord/requirements"
	"github.com/blackhole/blackhole/pkg/fault"
)

// table counts the entries of each requirement. A change of an entry touches
// only the requirements of its service.
type table struct {
	services     map[string]*service // by key prefix; none is empty
	requirements map[string]*requirement
	counter      Counter
	due          map[string]bool // requirements with a possibly outdated status
	urgent       bool            // one of them has a new state
}

// service has the entries and requirements of a service.
type service struct {
	entries      map[string][]byte // values by key
	requirements map[string]*requirement
}

// requirement is a requirement with its matching entries.
type requirement struct {
	requirements.Requirement
	defined  coord.Revision // mod revision of the requirement
	since    coord.Revision // of the change to the present state
	problem  error          // no counting is possible
	service  string         // key prefix of the service's entries
	counts   func(value []byte) bool
	matching map[string]bool // keys
}

func newTable(c Counter) *table {
	return &table{counter: c, services: map[string]*service{}, requirements: map[string]*requirement{}, due: map[string]bool{}}
}

func (r *requirement) satisfied() bool { return r.problem == nil && len(r.matching) >= r.Min }

func (r *requirement) status() requirements.Status {
	s := requirements.Status{
		State: requirements.Insufficient, Needed: r.Min, Available: len(r.matching), Revision: r.since, Of: r.defined,
	}
	switch {
	case r.problem != nil:
		s.Problem = fault.Message(r.problem)
	case r.satisfied():
		s.State = requirements.Satisfied
	}
	return s
}

// count counts an entry; a nil value means none.
func (r *requirement) count(key string, value []byte) {
	if value != nil && r.problem == nil && r.counts(value) {
		r.matching[key] = true
	} else {
		delete(r.matching, key)
	}
}

// change applies a change of a directory entry; a nil value deletes it.
func (t *table) change(key string, value []byte, at coord.Revision) {
	prefix := key[:strings.LastIndexByte(key, '/')+1]
	s := t.service(prefix)
	if s.entries[key] = value; value == nil {
		delete(s.entries, key)
	}
	for name, r := range s.requirements {
		available, satisfied := len(r.matching), r.satisfied()
		r.count(key, value)
		if len(r.matching) != available {
			t.due[name] = true
		}
		if r.satisfied() != satisfied {
			r.since, t.urgent = at, true
		}
	}
	t.tidy(prefix)
}

// define applies a change of a requirement; nil deletes it.
func (t *table) define(name string, value []byte, at coord.Revision) {
	t.due[name], t.urgent = true, true
	if old := t.requirements[name]; old != nil {
		delete(t.requirements, name)
		delete(t.services[old.service].requirements, name)
		t.tidy(old.service)
	}
	if value == nil {
		return
	}
	r := &requirement{defined: at, since: at, matching: map[string]bool{}}
	var namespace, service string
	if r.Requirement, r.problem = requirements.Of(requirements.Key(name), value); r.problem == nil {
		namespace, service, r.counts, r.problem = t.counter(r.Question)
	}
	r.service = directory.Span(namespace, service).From
	t.requirements[name] = r
	s := t.service(r.service)
	s.requirements[name] = r
	for key, value := range s.entries {
		r.count(key, value)
	}
}

func (t *table) service(prefix string) *service {
	s := t.services[prefix]
	if s == nil {
		s = &service{entries: map[string][]byte{}, requirements: map[string]*requirement{}}
		t.services[prefix] = s
	}
	return s
}

// tidy forgets an empty service.
func (t *table) tidy(prefix string) {
	if s := t.services[prefix]; len(s.entries)+len(s.requirements) == 0 {
		delete(t.services, prefix)
	}
}
