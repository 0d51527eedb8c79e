// Package health checks instances by HTTP, TCP, the gRPC health checking
// protocol or a script, and reports whether each one is up.
//
// # State of a target
//
// A target is up after a number of consecutive passes and down after a number
// of consecutive failures, both from its check; a timeout is a failure. A
// target with repeated losses is held down until a stable period: the route
// flap damping of RFC 2439, counted in checks instead of seconds (see
// checkState). Measured targets keep one byte per check of the last hour, for
// the uptime, the error rate and response times.
//
// # Schedule
//
// The checks of a target start at phase + k*interval. The random phase spreads
// the targets. A target is in one place at a time: waiting for its moment,
// waiting for a worker, or running. A late check is therefore skipped and never
// queued twice.
//
// Slow checks do not delay others. Workers bounds the running checks. A check
// that runs longer than slowAfter moves to the slow lane, bounded by Slow, and
// frees its worker. The next check of such a target starts in the slow lane,
// and such targets use at most half of it: the other half stays free for checks
// that have just become slow. Each lane is first come, first served.
//
// After a suspension of the process or the host all targets would be due at
// once, and all running checks would seem to time out. Therefore a target more
// than half an interval late waits for its next moment. A check that ends long
// after its deadline is void, and so is a check for which this peer lacked a
// file descriptor, a port or memory: its result describes this peer and not the
// target.
//
// # Safety
//
// A registration chooses the destination of connections of this peer. A check
// therefore connects to the instance's own host alone, resolves names itself,
// applies probe.Policy to each address and dials exactly the accepted address.
// Checks follow no redirects and use no proxies, no credentials and no user
// information in URLs. A check reads at most 16 KiB of an answer, over HTTP 4 KiB
// of its body, and reports only success or failure. A script is named in the
// configuration of the peer, with its arguments, and inherits neither standard
// streams nor the environment.
package health
