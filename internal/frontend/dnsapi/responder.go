package dnsapi

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/blackhole/blackhole/pkg/fault"
	"github.com/blackhole/blackhole/pkg/instance"
)

const (
	maxCached = 1024        // answers in each half of the cache of a responder
	expiryFor = time.Second // lifetime of a known expiry, which heartbeats only postpone
)

// responder turns questions into answers. One goroutine at a time uses it, so that it needs no
// locks.
type responder struct {
	*Config
	server  *Server
	counts  *counts
	query   query
	builder answerBuilder
	cache   *recent[*cached]
}

// cached is a packed answer about a service.
type cached struct {
	zone   *zone
	name   name
	view   *instance.View // source of the answer
	list   []*instance.Instance
	answer answer

	expires time.Time // first expiry in list; zero if this peer answers for no instance
	asked   time.Time // time of the last look at expires
}

// newResponder makes a responder whose counts are part of s.Stats. The caller holds s.mu.
func newResponder(s *Server) *responder {
	r := &responder{Config: &s.config, server: s, counts: &counts{}, cache: newRecent[*cached](maxCached)}
	s.counted = append(s.counted, r.counts)
	r.builder.order.rand = rand.New(rand.NewPCG(r.Random(), r.Random()))
	return r
}

// respond appends the answer to a message to out, or nothing if the message gets no answer.
func (r *responder) respond(out, msg []byte, client netip.Addr, udp bool) (answered []byte) {
	defer r.recovered(out, &answered)
	r.counts.query(udp)
	rcode, ok := r.query.parse(msg)
	if !ok {
		r.counts.dropped.Add(1)
		return out
	}
	limit := maxMessage
	if udp {
		limit = r.query.size
		switch r.server.limiter.decide(client) {
		case rateDrop:
			r.counts.limited.Add(1)
			return out
		case rateAskOverTCP:
			r.counts.limited.Add(1)
			return r.askOverTCP(out)
		}
	}
	a := answer{rcode: rcode}
	if rcode == dns.RcodeSuccess {
		a = r.answer(client)
	}
	out = r.builder.build(out, &r.query, &a, limit)
	r.counts.answer(a.rcode, r.builder.truncated)
	return out
}

// recovered turns a panic into a lost answer: a packet must not end the daemon.
func (r *responder) recovered(out []byte, answered *[]byte) {
	if p := recover(); p != nil {
		r.Logger.Error("a DNS question caused a panic", "panic", p, "stack", string(debug.Stack()))
		*answered = out
	}
}

// askOverTCP appends an empty answer marked as truncated.
func (r *responder) askOverTCP(out []byte) []byte {
	base := len(out)
	out = appendHeader(out, &r.query, &answer{})
	out[base+2] |= bitTC >> 8
	return out
}

// answer finds the answer to the question.
func (r *responder) answer(client netip.Addr) answer {
	q := &r.query
	if c, ok := r.cache.get(q.cacheKey()); ok && q.qclass == dns.ClassINET && serves(client) {
		return r.service(c)
	}
	z, labels := find(r.server.zones, q.name())
	switch {
	case z == nil || q.qclass != dns.ClassINET || !serves(client), q.qtype == dns.TypeAXFR, q.qtype == dns.TypeIXFR:
		return answer{rcode: dns.RcodeRefused}
	case q.qtype == dns.TypeOPT, q.qtype >= 128 && q.qtype <= 254: // RFC 6895, section 3.1: types that are not data
		return answer{rcode: dns.RcodeNotImplemented}
	}
	a := r.lookup(z, parseName(labels))
	if q.qtype == dns.TypeANY && a.rcode == dns.RcodeSuccess && !a.soa {
		return answer{zone: z, records: []record{z.minimal}, ttl: a.ttl, extended: a.extended}
	}
	return a
}

