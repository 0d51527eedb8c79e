// Package dnsapi answers applications over DNS, UDP and TCP: with the UP instances of a service, in
// random order by weight, and with the nodes of the cluster.
//
// docs/agent.md has the names. HEX.addr.D, below a domain D, is the target of SRV records. Tags may contain dots. A
// service is one label: a name longer than 63 bytes, or with a dot or a colon, is none. Labels have no letter case
// (RFC 4343), so services whose names differ by it alone answer together.
//
// # Existing names
//
// A name exists (NOERROR; without records NODATA, with the SOA) while a matching instance is
// registered, in any status, or while a longer name exists. Otherwise the answer is NXDOMAIN. A
// failed instance thus never makes a resolver forget the name. Names outside the domains, including
// names of addresses, are REFUSED, as are zone transfers, classes except IN, and clients
// outside the configured networks.
//
// # Hosts given by name
//
// The server does not recurse. An SRV record has such a host as its target. For A and AAAA, a
// service whose hosts are all names has one CNAME, drawn by weight. With one address among the
// hosts only addresses count, because a CNAME excludes other records (RFC 1034, section 3.6.2).
// The CNAME has TTL 0, so that no cache applies it to a question for SRV records.
//
// # Addresses
//
// An instance of this peer may have any connectable address. An instance of another peer may have
// only public addresses and those in Config.Allow: a registration must not make a name lead into
// the client's network. HEX.addr.D spells its address, so nobody registers it.
//
// # Own wire format
//
// This package packs and parses messages itself. A whole answer with 10 addresses takes 0.5 µs here, with
// 10 SRV records and their addresses 0.75 µs, and no allocation. In the same run the general library
// (miekg/dns, used for constants and fixed records) took 6 and 18 µs, with 8 and 11 allocations, to unpack
// the question and to pack such an answer. dnsmessage of golang.org/x/net took 2 µs and 3 allocations for the
// addresses. It also refuses labels with a dot, which ids of instances may have, and compresses no name
// against the target of an SRV record, so fewer additional records have room.
//
// The records of a result are packed once and kept with its View. An answer is a copy of them behind
// the client's own question, in a new order and with a new TTL.
package dnsapi
