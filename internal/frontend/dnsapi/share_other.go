//go:build !linux

package dnsapi

import "syscall"

// shares is whether several sockets can have one address, among which the system spreads clients.
const shares = false

func share(string, string, syscall.RawConn) error { return nil }