// serves reports whether a client gets answers: this host and private networks. The name server is for the neighbours of its
// private address, and an answer to a public one can be a part of an attack on it.
func serves(client netip.Addr) bool {
	return client.IsLoopback() || client.IsPrivate() || client.IsLinkLocalUnicast()
}

// lookup answers about a name below a zone.
func (r *responder) lookup(z *zone, n name) answer {
	switch n.form {
	case formApex:
		return r.apex(z)
	case formServer:
		return r.node(z, r.self())
	case formInner:
		return r.inner(z, n)
	case formService:
		c := &cached{zone: z, name: n}
		a := r.service(c)
		if c.view != nil {
			r.cache.put(bytes.Clone(r.query.cacheKey()), c)
		}
		return a
	case formTypes:
		return r.types(z, n)
	case formNode:
		if node, ok := r.Node(n.label); ok && (n.zone == "" || node.Zone == n.zone) {
			return r.node(z, node)
		}
	case formAddr:
		if a, ok := parseAddress(n.label); ok {
			return r.node(z, Node{Addrs: []netip.Addr{a}})
		}
	}
	return nothing(z)
}

// self returns the node of this peer.
func (r *responder) self() Node {
	if r.SelfName == "" {
		return Node{}
	}
	n, _ := r.Node(r.SelfName)
	return n
}

// nothing is the answer for a name that does not exist.
func nothing(z *zone) answer { return answer{rcode: dns.RcodeNameError, zone: z, soa: true} }

func (r *responder) seconds() uint32 { return uint32(r.TTL / time.Second) }

// apex answers about a domain itself.
func (r *responder) apex(z *zone) answer {
	switch r.query.qtype {
	case dns.TypeSOA, dns.TypeANY:
		return answer{zone: z, records: []record{z.soa}, ttl: uint32(negativeTTL / time.Second), uniform: true}
	case dns.TypeNS:
		return answer{zone: z, records: []record{z.ns}, ttl: r.seconds(), uniform: true}
	}
	return answer{zone: z, soa: true}
}

// node answers about a name with addresses and texts.
func (r *responder) node(z *zone, n Node) answer {
	a := answer{zone: z, ttl: r.seconds(), uniform: true}
	qtype := r.query.qtype
	for _, addr := range n.Addrs {
		addr = addr.Unmap()
		if connectable(addr) && (qtype == addressType(addr) || qtype == dns.TypeANY) {
			a.records = append(a.records, addressRecord(addr, 1))
		}
	}
	if len(n.Text) > 0 && (qtype == dns.TypeTXT || qtype == dns.TypeANY) {
		a.records = append(a.records, textRecord(n.Text))
	}
	a.soa = len(a.records) == 0
	return a
}

// types answers with the services of a namespace, as types of DNS-SD.
func (r *responder) types(z *zone, n name) answer {
	exists, err := r.server.existing.exist(r.server.closing, n, r.Now())
	if err == nil && !exists {
		return nothing(z)
	}
	var services instance.Services
	if err == nil {
		services, err = r.Catalog.Services(r.server.closing, n.inNamespace())
	}
	if err != nil {
		return failure(z, err)
	}
	a := answer{zone: z, ttl: r.seconds(), uniform: true}
	seen := make(map[string]bool)
	for _, one := range services.Services {
		folded := strings.ToLower(one.Name)
		if r.query.qtype == dns.TypePTR && len(folded) < maxLabel && isService(folded) && !seen[folded] {
			a.records, seen[folded] = append(a.records, serviceTypeRecord(one.Name)), true
		}
	}
	a.soa = len(a.records) == 0
	return a
}

// inner answers about an empty non-terminal, a name that has only longer names.
func (r *responder) inner(z *zone, n name) answer {
	exists, err := r.server.existing.exist(r.server.closing, n, r.Now())
	switch {
	case err != nil:
		return failure(z, err)
	case !exists:
		return nothing(z)
	}
	return answer{zone: z, soa: true}
}

