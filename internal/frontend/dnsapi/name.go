package dnsapi

import (
	"cmp"
	"strings"

	"github.com/blackhole/blackhole/pkg/instance"
)

// form is the kind of a name below a domain.
type form uint8

const (
	formNone    form = iota // never exists
	formApex                // the domain itself
	formServer              // ns.D
	formInner               // an empty non-terminal: only longer names exist
	formService             // [TAG.]SERVICE.service
	formNode                // NODE.node
	formAddr                // HEX.addr
	formTypes               // _services._dns-sd._udp: the services (RFC 6763, section 9)
)

// Reserved labels.
const (
	labelService   = "service"
	labelNode      = "node"
	labelAddr      = "addr"
	labelZone      = "zone"
	labelDC        = "dc"  // Consul's word for a zone
	labelHere      = "dc1" // the data center that Consul's front names: all zones
	labelNamespace = "ns"
	labelTCP       = "_tcp"
	labelUDP       = "_udp"
	labelSD        = "_dns-sd"
)

// name is a parsed name below a domain, in lower case.
type name struct {
	form      form
	namespace string // empty means instance.DefaultNamespace
	zone      string // empty means any
	tag       string // empty means any
	id        string // of one instance; empty means any
	label     string // name of the service, the node or the address
	browsed   bool   // _SERVICE._tcp, which has the names of its instances below it
}

// of returns the service.
func (n name) of() instance.Name {
	return instance.Name{Namespace: n.inNamespace(), Service: n.label}
}

func (n name) inNamespace() string { return cmp.Or(n.namespace, instance.DefaultNamespace) }

// parseName reads the labels in front of a domain, in lower case.
func parseName(labels []string) name {
	if len(labels) == 0 {
		return name{form: formApex}
	}
	if len(labels) == 1 && labels[0] == labelNamespace {
		return name{form: formServer}
	}
	n, labels, ok := parseWhere(labels)
	if !ok {
		return name{}
	}
	what := parseWhat(labels)
	what.namespace, what.zone = n.namespace, n.zone
	n = what
	switch n.form {
	case formNode:
		if n.namespace != "" {
			return name{}
		}
	case formAddr:
		if n.namespace != "" || n.zone != "" {
			return name{}
		}
	}
	return n
}

// parseWhere removes the namespace and the zone from the end, in either order.
func parseWhere(labels []string) (n name, rest []string, ok bool) {
	for len(labels) >= 2 {
		value := labels[len(labels)-2]
		field := &n.zone
		switch labels[len(labels)-1] {
		case labelNamespace:
			field = &n.namespace
		case labelZone, labelDC:
			if value == labelHere && labels[len(labels)-1] == labelDC {
				labels = labels[:len(labels)-2]
				continue
			}
		default:
			return parseBareZone(n, labels)
		}
		if *field != "" || !isPlain(value) {
			return name{}, nil, false
		}
		*field = value
		labels = labels[:len(labels)-2]
	}
	return parseBareZone(n, labels)
}

// parseBareZone removes a zone without the label "zone" from the end.
func parseBareZone(n name, labels []string) (name, []string, bool) {
	if len(labels) == 0 {
		return n, nil, true
	}
	last := labels[len(labels)-1]
	switch last {
	case labelService, labelNode, labelAddr, labelZone, labelDC, labelNamespace:
		return n, labels, true
	}
	if last[0] == '_' {
		return n, labels, true
	}
	if last == labelHere {
		return n, labels[:len(labels)-1], true
	}
	if n.zone != "" || !isPlain(last) {
		return name{}, nil, false
	}
	n.zone = last
	return n, labels[:len(labels)-1], true
}

// parseWhat reads the labels in front of the namespace and the zone.
func parseWhat(labels []string) name {
	if len(labels) == 0 {
		return name{form: formInner}
	}
	last, front := labels[len(labels)-1], labels[:len(labels)-1]
	switch last {
	case labelService:
		return parseService(front)
	case labelNode, labelAddr:
		f := formNode
		if last == labelAddr {
			f = formAddr
		}
		switch len(front) {
		case 0:
			return name{form: formInner}
		case 1:
			return name{form: f, label: front[0]}
		}
		return name{}
	case labelZone, labelDC, labelNamespace:
		if len(front) == 0 {
			return name{form: formInner}
		}
		return name{}
	}
	return parseService(labels) // RFC 2782 without the word service
}

// parseService reads [TAG.]SERVICE, _SERVICE._TAG, [ID.]_SERVICE._tcp or _services._dns-sd._udp.
func parseService(labels []string) name {
	count := len(labels)
	n := name{form: formService}
	switch {
	case count == 0 || labels[count-1] == labelUDP && (count == 1 || count == 2 && labels[0] == labelSD) || count == 1 && labels[0] == labelTCP:
		return name{form: formInner}
	case count == 3 && labels[1] == labelSD && labels[2] == labelUDP:
		if labels[0] != "_services" {
			return name{}
		}
		return name{form: formTypes}
	case count == 3 && labels[1][0] == '_' && labels[2] == labelTCP:
		n.id, n.label = labels[0], labels[1][1:]
	case count == 2 && labels[0][0] == '_' && labels[1][0] == '_':
		n.label, n.tag = labels[0][1:], labels[1][1:]
		if n.browsed = labels[1] == labelTCP; n.browsed {
			n.tag = ""
		} else if n.tag == "" {
			return name{}
		}
	default:
		n.label, n.tag = labels[count-1], strings.Join(labels[:count-1], ".")
	}
	if !isService(n.label) {
		return name{}
	}
	return n
}

// isService reports whether a label in lower case can be a service.
func isService(label string) bool { return isPlain(strings.ReplaceAll(label, "_", "-")) }

// isPlain reports whether a label can be a namespace or a zone.
func isPlain(label string) bool {
	for i := range len(label) {
		c := label[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return label != ""
}
