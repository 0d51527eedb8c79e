// Package sim plays whole networks of peers in virtual time. It contains no code that
// ships: everything is in its tests.
//
// Each peer is what the daemon wires together (internal/p2p, gossip, keeper, registry,
// index, discovery), on a QUIC host whose packets travel through a simulated network with
// latency, loss, cuts and partitions. Where hundreds of peers are played, links may be light:
// streams then travel without packets and encryption, in the same time. All of it runs inside
// one bubble of testing/synctest, so that no timing depends on how busy the machine is.
//
// An oracle knows every record that was ever registered, and holds each answer against a
// loop over all of them:
//
//   - P1: no record is returned that its provider did not sign, or that has lapsed;
//   - P2: in quiet times a complete answer is exactly what the loop finds, in order;
//   - P3: what was withdrawn does not come back.
//
// Faults and choices come from a seed. Runs with one seed are alike, not equal: the
// scheduler, map order and libp2p's own randomness differ, so the tests assert properties
// and never traces. Figures are printed, not asserted.
//
// The short scenarios run with go test. Long ones are asked for by BLACKHOLE_SIM, a JSON
// object of the fields of Params, which is what "go run ./testnet sim" sets.
package sim