// service answers about a service, from c while its view is current. Afterwards c has a view if it
// may be cached.
func (r *responder) service(c *cached) answer {
	result, err := r.discover(c.name, instance.Selector{})
	if err != nil {
		return failure(c.zone, err)
	}
	now := r.Now()
	if result.View != c.view || c.view == nil {
		list := c.name.pick(result.Instances)
		if len(list) == 0 {
			c.view = nil
			return r.absent(c, result.Contact)
		}
		c.view, c.list, c.asked = result.View, list, time.Time{}
		c.answer = *newService(r.server.rule, c.zone, c.name, list, r.query.qtype)
	}
	if since := now.Sub(c.asked); since >= expiryFor || since < 0 {
		c.expires, c.asked = r.Catalog.Expires(c.list), now
	}
	a := c.answer
	a.ttl = r.ttl(c.expires, now)
	if a.one { // no cache may apply an alias to other types
		a.ttl = 0
	}
	if result.Stale {
		a.extended = stale(result.Contact)
	}
	return a
}

// discover returns the instances of a service in all its spellings. Two spellings with instances have a new View each
// time, so that no cache keeps an answer of one of them.
func (r *responder) discover(n name, s instance.Selector) (instance.Result, error) {
	result, err := r.Catalog.Discover(r.server.closing, instance.Query{Name: n.of(), Selector: s})
	for _, other := range r.Catalog.Spellings(n.of()) {
		if err != nil {
			break
		}
		var more instance.Result
		more, err = r.Catalog.Discover(r.server.closing, instance.Query{Name: other, Selector: s})
		switch {
		case err != nil || len(more.Instances) == 0:
		case len(result.Instances) == 0:
			result.View = more.View
		default:
			result.View = &instance.View{Instances: slices.Concat(result.Instances, more.Instances)}
		}
	}
	return result, err
}

// ttl is the time until the first instance could become unhealthy, at most the configured TTL.
func (r *responder) ttl(expires, now time.Time) uint32 {
	ttl := r.TTL
	if !expires.IsZero() {
		ttl = min(ttl, max(expires.Sub(now), 0))
	}
	return uint32(ttl / time.Second)
}

// absent answers about a service without UP instances.
func (r *responder) absent(c *cached, contact instance.Contact) answer {
	result, err := r.discover(c.name, instance.Selector{AnyStatus: true})
	if err != nil {
		return failure(c.zone, err)
	}
	a := nothing(c.zone)
	for _, i := range result.Instances {
		if c.name.picks(i) || c.name.above(i) {
			a.rcode = dns.RcodeSuccess
			break
		}
	}
	if contact.Stale {
		a.extended = stale(contact)
		if a.rcode == dns.RcodeNameError {
			a.extended.code = dns.ExtendedErrorCodeStaleNXDOMAINAnswer
		}
	}
	return a
}

// pick returns the instances that match the id, the tag and the zone of a name.
func (n name) pick(list []*instance.Instance) []*instance.Instance {
	if n.tag == "" && n.zone == "" && n.id == "" {
		return list
	}
	var some []*instance.Instance
	for _, i := range list {
		if n.picks(i) {
			some = append(some, i)
		}
	}
	return some
}

func stale(c instance.Contact) extendedError {
	return extendedError{code: dns.ExtendedErrorCodeStaleAnswer, text: c.Reason, set: true}
}

// failure is the table from kinds of faults to answers.
func failure(z *zone, err error) answer {
	code := dns.ExtendedErrorCodeOther
	switch fault.KindOf(err) {
	case fault.Invalid, fault.NotFound:
		return nothing(z) // such a name cannot be registered
	case fault.Unavailable, fault.Timeout:
		code = dns.ExtendedErrorCodeNotReady
	}
	a := answer{rcode: dns.RcodeServerFailure, extended: extendedError{code: code, set: true}}
	if code == dns.ExtendedErrorCodeNotReady {
		a.extended.text = fault.Message(err) // other errors may reveal internals
	}
	return a
}
