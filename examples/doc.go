// Package examples holds small programs on the Go SDK, pkg/client, and offers to register:
// provider and consumer are a service's two sides, offers is for "blackholed register -f".
// The package itself has only tests, which build and run them against a real peer.
package examples
