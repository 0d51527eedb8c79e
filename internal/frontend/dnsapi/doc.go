// Package dnsapi answers applications over DNS, UDP and TCP: the instances of a service that are
// UP, in an order drawn by weight, and the nodes of the cluster.
//
// Names, where D is one of the domains, blackhole. and consul. unless configured, and case does not matter:
//
//	[TAG.]SERVICE.service[.ZONE.zone][.NAMESPACE.ns].D    A, AAAA, SRV, TXT
//	_SERVICE._tcp[.service][.ZONE.zone][.NAMESPACE.ns].D  the same (RFC 2782)
//	_SERVICE._TAG[.service][.ZONE.zone][.NAMESPACE.ns].D  the same, with a tag
//	NODE.node[.ZONE.zone].D                               A, AAAA, TXT
//	HEX.addr.D                                            A or AAAA: the targets of SRV records
//	ns.D                                                  A, AAAA of this peer
//	D                                                     SOA, NS
//
// ZONE.dc is ZONE.zone, and so is ZONE alone. A tag may have dots in it. A service whose name is longer
// than 63 bytes, the longest label, has no name here.
//
// # What is there and what is not
//
// A name exists (NOERROR, empty if need be, with the SOA: NODATA) while an instance is registered that
// it asks for, be it UP or not, and while a longer name exists; otherwise the answer is NXDOMAIN. A
// failed instance thus never makes a resolver forget the name. Whatever is not below a domain is
// REFUSED, names of addresses (PTR) too, as are zone transfers, classes other than IN and clients that are not configured.
//
// # Hosts that are names
//
// The server does not recurse. An SRV record names such a host itself. For A and AAAA a service all of
// whose hosts are names answers with one CNAME, drawn by weight; as soon as one has an address only
// those with addresses count, because a CNAME admits no other record beside it (RFC 1034, section
// 3.6.2). Such a CNAME has TTL 0, so that no cache applies it to a question for SRV records.
//
// # Addresses
//
// An instance of this peer may have any address that can be connected to. One of another peer may only
// have public ones and those of Config.Allow, so that nobody's registration makes a name lead into
// the network of who asks. HEX.addr.D gives the address that it spells: nobody registers it.
//
// # How it is fast
//
// The records of a result are packed once and kept with its View. An answer is those records copied
// behind the client's own question, in a new order, with the TTL written in: no message is built.
package dnsapi
