// Package sim plays whole networks of peers in virtual time. Nothing in it ships: all code is in
// its tests.
//
// Each peer is a whole discovery plane (p2p, gossip, keeper, registry, index, service) on a QUIC
// host. Its packets cross a simulated network with latency, loss, cuts and partitions. All peers
// run inside one bubble of testing/synctest, so the load of the machine changes no timing.
//
// An oracle has every record ever registered, and compares each answer with a loop over all records:
//
//   - P1: every returned record has the signature of its provider and has not expired;
//   - P2: in quiet times a complete answer equals the result of the loop, in order;
//   - P3: withdrawn records do not come back.
//
// Without hostile peers, no peer may distrust another.
//
// A seed decides faults and choices. Runs with one seed are similar, not equal: scheduler, map order
// and the random numbers of libp2p differ. So tests assert properties, never traces, and print
// figures without asserting them.
//
// Short scenarios run with go test, those of minutes with TEST_LONG. TEST_SIM, a JSON object with the fields of Params, selects
// a long scenario; "go run ./testnet sim" sets it.
package sim
