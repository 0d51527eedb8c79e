// Package health finds out whether instances are healthy: it checks them by HTTP, TCP, the gRPC
// health checking protocol or a script, at their intervals, and says of each whether it is up.
//
// # Verdict
//
// An instance is up after as many passes in a row as its check asks for, and down after as many
// failures; a timeout is a failure. One that goes down again and again is held down until it has
// stayed up for a while: the damping of flapping routes of RFC 2439, counted in checks in place
// of seconds (see verdict). Of the last hour the share of time up, the share of failures and the
// response times are kept, one byte for each check, of the targets for which somebody asks.
//
// # Schedule
//
// A target is checked at the moments phase + k*interval, the phase drawn at random when it is
// set, so that checks do not bunch. It is in one place at a time: waiting for its moment, waiting
// for a worker, or being checked. What is late is therefore skipped and never queued twice.
//
// Checks that take long do not delay the others. Workers bounds those that are at work; one that
// has been running for longer than patience moves over to the lane of slow ones, bounded by Slow,
// and makes room. A target that was slow the last time starts there, and such targets never take
// more than half of that lane: what has become slow just now always finds room. Within a lane it
// is first come, first served.
//
// After a suspension of the process or the host everything would be due at once, and every check
// that was under way would look like a timeout. Therefore a target that is found more than half an
// interval late waits for its next moment, and a check that ended long after its deadline, or
// for which this peer lacked a file descriptor, a port or memory, is void: it says something of this
// peer and nothing of the target.
//
// # Safety
//
// Whoever can register an instance chooses where this peer connects to. So a check goes to the
// instance's own host and nowhere else, a name is resolved here, each of its addresses is judged
// (see gate), and what is dialled is the very address that was judged: no second resolution could
// give another one. There are no redirects, no proxies, no credentials, no user information in URLs.
// Of an answer 16 KiB are read at most, 4 KiB of its body, and nothing of it is told but whether
// the check passed. A script is one that the configuration of the peer names, with its
// arguments; it inherits neither standard streams nor the environment.
package health
