// Package examples holds small programs with the Go SDK, pkg/client. provider offers a
// service, consumer finds it, and offers has files for "blackholed offer register -f". The package
// itself has only tests, which run the programs against a real peer.
package examples
